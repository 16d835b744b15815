"""Sending messages to an agent, stopping it, and reading its history.

What every route that sends a message has in common is here too: accept the request, then answer in the mode it asked
for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query
from starlette.responses import Response

from holdfast.actions.dependencies import Holdfast
from holdfast.actions.messages.capture import capture_turn
from holdfast.actions.messages.read import list_messages_of_agent
from holdfast.actions.messages.send import Accepted, SendRequest
from holdfast.actions.queries import Page
from holdfast.api.answers import HANDED_OVER, EventStream, failed_run_answer, json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Asking, Before, Deps, Limit, Order, SpeakingTool
from holdfast.core.frames import CompactionFrame, ErrorFrame, MessageFrame, StopFrame, UsageFrame
from holdfast.core.messages import Image, Message, image_of
from holdfast.core.records import Run, StopReason
from holdfast.engine.run_reader import require_replayable
from holdfast.engine.streams import PACKET_GAP_S, Numbered
from holdfast.errors import Invalid, Unprocessable
from holdfast.ssrf_guard import Unresolved, check_url
from holdfast.wire.capture import CaptureAnswer, CaptureRequest, capture_view
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view
from holdfast.wire.requests import (
    CancelAgentRunRequest,
    LettaAsyncRequest,
    LettaMessageRequest,
    LettaRequest,
    LettaStreamingRequest,
    ParsedInput,
    RetrieveStreamRequest,
    input_of,
    resolve_images,
)
from holdfast.wire.responses import FrameEncoder, letta_response
from holdfast.wire.runs import run_view

router = LazyRouter(prefix="/v1/agents/{agent_id}/messages", tags=["messages"])
NO_STREAM_HERE: Final = (
    "streaming=true is answered only to SDKs from 1.0 on, and this request comes from an older one or from none. "
    "POST the same body to …/messages/stream instead."
)


@router.post("")
async def create_message(agent_id: AgentId, request: LettaMessageRequest, deps: Deps, asking: Asking) -> Response:
    if request.streaming and not asking.streams_by_option:
        raise Unprocessable(NO_STREAM_HERE)
    return await send_and_answer(deps, agent_id, request, run_type="send_message", streaming=request.streaming)


@router.post("/stream")
async def stream_message(agent_id: AgentId, request: LettaStreamingRequest, deps: Deps) -> Response:
    return await send_and_answer(deps, agent_id, request, run_type="send_message_streaming", streaming=True)


@router.post("/async")
async def create_message_async(agent_id: AgentId, request: LettaAsyncRequest, deps: Deps) -> Response:
    if request.callback_url is not None:
        await require_callable(deps, request.callback_url)
    accepted = await deps.send(
        SendRequest(
            thread_id=agent_id,
            parsed=await parse(deps, request),
            request=request,
            run_type="send_message_async",
            request_config=request.request_config(),
            background=True,
            callback_url=request.callback_url,
        )
    )
    return json_response(run_view(accepted.run))


@router.post("/capture", responses={200: {"model": CaptureAnswer}}, response_model=None)
async def capture_messages(agent_id: AgentId, request: CaptureRequest, deps: Deps) -> Response:
    captured = await capture_turn(deps.database, deps.tasks, agent_id, request, deps.clock.now_us())
    return json_response(capture_view(captured.messages, captured.run_ids))


@router.post("/cancel")
async def cancel_message(agent_id: AgentId, deps: Deps, request: CancelAgentRunRequest | None = None) -> Response:
    return json_response(await deps.cancel.of_agent(agent_id, request.run_ids if request else None))


@router.get("")
async def list_messages(
    agent_id: AgentId,
    deps: Deps,
    speaking: SpeakingTool,
    limit: Limit = 100,
    before: Before = None,
    after: After = None,
    order: Order = "desc",
    conversation_id: Annotated[
        str | None, Query(description="Only this conversation; `default` is the agent's own history.")
    ] = None,
    include_return_message_types: Annotated[list[MessageType] | None, Query()] = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order, chronological=True)
    rows = await list_messages_of_agent(deps.database, agent_id, conversation_id, page)
    return json_response(messages_view(rows, speaking, include_return_message_types))


async def parse(deps: Holdfast, request: LettaRequest) -> ParsedInput:
    """Images named by url are fetched before anything is stored."""
    parsed = input_of(request)
    if not parsed.image_urls:
        return parsed
    from holdfast import outgoing_http  # noqa: PLC0415 - aiohttp is slow to import

    fetched: dict[str, Image] = {}
    for url in parsed.image_urls:
        media_type, content = await outgoing_http.fetch_image(url, deps.settings.reachable_hosts)
        image = image_of(media_type, content)
        if image is None:
            raise Invalid(f"The image at {url} is empty, or is not the {media_type} that its server calls it.")
        fetched[url] = image
    return resolve_images(parsed, fetched)


async def require_callable(deps: Holdfast, callback_url: str) -> None:
    """Raises Invalid for a callback that would be refused when the run is over, while its caller can still mend it."""
    try:
        await check_url(callback_url, deps.settings.reachable_hosts)
    except Unresolved:
        pass  # the name server may answer again by then; the address is judged before it is called
    except Invalid as error:
        raise Invalid(f"callback_url cannot be called: {error.message}") from error


async def send_and_answer(
    deps: Holdfast,
    thread_id: str,
    request: LettaStreamingRequest,
    *,
    run_type: str,
    streaming: bool,
    stand_in_line: bool = True,
) -> Response:
    """`stand_in_line`: whether a blocking request waits a while for a busy thread."""
    parsed = await parse(deps, request)
    plain_blocking = not streaming and parsed.decisions is None
    accepted = await deps.send(
        SendRequest(
            thread_id=thread_id,
            parsed=parsed,
            request=request,
            run_type=run_type,
            request_config=request.request_config(),
            stream_tokens=streaming and request.stream_tokens,
            background=streaming and request.background,
            # An answer to a hold does not stand in line: whoever holds the thread has answered it already.
            wait_s=deps.settings.queue_wait_s if plain_blocking and stand_in_line else 0.0,
        )
    )
    if not streaming:
        return _answer(accepted.run.id, await frames_of(deps, accepted), request)
    batches = accepted.stream.follow_to_end(PACKET_GAP_S) if accepted.stream else deps.reader.follow(accepted.run)
    return _event_stream(deps, accepted.run, batches, request, include_pings=request.include_pings)


async def resumed_stream(deps: Holdfast, run: Run, request: RetrieveStreamRequest) -> EventStream:
    require_replayable(run, deps.clock.now_us(), deps.settings.frame_retention_s)
    if deps.settings.frame_retention_bytes:
        await deps.reader.require_stored(run, deps.clock.now_us())
    batches = deps.reader.resume(run, request.starting_after)
    return _event_stream(deps, run, batches, None, include_pings=request.include_pings is not False)


async def frames_of(deps: Holdfast, accepted: Accepted) -> Sequence[Any]:
    """All of them, once the run has ended."""
    if accepted.stream is None:
        return await deps.reader.frames_of(accepted.run.id)
    async for _ in accepted.stream.follow():
        pass
    return accepted.stream.frames


class Ended(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    used: UsageFrame


def ended(frames: Sequence[Any]) -> Ended | Response:
    """How the run ended, or the answer to its caller if it failed or is carried on elsewhere."""
    last = frames[-1] if frames else None
    if isinstance(last, ErrorFrame):
        return failed_run_answer(last.error)
    stop = next((frame for frame in reversed(frames) if isinstance(frame, StopFrame)), None)
    if stop is None or not isinstance(last, UsageFrame):
        return failed_run_answer(HANDED_OVER)
    return Ended(stop.stop_reason, last)


def _event_stream(
    deps: Holdfast,
    run: Run,
    batches: AsyncGenerator[Sequence[Numbered]],
    request: LettaRequest | None,
    *,
    include_pings: bool,
) -> EventStream:
    shown = request.include_return_message_types if request else run.request_config.get("include_return_message_types")
    encoder = FrameEncoder(
        run.id,
        background=run.background,
        include_types=shown,
        include_compaction=request.include_compaction_messages if request else True,
    )
    return EventStream(batches, encoder, keepalive_s=deps.settings.keepalive_s, include_pings=include_pings)


def _answer(run_id: str, frames: Sequence[Any], request: LettaRequest) -> Response:
    made: list[Message | CompactionFrame] = []
    speaking = next((frame.speaking for frame in frames if isinstance(frame, MessageFrame)), None)
    for frame in frames:
        if isinstance(frame, MessageFrame) and frame.index in (None, 0):
            made.append(frame.message)
        elif isinstance(frame, CompactionFrame):
            made.append(frame)
    end = ended(frames)
    if isinstance(end, Response):
        return end
    return json_response(
        letta_response(
            made,
            end.stop_reason,
            end.used.usage,
            step_count=end.used.step_count,
            context_tokens=end.used.context_tokens,
            include_types=request.include_return_message_types,
            include_compaction=request.include_compaction_messages,
            run_id=run_id,
            speaking=speaking,
            due_run_ids=end.used.run_ids,
        )
    )

"""Groups of agents, and messages to them.

The answer is what each agent says, in the order in which they speak, then one end for all.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.dependencies import Holdfast
from holdfast.actions.groups import records as actions
from holdfast.actions.queries import GroupFilter, Page
from holdfast.api.answers import HANDED_OVER, EventStream, failed_run_answer, json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Asking, Before, Deps, GroupId, Limit, Order, OrderBy, SpeakingTool
from holdfast.api.routes.messages import NO_STREAM_HERE
from holdfast.core.frames import (
    TERMINAL,
    CompactionFrame,
    ErrorFrame,
    Frame,
    MessageFrame,
    StopFrame,
    UsageFrame,
    closing_frames,
)
from holdfast.core.messages import Message
from holdfast.core.records import Discussion
from holdfast.core.usage import Usage
from holdfast.engine.streams import Numbered
from holdfast.errors import HandedOver, Unprocessable
from holdfast.wire.groups import GroupCreate, GroupType, GroupUpdate, GroupView, group_view
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view
from holdfast.wire.requests import LettaMessageRequest, LettaRequest, LettaStreamingRequest
from holdfast.wire.responses import FrameEncoder, live_messages, stop_reason_view, usage_statistics

router = LazyRouter(prefix="/v1/groups", tags=["groups"])
agent_router = LazyRouter(prefix="/v1/agents/{agent_id}/groups", tags=["agents"])


@router.get("/", responses={200: {"model": list[GroupView]}}, response_model=None)
async def list_groups(
    deps: Deps,
    manager_type: GroupType | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
    project_id: str | None = None,
    show_hidden_groups: bool = False,
) -> Response:
    filters = GroupFilter(manager_type=manager_type, project_id=project_id, show_hidden=show_hidden_groups)
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([group_view(group) for group in await actions.list_groups(deps.database, filters, page)])


@router.post("/", responses={200: {"model": GroupView}}, response_model=None)
async def create_group(deps: Deps, request: GroupCreate) -> Response:
    return json_response(group_view(await actions.create_group(deps.database, request, deps.clock.now_us())))


@router.get("/count", response_model=int)
async def count_groups(deps: Deps) -> Response:
    return json_response(await actions.count_groups(deps.database))


@router.get("/{group_id}", responses={200: {"model": GroupView}}, response_model=None)
async def retrieve_group(deps: Deps, group_id: GroupId) -> Response:
    return json_response(group_view(await actions.read_group(deps.database, group_id)))


@router.patch("/{group_id}", responses={200: {"model": GroupView}}, response_model=None)
async def update_group(deps: Deps, group_id: GroupId, request: GroupUpdate) -> Response:
    return json_response(group_view(await actions.update_group(deps.database, group_id, request, deps.clock.now_us())))


@router.delete("/{group_id}", response_model=None)
async def delete_group(deps: Deps, group_id: GroupId) -> Response:
    await actions.delete_group(deps.database, group_id)
    return json_response({"message": f"Group id={group_id} successfully deleted"})


@router.patch("/{group_id}/blocks/attach/{block_id}", response_model=None)
async def attach_block(deps: Deps, group_id: GroupId, block_id: str) -> Response:
    await actions.attach_block(deps.database, group_id, block_id)
    return json_response(None)


@router.patch("/{group_id}/blocks/detach/{block_id}", response_model=None)
async def detach_block(deps: Deps, group_id: GroupId, block_id: str) -> Response:
    await actions.detach_block(deps.database, group_id, block_id)
    return json_response(None)


@router.get("/{group_id}/messages")
async def list_messages(
    deps: Deps,
    group_id: GroupId,
    speaking: SpeakingTool,
    before: Before = None,
    after: After = None,
    limit: Limit = 10,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    include_return_message_types: Annotated[list[MessageType] | None, Query()] = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    rows = await actions.list_messages(deps.database, group_id, page)
    return json_response(messages_view(rows, speaking, include_return_message_types))


@router.post("/{group_id}/messages")
async def send_message(deps: Deps, group_id: GroupId, request: LettaMessageRequest, asking: Asking) -> Response:
    if not request.streaming:
        return await _answer(deps, group_id, request)
    if not asking.streams_by_option:
        raise Unprocessable(NO_STREAM_HERE)
    return await _stream(deps, group_id, request)


@router.post("/{group_id}/messages/stream")
async def stream_message(deps: Deps, group_id: GroupId, request: LettaStreamingRequest) -> Response:
    return await _stream(deps, group_id, request)


@router.patch("/{group_id}/reset-messages", response_model=None)
async def reset_messages(deps: Deps, group_id: GroupId) -> Response:
    await actions.reset_messages(deps.database, group_id, deps.clock)
    return json_response(None)


@agent_router.get("", responses={200: {"model": list[GroupView]}}, response_model=None)
async def list_groups_of_agent(
    deps: Deps,
    agent_id: AgentId,
    manager_type: str | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_groups_of_agent(deps.database, agent_id, manager_type, page)
    return json_response([group_view(group) for group in found])


class _Total:
    """What all runs of a discussion have used."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.steps = 0

    def add(self, frame: Frame) -> None:
        if isinstance(frame, UsageFrame):
            self.usage += frame.usage
            self.steps += frame.step_count


class _Encoder(FrameEncoder):
    """Shows the frames of one run after another."""

    def __init__(self, discussion_id: str, request: LettaRequest) -> None:
        super().__init__(discussion_id)
        self._request = request
        self._current: FrameEncoder | None = None

    def begin(self, run_id: str) -> None:
        self._current = FrameEncoder(
            run_id,
            include_types=self._request.include_return_message_types,
            include_compaction=self._request.include_compaction_messages,
        )

    def encode_all(self, frames: Iterable[Numbered]) -> bytes:
        return self._current.encode_all(frames) if self._current is not None else super().encode_all(frames)


async def _answer(deps: Holdfast, group_id: str, request: LettaRequest) -> Response:
    discussion = await deps.discuss.begin(group_id, request)
    total, shown = _Total(), list[dict[str, object]]()
    async for run in deps.discuss.speaking_runs(discussion.id):
        frames = await deps.reader.frames_of(run.id)
        if not frames or not isinstance(frames[-1], TERMINAL):
            return failed_run_answer(HANDED_OVER)
        total.add(frames[-1])
        speaking = next((frame.speaking for frame in frames if isinstance(frame, MessageFrame)), None)
        shown += live_messages(
            _said(frames),
            include_types=request.include_return_message_types,
            include_compaction=request.include_compaction_messages,
            run_id=run.id,
            speaking=speaking,
        )
    end = _closing(await deps.discuss.outcome(discussion.id), total)
    if isinstance(end[-1], ErrorFrame):
        return failed_run_answer(end[-1].error)
    assert isinstance(end[0], StopFrame)
    return json_response(
        {
            "messages": shown,
            "stop_reason": stop_reason_view(end[0].stop_reason),
            "usage": usage_statistics(total.usage, step_count=total.steps),
            "logprobs": None,
            "turns": None,
        }
    )


async def _stream(deps: Holdfast, group_id: str, request: LettaStreamingRequest) -> EventStream:
    discussion = await deps.discuss.begin(group_id, request, stream_tokens=request.stream_tokens)
    encoder = _Encoder(discussion.id, request)
    batches = _followed(deps, discussion, encoder)
    return EventStream(batches, encoder, keepalive_s=deps.settings.keepalive_s, include_pings=request.include_pings)


async def _followed(deps: Holdfast, discussion: Discussion, encoder: _Encoder) -> AsyncGenerator[Sequence[Numbered]]:
    total = _Total()
    async for run in deps.discuss.speaking_runs(discussion.id):
        encoder.begin(run.id)
        async for batch in deps.reader.follow(run):
            total.add(batch[-1][1])
            if kept := [each for each in batch if not isinstance(each[1], (StopFrame, *TERMINAL))]:
                yield kept
    yield list(enumerate(_closing(await deps.discuss.outcome(discussion.id), total), 1))


def _said(frames: Sequence[Frame]) -> Iterator[Message | CompactionFrame]:
    for frame in frames:
        if isinstance(frame, MessageFrame) and frame.index in (None, 0):
            yield frame.message
        elif isinstance(frame, CompactionFrame):
            yield frame


def _closing(outcome: Discussion | None, total: _Total) -> list[Frame]:
    if outcome is None:
        error = {"error_type": "internal_error", "message": "The group was deleted while it discussed the message."}
        return closing_frames("error", error, total.usage, total.steps)
    if outcome.ended_us is None or outcome.stop_reason is None:
        raise HandedOver(f"discussion {outcome.id} goes on")
    return closing_frames(outcome.stop_reason, outcome.error, total.usage, total.steps)

"""Sending messages to an agent, stopping it, and reading its history."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.messages.capture import capture_turn
from holdfast.actions.messages.read import list_messages_of_agent
from holdfast.actions.messages.send import SendRequest
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Asking, Before, Deps, Limit, Order, SpeakingTool
from holdfast.api.sending import NO_STREAM_HERE, parse, request_config, require_callable, send_and_answer
from holdfast.errors import Unprocessable
from holdfast.wire.capture import CaptureAnswer, CaptureRequest, capture_view
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view
from holdfast.wire.requests import CancelAgentRunRequest, LettaAsyncRequest, LettaMessageRequest, LettaStreamingRequest
from holdfast.wire.runs import run_view

router = LazyRouter(prefix="/v1/agents/{agent_id}/messages", tags=["messages"])


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
            request_config=request_config(request),
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

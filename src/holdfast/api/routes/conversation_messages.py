"""What is said in a conversation: sending, listing, following, compacting."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.messages.preview import preview_request
from holdfast.actions.messages.read import list_messages_of_thread
from holdfast.actions.messages.send import SendRequest
from holdfast.actions.queries import Page
from holdfast.actions.runs.records import find_streamed_run
from holdfast.actions.threads import context
from holdfast.actions.threads.compact import compact_thread
from holdfast.actions.threads.find import is_default, thread_of
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, ConversationId, Deps, Limit, Order, OrderBy, SpeakingTool
from holdfast.api.routes.messages import parse, resumed_stream, send_and_answer
from holdfast.wire.conversations import (
    CompactionView,
    ConversationCompactionRequest,
    ConversationRecompileRequest,
    compaction_view,
)
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view
from holdfast.wire.requests import ConversationMessageRequest, RetrieveStreamRequest

router = LazyRouter(prefix="/v1/conversations/{conversation_id}", tags=["conversations"])


@router.post("/messages", response_model=None)
async def create_message(deps: Deps, conversation_id: ConversationId, request: ConversationMessageRequest) -> Response:
    thread_id = thread_of(conversation_id, request.agent_id)
    run_type = "send_message" if is_default(thread_id) else "send_conversation_message"
    # A client of conversations wants to be told at once that another turn is under way, not to wait for its end.
    return await send_and_answer(
        deps, thread_id, request, run_type=run_type, streaming=request.streaming, stand_in_line=False
    )


@router.get("/messages", response_model=None)
async def list_messages(
    deps: Deps,
    conversation_id: ConversationId,
    speaking: SpeakingTool,
    agent_id: str | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    group_id: str | None = None,
    include_err: bool | None = None,
    include_return_message_types: Annotated[list[MessageType] | None, Query()] = None,
) -> Response:
    """Newest first. An agent's default history is listed as the agent's own route lists it."""
    thread_id = thread_of(conversation_id, agent_id)
    page = Page(limit=limit, before=before, after=after, order=order, chronological=is_default(thread_id))
    rows = await list_messages_of_thread(deps.database, thread_id, page)
    return json_response(messages_view(rows, speaking, include_return_message_types))


@router.post("/messages/preview-raw-payload", response_model=None)
async def preview(deps: Deps, conversation_id: ConversationId, request: ConversationMessageRequest) -> Response:
    sending = SendRequest(
        thread_id=thread_of(conversation_id, request.agent_id),
        parsed=await parse(deps, request),
        request=request,
        run_type="preview",
        request_config=request.request_config(),
    )
    payload = await preview_request(sending, database=deps.database, catalog=deps.catalog, clock=deps.clock)
    return json_response(payload)


@router.post("/stream", response_model=None)
async def stream(deps: Deps, conversation_id: ConversationId, request: RetrieveStreamRequest | None = None) -> Response:
    wanted = request or RetrieveStreamRequest()
    thread_id = thread_of(conversation_id, wanted.agent_id)
    run = await find_streamed_run(deps.database, thread_id, wanted.run_id, wanted.otid)
    return await resumed_stream(deps, run, wanted)


@router.post("/compact", responses={200: {"model": CompactionView}}, response_model=None)
async def compact(
    deps: Deps, conversation_id: ConversationId, request: ConversationCompactionRequest | None = None
) -> Response:
    wanted = request or ConversationCompactionRequest()
    made = await compact_thread(
        thread_of(conversation_id, wanted.agent_id),
        wanted.compaction_settings,
        database=deps.database,
        catalog=deps.catalog,
        compactor=deps.compactor,
        clock=deps.clock,
        refuse_empty=True,
    )
    return json_response(compaction_view(made.summary, made.before, made.after))


@router.post("/recompile", response_model=str)
async def recompile(
    deps: Deps,
    conversation_id: ConversationId,
    request: ConversationRecompileRequest | None = None,
    dry_run: bool = False,
) -> Response:
    thread_id = thread_of(conversation_id, request.agent_id if request else None)
    text = await context.recompile(deps.database, thread_id, deps.clock.now_us(), dry_run=dry_run)
    return json_response(text)

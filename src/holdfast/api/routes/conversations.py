"""Conversations: create, read, change, fork, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.threads import conversations as actions
from holdfast.actions.threads.find import thread_of
from holdfast.api.deps import Deps
from holdfast.api.ids import ConversationId, RealConversationId, id_pattern
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, Limit, Order, SearchQuery
from holdfast.api.routing import LazyRouter
from holdfast.core.records import Thread
from holdfast.store import threads
from holdfast.store.paging import Page
from holdfast.store.threads import ThreadFilter
from holdfast.store.transaction import Transaction
from holdfast.wire.conversations import ConversationView, conversation_view
from holdfast.wire.requests import CreateConversation, ForkConversation, UpdateConversation

router = LazyRouter(prefix="/v1/conversations", tags=["conversations"])

OrderBy = Literal["created_at", "last_run_completion", "last_message_at"]
ArchiveStatus = Literal["unarchived", "archived", "all"]
OwnerId = Annotated[str, Query(pattern=id_pattern("agent"), description="The agent whose conversation it is.")]
OneConversation: dict[int | str, dict[str, Any]] = {200: {"model": ConversationView}}


@router.post("/", responses=OneConversation, response_model=None)
async def create(deps: Deps, agent_id: OwnerId, request: CreateConversation | None = None) -> Response:
    wanted = request or CreateConversation()
    model = await actions.checked_model(deps.catalog, wanted)
    now_us = deps.clock.now_us()
    begun = await deps.database.write(lambda tx: actions.create_conversation(tx, agent_id, wanted, model, now_us))
    return json_response(conversation_view(begun.thread, begun.window_ids))


@router.get("/", responses={200: {"model": list[ConversationView]}}, response_model=None)
async def list_conversations(
    deps: Deps,
    agent_id: str | None = None,
    limit: Limit = 50,
    before: Before = None,
    after: After = None,
    summary_search: SearchQuery = None,
    archive_status: ArchiveStatus = "all",
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    filters = ThreadFilter(agent_id=agent_id, summary_search=summary_search, archive_status=archive_status)
    page = Page(limit=limit, before=before, after=after, order=order)

    async def read(tx: Transaction) -> list[ConversationView]:
        found = await threads.list_threads(tx, filters, page, order_by)
        windows = await threads.windows_ids(tx, [thread.id for thread in found])
        return [conversation_view(thread, windows[thread.id]) for thread in found]

    return json_response(await deps.database.read(read))


@router.get("/{conversation_id}", responses=OneConversation, response_model=None)
async def retrieve(deps: Deps, conversation_id: RealConversationId) -> Response:
    async def read(tx: Transaction) -> ConversationView:
        return await _view(tx, await threads.get(tx, conversation_id))

    return json_response(await deps.database.read(read))


@router.patch("/{conversation_id}", responses=OneConversation, response_model=None)
async def update(deps: Deps, conversation_id: RealConversationId, request: UpdateConversation) -> Response:
    model = await actions.checked_model(deps.catalog, request)
    now_us = deps.clock.now_us()

    async def write(tx: Transaction) -> ConversationView:
        return await _view(tx, await actions.update_conversation(tx, conversation_id, request, model, now_us))

    return json_response(await deps.database.write(write))


@router.delete("/{conversation_id}", response_model=None)
async def delete(deps: Deps, conversation_id: RealConversationId) -> Response:
    await deps.cancel.before_deleting_thread(conversation_id)
    await deps.database.write(lambda tx: actions.delete_conversation(tx, conversation_id, deps.clock))
    return json_response(None)


@router.post("/{conversation_id}/fork", responses=OneConversation, response_model=None)
async def fork(deps: Deps, conversation_id: ConversationId, request: Annotated[ForkConversation, Query()]) -> Response:
    source_id = thread_of(conversation_id, request.agent_id)
    now_us = deps.clock.now_us()
    begun = await deps.database.write(lambda tx: actions.fork_conversation(tx, source_id, request, now_us))
    return json_response(conversation_view(begun.thread, begun.window_ids))


@router.post("/{conversation_id}/cancel", response_model=None)
async def cancel(deps: Deps, conversation_id: ConversationId, agent_id: str | None = None) -> Response:
    return json_response(await deps.cancel.of_thread(thread_of(conversation_id, agent_id)))


async def _view(tx: Transaction, thread: Thread) -> ConversationView:
    return conversation_view(thread, await threads.window_ids(tx, thread.id))

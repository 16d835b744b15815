"""Conversations: create, read, change, fork, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.queries import Page, ThreadFilter
from holdfast.actions.threads import conversations as actions
from holdfast.actions.threads.find import thread_of
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import (
    After,
    Before,
    ConversationId,
    Deps,
    Limit,
    Order,
    RealConversationId,
    SearchQuery,
    id_pattern,
)
from holdfast.wire.conversations import ConversationView, CreateConversation, ForkConversation, UpdateConversation

router = LazyRouter(prefix="/v1/conversations", tags=["conversations"])

OrderBy = Literal["created_at", "last_run_completion", "last_message_at"]
ArchiveStatus = Literal["unarchived", "archived", "all"]
OwnerId = Annotated[str, Query(pattern=id_pattern("agent"), description="The agent whose conversation it is.")]
OneConversation: dict[int | str, dict[str, Any]] = {200: {"model": ConversationView}}


@router.post("/", responses=OneConversation, response_model=None)
async def create(deps: Deps, agent_id: OwnerId, request: CreateConversation | None = None) -> Response:
    wanted, now_us = request or CreateConversation(), deps.clock.now_us()
    return json_response(await actions.create_conversation(deps.database, deps.catalog, agent_id, wanted, now_us))


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
    return json_response(await actions.list_conversations(deps.database, filters, page, order_by))


@router.get("/{conversation_id}", responses=OneConversation, response_model=None)
async def retrieve(deps: Deps, conversation_id: RealConversationId) -> Response:
    return json_response(await actions.read_conversation(deps.database, conversation_id))


@router.patch("/{conversation_id}", responses=OneConversation, response_model=None)
async def update(deps: Deps, conversation_id: RealConversationId, request: UpdateConversation) -> Response:
    now_us = deps.clock.now_us()
    return json_response(
        await actions.update_conversation(deps.database, deps.catalog, conversation_id, request, now_us)
    )


@router.delete("/{conversation_id}", response_model=None)
async def delete(deps: Deps, conversation_id: RealConversationId) -> Response:
    await actions.delete_conversation(deps.database, deps.cancel, conversation_id, deps.clock)
    return json_response(None)


@router.post("/{conversation_id}/fork", responses=OneConversation, response_model=None)
async def fork(deps: Deps, conversation_id: ConversationId, request: Annotated[ForkConversation, Query()]) -> Response:
    source_id = thread_of(conversation_id, request.agent_id)
    return json_response(await actions.fork_conversation(deps.database, source_id, request, deps.clock.now_us()))


@router.post("/{conversation_id}/cancel", response_model=None)
async def cancel(deps: Deps, conversation_id: ConversationId, agent_id: str | None = None) -> Response:
    return json_response(await deps.cancel.of_thread(thread_of(conversation_id, agent_id)))

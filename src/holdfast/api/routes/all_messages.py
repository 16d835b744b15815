"""Messages of every agent: one by its id, a list across agents, and those that are found by their words."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.messages import read
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Deps, Limit, MessageId, Order
from holdfast.core.spec import Speaking
from holdfast.wire.message_search import MessageHit, MessageItem, MessageSearch, SearchAllMessages
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view, to_wire

router = LazyRouter(prefix="/v1/messages", tags=["messages"])
search_router = LazyRouter(prefix="/v1", tags=["messages"])


@router.get("/")
async def list_messages(
    deps: Deps,
    limit: Limit = 100,
    before: Before = None,
    after: After = None,
    order: Order = "desc",
    conversation_id: Annotated[str | None, Query(description="Only this conversation.")] = None,
    include_return_message_types: Annotated[list[MessageType] | None, Query()] = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    rows = await read.list_all_messages(deps.database, conversation_id, page)
    return json_response(messages_view(rows, Speaking(), include_return_message_types))


@router.get("/{message_id}")
async def retrieve(message_id: MessageId, deps: Deps) -> Response:
    """A list: a stored message shows as several, such as reasoning and a tool call."""
    row = await read.read_message(deps.database, message_id)
    return json_response(to_wire(row, speaking=Speaking()))


@search_router.post("/messages/search", responses={200: {"model": list[MessageItem]}}, response_model=None)
async def search_all_messages(deps: Deps, request: SearchAllMessages) -> Response:
    return json_response(await read.search_said(deps.database, request))


@search_router.post("/agents/messages/search", responses={200: {"model": list[MessageHit]}}, response_model=None)
async def search_agent_messages(deps: Deps, request: MessageSearch) -> Response:
    return json_response(await read.search_stored(deps.database, request))

"""Messages of every agent: one by its id, and a list across agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.ids import MessageId
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, Limit, Order
from holdfast.api.routing import LazyRouter
from holdfast.core.messages import Message
from holdfast.core.spec import Speaking
from holdfast.store import messages, threads
from holdfast.store.paging import Page
from holdfast.store.transaction import Transaction
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import filter_types, to_wire

router = LazyRouter(prefix="/v1/messages", tags=["messages"])


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

    async def read(tx: Transaction) -> list[Message]:
        if conversation_id is None:
            return await messages.list_of_agent(tx, None, page)
        await threads.get(tx, conversation_id)
        return await messages.list_of_thread(tx, conversation_id, page)

    rows = await (deps.database.read_long(read) if page.is_long else deps.database.read(read))
    shown = [wire for row in rows for wire in to_wire(row, speaking=Speaking())]
    return json_response(filter_types(shown, include_return_message_types))


@router.get("/{message_id}")
async def retrieve(message_id: MessageId, deps: Deps) -> Response:
    """A list: a stored message shows as several, such as reasoning and a tool call."""
    row = await deps.database.read(lambda tx: messages.get(tx, message_id))
    return json_response(to_wire(row, speaking=Speaking()))

"""Search the messages of all agents, of one, or of a conversation: those that hold every word of the query.

Of a long query the first words must do.
"""

from __future__ import annotations

from holdfast.core.fusion import fuse_rankings
from holdfast.core.heartbeats import visible_text
from holdfast.core.moments import moments
from holdfast.core.words import MOST_ASKED
from holdfast.errors import NotFound, Unprocessable
from holdfast.store import agents as agent_rows
from holdfast.store import messages as message_rows
from holdfast.store import threads as thread_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.message_search import (
    FoundRow,
    MessageHit,
    MessageItem,
    MessageSearch,
    SearchAllMessages,
    message_hits,
    message_items,
)

_SAID = ("user", "assistant", "approval", "system")


async def search_said(database: Database, request: SearchAllMessages) -> list[MessageItem]:
    """What was said, newest first."""
    found = await database.read_long(lambda tx: _find(tx, request, _SAID))
    return message_items(found, request.limit)


async def search_stored(database: Database, request: MessageSearch) -> list[MessageHit]:
    """Stored messages of any role, newest first."""
    roles = None if request.roles is None else tuple(request.roles)
    found = await database.read_long(lambda tx: _find(tx, request, roles))
    return message_hits(found, [score for _, score in fuse_rankings([[row.message.id for row in found]])])


async def _find(
    tx: Transaction, request: SearchAllMessages | MessageSearch, roles: tuple[str, ...] | None
) -> list[FoundRow]:
    if request.agent_id is not None:
        await agent_rows.require(tx, request.agent_id)
    thread_id = await _thread(tx, request)
    rows = await message_rows.search(
        tx,
        request.agent_id,
        texts=list(dict.fromkeys((request.query or "").lower().split()))[:MOST_ASKED],
        roles=roles,
        start_us=_moment(request.start_date, 0),
        end_us=_moment(request.end_date, 1),
        limit=request.limit,
        thread_id=thread_id,
    )
    ids = [row.id for row in rows]
    owners, threads = await message_rows.agents_of(tx, ids), await message_rows.threads_of(tx, ids)
    return [
        FoundRow(
            row,
            owner := owners.get(row.id),
            # An agent's own history goes by the agent's id, and is no conversation.
            next((one for one in (thread_id, *threads.get(row.id, ())) if one not in (None, owner)), None),
            visible_text(row),
        )
        for row in rows
    ]


async def _thread(tx: Transaction, request: SearchAllMessages | MessageSearch) -> str | None:
    asked = request.conversation_id
    if asked is None:
        return None
    if asked == "default":
        if request.agent_id is None:
            raise Unprocessable("The conversation `default` is one agent's own history: name the agent_id too.")
        return request.agent_id
    thread = await thread_rows.get(tx, asked)
    if request.agent_id is not None and thread.agent_id != request.agent_id:
        raise NotFound(f"Conversation {asked} not found")
    return asked


def _moment(written: str | None, which: int) -> int | None:
    if not written:
        return None
    try:
        return moments(written, "UTC")[which]
    except ValueError as error:
        raise Unprocessable(f"{written!r} is not a date. Use ISO 8601 format.") from error

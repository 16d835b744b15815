"""List stored messages, of whatever they belong to, and search them.

A search finds the messages that hold every word of the query; of a long query the first words must do.
"""

from __future__ import annotations

from holdfast.actions.queries import Page, read_page
from holdfast.actions.threads.find import DEFAULT, require_thread
from holdfast.core.dates import moments
from holdfast.core.messages import Message
from holdfast.core.records import Run
from holdfast.core.search_words import MOST_ASKED, fuse_rankings
from holdfast.core.spec import visible_text
from holdfast.errors import NotFound, Unprocessable
from holdfast.store import agents as agent_rows
from holdfast.store import messages as message_rows
from holdfast.store import runs as run_rows
from holdfast.store import steps as step_rows
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


async def list_all_messages(database: Database, conversation_id: str | None, page: Page) -> list[Message]:
    """Of every agent, or of one conversation."""

    async def read(tx: Transaction) -> list[Message]:
        if conversation_id is None:
            return await message_rows.list_of_agent(tx, None, page)
        await thread_rows.get(tx, conversation_id)
        return await message_rows.list_of_thread(tx, conversation_id, page)

    return await read_page(database, read, page)


async def list_messages_of_agent(
    database: Database, agent_id: str, conversation_id: str | None, page: Page
) -> list[Message]:
    """Of all its threads, or of one; `default` is the agent's own history."""

    async def read(tx: Transaction) -> list[Message]:
        await agent_rows.require(tx, agent_id)
        if conversation_id is None:
            return await message_rows.list_of_agent(tx, agent_id, page)
        thread_id = agent_id if conversation_id == DEFAULT else conversation_id
        return await message_rows.list_of_thread(tx, thread_id, page)

    return await read_page(database, read, page)


async def list_messages_of_thread(database: Database, thread_id: str, page: Page) -> list[Message]:
    async def read(tx: Transaction) -> list[Message]:
        await require_thread(tx, thread_id)
        return await message_rows.list_of_thread(tx, thread_id, page)

    return await read_page(database, read, page)


async def list_messages_of_run(database: Database, run_id: str, page: Page) -> tuple[Run, list[Message]]:
    """Its input included; and the run, whose request says how they are shown."""

    async def read(tx: Transaction) -> tuple[Run, list[Message]]:
        return await run_rows.get(tx, run_id), await message_rows.list_of_run(tx, run_id, page)

    return await read_page(database, read, page)


async def list_messages_of_step(database: Database, step_id: str, page: Page) -> list[Message]:
    async def read(tx: Transaction) -> list[Message]:
        await step_rows.get(tx, step_id)
        return await message_rows.list_of_step(tx, step_id, page)

    return await database.read(read)


async def read_message(database: Database, message_id: str) -> Message:
    return await database.read(lambda tx: message_rows.get(tx, message_id))


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
    if asked == DEFAULT:
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

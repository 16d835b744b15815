"""Messages: stored once, listed by thread, agent, run or step, and searched.

`limit` and cursors count rows; a row may show as several wire messages. Rows are listed in the order of history
(`position` within a thread, else insertion), never by their timestamps, which can tie.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, bindparam, exists, func, or_, select, update

from holdfast.core.messages import Message, Parts
from holdfast.core.spec import visible_text
from holdfast.errors import NotFound
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.statements import in_array, insert_into
from holdfast.store.tables import messages, thread_messages, threads
from holdfast.store.transaction import Row, Transaction

_encode_parts = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(Parts).decode
_encode_text = msgspec.json.Encoder().encode

COLUMNS = tuple(messages.columns[name] for name in Message.__struct_fields__)
_SEARCH_BATCH = 200
_LONGEST_PIECE = 200
# Characters that Python folds to one whose own capital is another.
_FOLDED_TOO = {"\u00df": "\u1e9e", "\u00e5": "\u212b", "\u03c9": "\u2126", "\u03b8": "\u03f4"}

# Capitals that Python folds to plain characters, and the databases do not.
_FOLDED_TO_PLAIN = {"i": "\u0130", "\u0307": "\u0130", "k": "\u212a"}

_INSERT = insert_into(messages)
_ONE = select(*COLUMNS).where(messages.c.id == bindparam("message"))
_MANY = select(*COLUMNS).where(in_array(messages.c.id, "ids"))
_REPLACE = update(messages).where(messages.c.id == bindparam("message")).values(parts=bindparam("changed"))
# A changed row changes the window of every thread that holds it. `next_position` is the version of a window
# (decision 11), so it is moved.
_MOVE_ENDS = (
    update(threads)
    .where(
        threads.c.id.in_(
            select(thread_messages.c.thread_id).where(thread_messages.c.message_id == bindparam("message"))
        )
    )
    .values(next_position=threads.c.next_position + 1)
)
_COUNT = select(func.count().label("rows")).where(messages.c.agent_id == bindparam("agent"))
_AGENTS_OF = select(messages.c.id, messages.c.agent_id).where(in_array(messages.c.id, "ids"))
_THREADS_OF = select(thread_messages.c.message_id, thread_messages.c.thread_id).where(
    in_array(thread_messages.c.message_id, "ids")
)


async def insert_many(tx: Transaction, agent_id: str, new: Sequence[Message]) -> None:
    """In the given order. An id that is stored already raises IntegrityError."""
    await tx.execute_many(_INSERT, [_columns(agent_id, message) for message in new])


async def replace_parts(tx: Transaction, message_id: str, parts: Parts) -> None:
    """Only for a tool row that gathers returns, and for a system row. Other rows are immutable: forks share them."""
    if await tx.execute(_REPLACE, {"message": message_id, "changed": _encode_parts(parts).decode()}) == 0:
        raise NotFound(f"Message {message_id} not found")
    await tx.execute(_MOVE_ENDS, {"message": message_id})


async def get(tx: Transaction, message_id: str) -> Message:
    row = await tx.fetch_one(_ONE, {"message": message_id})
    if row is None:
        raise NotFound(f"Message {message_id} not found")
    return message_of(row)


async def find_many(tx: Transaction, ids: Sequence[str]) -> list[Message]:
    """Those that exist, in the order asked for."""
    rows = await tx.fetch_all(_MANY, {"ids": list(ids)})
    found = {row["id"]: row for row in rows}
    return [message_of(found[each]) for each in ids if each in found]


async def agents_of(tx: Transaction, ids: Sequence[str]) -> dict[str, str]:
    """The agent that each message belongs to."""
    return {row["id"]: row["agent_id"] for row in await tx.fetch_all(_AGENTS_OF, {"ids": list(ids)})}


async def threads_of(tx: Transaction, ids: Sequence[str]) -> dict[str, list[str]]:
    """The threads that hold each message: one, or more when it was shared by a fork."""
    held: dict[str, list[str]] = {}
    for row in await tx.fetch_all(_THREADS_OF, {"ids": list(ids)}):
        held.setdefault(row["message_id"], []).append(row["thread_id"])
    return held


async def list_of_thread(tx: Transaction, thread_id: str, page: Page) -> list[Message]:
    """All of its history, in the window or not. An agent's own thread is shown with `chronological` pages."""
    here = thread_messages.c.thread_id == thread_id
    ordering = Ordering(sort=thread_messages.c.position, id=thread_messages.c.message_id, what="Message", scope=(here,))
    query = select(*COLUMNS).join(thread_messages, thread_messages.c.message_id == messages.c.id).where(here)
    return [message_of(row) for row in await fetch_page(tx, query, ordering, page)]


async def list_of_agent(tx: Transaction, agent_id: str | None, page: Page) -> list[Message]:
    """Of all its threads; of all agents when None."""
    return await _list(tx, page, *(() if agent_id is None else (messages.c.agent_id == agent_id,)))


async def list_of_run(tx: Transaction, run_id: str, page: Page) -> list[Message]:
    """Its input included."""
    return await _list(tx, page, messages.c.run_id == run_id)


async def list_of_step(tx: Transaction, step_id: str, page: Page) -> list[Message]:
    return await _list(tx, page, messages.c.step_id == step_id)


async def list_of_group(tx: Transaction, group_id: str, page: Page) -> list[Message]:
    """Of the runs that were sent something as members of the group."""
    return await _list(tx, page, _said_in(group_id))


async def ids_of_group(tx: Transaction, group_id: str) -> set[str]:
    return {row["id"] for row in await tx.fetch_all(select(messages.c.id).where(_said_in(group_id)))}


def _said_in(group_id: str) -> ColumnElement[bool]:
    sent = messages.alias("sent")
    return messages.c.run_id.in_(select(sent.c.run_id).where(sent.c.group_id == group_id))


async def count_of_agent(tx: Transaction, agent_id: str) -> int:
    row = await tx.fetch_one(_COUNT, {"agent": agent_id})
    return row["rows"] if row else 0


async def search(
    tx: Transaction,
    agent_id: str | None,
    text: str | None = None,
    roles: Collection[str] | None = None,
    start_us: int | None = None,
    end_us: int | None = None,
    limit: int = 50,
    thread_id: str | None = None,
    texts: Sequence[str] = (),
) -> list[Message]:
    """Newest first; `text` is found anywhere in what a reader sees, whatever its case, and None finds everything. Each
    of `texts` must be in it, too.

    SQL narrows down by owner, role, time and what must be in the stored JSON; the exact check is made here, on few
    rows. Over a long history it takes long all the same: use `read_long`.
    """
    conditions = _narrowed(agent_id, thread_id, roles, start_us, end_us)
    needles = [each.lower() for each in (text, *texts) if each]
    for each in needles:
        conditions.extend(_contains(each))
    found: list[Message] = []
    below: int | None = None
    while len(found) < limit:
        query = select(*COLUMNS, messages.c.seq).where(*conditions).order_by(messages.c.seq.desc()).limit(_SEARCH_BATCH)
        rows = await tx.fetch_all(query if below is None else query.where(messages.c.seq < below))
        seen = (message_of(row) for row in rows)
        found.extend(message for message in seen if _holds(visible_text(message).lower(), needles))
        if len(rows) < _SEARCH_BATCH:
            break
        below = rows[-1]["seq"]
    return found[:limit]


def _holds(text: str, needles: Sequence[str]) -> bool:
    return all(needle in text for needle in needles)


def message_of(row: Row) -> Message:
    """Of a row that begins with `COLUMNS`; by place, not by name, because windows have thousands of them."""
    message_id, role, parts, created_us, run_id, step_id, otid, name, sender_id, group_id, batch_item_id, model, *_ = (
        row
    )
    return Message(
        id=message_id,
        role=role,
        parts=_decode_parts(parts),
        created_us=created_us,
        run_id=run_id,
        step_id=step_id,
        otid=otid,
        name=name,
        sender_id=sender_id,
        group_id=group_id,
        batch_item_id=batch_item_id,
        model=model,
    )


async def _list(tx: Transaction, page: Page, *scope: ColumnElement[bool]) -> list[Message]:
    ordering = Ordering(sort=messages.c.seq, id=messages.c.id, what="Message", scope=scope)
    rows = await fetch_page(tx, select(*COLUMNS).where(*scope), ordering, page)
    return [message_of(row) for row in rows]


def _columns(agent_id: str, message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "agent_id": agent_id,
        "role": message.role,
        "parts": _encode_parts(message.parts).decode(),
        "created_us": message.created_us,
        "run_id": message.run_id,
        "step_id": message.step_id,
        "otid": message.otid,
        "name": message.name,
        "sender_id": message.sender_id,
        "group_id": message.group_id,
        "batch_item_id": message.batch_item_id,
        "model": message.model,
    }


def _narrowed(
    agent_id: str | None,
    thread_id: str | None,
    roles: Collection[str] | None,
    start_us: int | None,
    end_us: int | None,
) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if agent_id is not None:
        found.append(messages.c.agent_id == agent_id)
    if thread_id is not None:
        held = thread_messages.c.message_id == messages.c.id
        found.append(exists().where(held, thread_messages.c.thread_id == thread_id))
    if roles is not None:
        found.append(in_array(messages.c.role, roles))
    if start_us is not None:
        found.append(messages.c.created_us >= start_us)
    if end_us is not None:
        found.append(messages.c.created_us <= end_us)
    return found


def _contains(text: str) -> list[ColumnElement[bool]]:
    """What holds for every row in which the text can be found, and for few others."""
    folded = text.lower()
    found: list[ColumnElement[bool]] = []
    if piece := _plain_piece(folded):
        found.append(messages.c.parts.icontains(piece, autoescape=True))
    others = [char for char in dict.fromkeys(folded) if not _is_plain(char)]
    found.extend(or_(*(messages.c.parts.contains(one, autoescape=True) for one in _forms(char))) for char in others[:3])
    strange = sorted({_FOLDED_TO_PLAIN[char] for char in folded if char in _FOLDED_TO_PLAIN})
    if not strange:
        return found
    return [or_(and_(*found), *(messages.c.parts.contains(one) for one in strange))]


def _forms(char: str) -> list[str]:
    """How a character, or another that Python folds to the same, is written within JSON."""
    folded = char.lower()
    alike = {folded, folded.upper(), folded.title(), _FOLDED_TOO.get(folded, folded)}
    return sorted(_encode_text(one).decode()[1:-1] for one in alike if len(one) == 1)


def _plain_piece(text: str) -> str:
    """The longest part of the text that looks the same within JSON and that both databases fold like Python does.

    Not all of a very long one: SQLite refuses patterns of more than 50,000 bytes.
    """
    pieces = "".join(char if _is_plain(char) else "\0" for char in text).split("\0")
    return max(pieces, key=len)[:_LONGEST_PIECE]


def _is_plain(char: str) -> bool:
    if char in '"\\' or not char.isprintable():
        return False
    return char.isascii() or char.lower() == char.upper()

"""Threads and their windows. The window is the rows with a context position, in that order; there is no other list.

`position` is the order of history and is given once. A message that joins the window gets its position as its context
position too; a summary takes the context position of the last message it replaced. Whoever changes a window in any way
moves the end of its history, if only by a gap: a thread that ends where it ended has the window that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from sqlalchemy import BigInteger, ColumnElement, bindparam, delete, exists, func, literal_column, select
from sqlalchemy import update as change
from sqlalchemy.dialects.postgresql import aggregate_order_by

from holdfast import ids
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block, Thread, Tool
from holdfast.errors import BugError, HoldfastError, NotFound
from holdfast.store.agents import COLUMNS as AGENT_COLUMNS
from holdfast.store.agents import agent_of
from holdfast.store.archive_tables import agent_folders
from holdfast.store.blocks import of_agent as blocks_of_agent
from holdfast.store.blocks import records_with_tags
from holdfast.store.messages import COLUMNS as MESSAGE_COLUMNS
from holdfast.store.messages import message_of
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.runs import IS_ACTIVE
from holdfast.store.statements import in_array, insert_into
from holdfast.store.tables import (
    agent_blocks,
    agent_tools,
    agents,
    block_tags,
    blocks,
    holds,
    messages,
    runs,
    thread_messages,
    threads,
    tools,
)
from holdfast.store.tools import by_age, of_agent, record_of
from holdfast.store.transaction import Row, Transaction, flag

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_ids = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_rows = msgspec.json.Decoder(list[dict[str, Any]]).decode

_SPECIAL = ("model_settings", "isolated_block_ids", "hidden")
_PLAIN = tuple(name for name in Thread.__struct_fields__ if name not in _SPECIAL)
_OF_BLOCK: tuple[ColumnElement[Any], ...] = (*blocks.c, block_tags.c.tag)
_COLUMNS = [threads.columns[name] for name in Thread.__struct_fields__]
_FIXED = ("id", "agent_id", "created_us")
_CHANGED = tuple(name for name in Thread.__struct_fields__ if name not in _FIXED)


def _named_in_json(column: ColumnElement[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return literal_column(f"'{column.key}'"), column


_this_thread = threads.c.id == bindparam("thread")
_here = thread_messages.c.thread_id == bindparam("thread")
_in_window = thread_messages.c.context_position.is_not(None)
_live = threads.c.deleted_us.is_(None)
_named = threads.c.id != threads.c.agent_id  # an agent's default thread is no conversation

_INSERT = insert_into(threads)
_ONE = select(*_COLUMNS).where(_this_thread, _live)
_LOCKED = select(threads.c.id).where(_this_thread).with_for_update()
_OF_HEAD = (
    *_COLUMNS,
    threads.c.next_position,
    threads.c.system_digest,
    exists().where(runs.c.thread_id == threads.c.id, IS_ACTIVE).label("is_busy"),
    exists().where(holds.c.thread_id == threads.c.id, holds.c.decided_us.is_(None)).label("is_held"),
    exists().where(agent_folders.c.agent_id == threads.c.agent_id).label("has_folders"),
)
# With the agent in the same row: whoever looks at the head of a thread is about to run it.
_HEAD = (
    select(*_OF_HEAD, *(column.label(f"of_agent_{column.name}") for column in AGENT_COLUMNS))
    .join_from(threads, agents, agents.c.id == threads.c.agent_id)
    .where(_this_thread, _live)
)
# With the tools and the blocks of the agent, as text in JSON: fewer round trips for PostgreSQL, where they count.
_TOOLS = (
    select(func.json_agg(func.json_build_object(*(part for column in tools.c for part in _named_in_json(column)))))
    .join_from(agent_tools, tools, tools.c.id == agent_tools.c.tool_id)
    .where(agent_tools.c.agent_id == threads.c.agent_id)
    .correlate(threads)
    .scalar_subquery()
)
_BLOCKS = (
    select(
        func.json_agg(
            aggregate_order_by(
                func.json_build_object(*(part for column in _OF_BLOCK for part in _named_in_json(column))),
                blocks.c.created_us,
                blocks.c.id,
                block_tags.c.tag,
            )
        )
    )
    .join_from(agent_blocks, blocks, blocks.c.id == agent_blocks.c.block_id)
    .outerjoin(block_tags, block_tags.c.block_id == blocks.c.id)
    .where(agent_blocks.c.agent_id == threads.c.agent_id)
    .correlate(threads)
    .scalar_subquery()
)
_HEAD_WITH_TOOLS = _HEAD.add_columns(_TOOLS.label("tools"))
_HEAD_WITH_TOOLS_AND_BLOCKS = _HEAD_WITH_TOOLS.add_columns(_BLOCKS.label("blocks"))
_UPDATE = (
    change(threads)
    .where(_this_thread, _live)
    .values({name: bindparam(f"new_{name}", type_=threads.columns[name].type) for name in _CHANGED})
)
_SOFT_DELETE = change(threads).where(_this_thread, _live).values(deleted_us=bindparam("at_us"))
_other = thread_messages.alias("other")
_owner = threads.alias("owner")
_shared = exists().where(
    _other.c.message_id == messages.c.id,
    _other.c.thread_id != bindparam("thread"),
    _owner.c.id == _other.c.thread_id,
    _owner.c.deleted_us.is_(None),
)
_DELETE_UNSHARED = delete(messages).where(
    messages.c.id.in_(select(thread_messages.c.message_id).where(_here)), ~_shared
)
_FORGET = delete(thread_messages).where(_here)
_reserve = (
    change(threads)
    .where(_this_thread)
    .values(
        next_position=threads.c.next_position + bindparam("count"),
        last_run_completion_us=func.coalesce(
            bindparam("ended_us", type_=BigInteger()), threads.c.last_run_completion_us
        ),
    )
)
_RESERVE = _reserve.returning(threads.c.next_position)
_ends_there = threads.c.next_position == bindparam("end")
_RESERVE_AT = _reserve.where(_ends_there)
_EXTEND = (
    change(threads)
    .where(_this_thread, _ends_there)
    .values(next_position=threads.c.next_position + bindparam("count"), last_message_us=bindparam("at_us"))
)
_PLACE = insert_into(thread_messages)
_WINDOW = (
    select(*MESSAGE_COLUMNS)
    .join(thread_messages, thread_messages.c.message_id == messages.c.id)
    .where(_here, _in_window)
    .order_by(thread_messages.c.context_position)
)
_WINDOW_IDS = select(thread_messages.c.message_id).where(_here, _in_window).order_by(thread_messages.c.context_position)
_WINDOWS = (
    select(thread_messages.c.thread_id, thread_messages.c.message_id)
    .where(in_array(thread_messages.c.thread_id, "threads"), _in_window)
    .order_by(thread_messages.c.thread_id, thread_messages.c.context_position)
)
_WINDOWS_BEFORE_RUNS = _WINDOWS.join(messages, messages.c.id == thread_messages.c.message_id).where(
    messages.c.run_id.is_(None)
)
_NUMBERS = (
    select(messages.c.id, messages.c.seq)
    .join(thread_messages, thread_messages.c.message_id == messages.c.id)
    .where(_here, thread_messages.c.position >= bindparam("first"))
    .order_by(thread_messages.c.position)
)
_NUMBER = change(messages).where(messages.c.id == bindparam("message")).values(seq=bindparam("number"))
_NUMBERED = change(messages).where(in_array(messages.c.id, "ids")).values(seq=-messages.c.seq)
_LAST_PLACE = select(func.max(thread_messages.c.context_position).label("place")).where(
    _here, in_array(thread_messages.c.message_id, "ids")
)
_EVICT = (
    change(thread_messages).where(_here, in_array(thread_messages.c.message_id, "ids")).values(context_position=None)
)
_first_place = (
    select(func.min(thread_messages.c.context_position)).where(_here, _in_window).scalar_subquery().correlate(None)
)
_RESET = (
    change(thread_messages)
    .where(_here, thread_messages.c.context_position > _first_place)
    .values(context_position=None)
)
_SHAREABLE = (
    select(thread_messages.c.message_id)
    .where(_here, thread_messages.c.context_position > _first_place)
    .order_by(thread_messages.c.context_position)
)
_SET_DIGEST = change(threads).where(_this_thread).values(system_digest=bindparam("digest"))
_DIGEST = select(threads.c.system_digest).where(_this_thread)
_COUNT = select(func.count().label("rows")).where(_here)


class ThreadFilter(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str | None = None
    summary_search: str | None = None
    archive_status: Literal["unarchived", "archived", "all"] = "all"
    show_hidden: bool = True


OrderBy = Literal["created_at", "last_run_completion", "last_message_at"]
# A deleted one keeps its place, because its row stays: whoever deletes what they list goes on from there.
_ORDERINGS: dict[OrderBy, Ordering] = {
    "created_at": Ordering(sort=threads.c.created_us, id=threads.c.id, what="Conversation", scope=(_named,)),
    "last_run_completion": Ordering(
        sort=threads.c.last_run_completion_us, id=threads.c.id, what="Conversation", scope=(_named,), nullable=True
    ),
    "last_message_at": Ordering(
        sort=threads.c.last_message_us, id=threads.c.id, what="Conversation", scope=(_named,), nullable=True
    ),
}


async def insert(
    tx: Transaction, thread: Thread, message_ids: Sequence[str] = (), system_digest: str | None = None
) -> None:
    """With these messages as its history and its window."""
    fixed = {name: getattr(thread, name) for name in _FIXED}
    standing = {"next_position": len(message_ids), "system_digest": system_digest}
    await tx.execute_many(_INSERT, [fixed | _changeable(thread) | standing])
    await place(tx, thread.id, list(enumerate(message_ids)))


async def find(tx: Transaction, thread_id: str) -> Thread | None:
    row = await tx.fetch_one(_ONE, {"thread": thread_id})
    return None if row is None else _thread(row)


async def get(tx: Transaction, thread_id: str) -> Thread:
    """A deleted one is not found."""
    thread = await find(tx, thread_id)
    if thread is None:
        raise _unknown(thread_id)
    return thread


async def lock(tx: Transaction, thread_id: str) -> None:
    """Locks the row until the transaction ends: meanwhile no run is accepted on the thread, and none writes to it."""
    await tx.fetch_one(_LOCKED, {"thread": thread_id})


class ThreadHead(msgspec.Struct, frozen=True):
    """A thread, how far it has come, and its agent."""

    thread: Thread
    agent: Agent
    end: int  # the next position in its history
    system_digest: str | None
    is_busy: bool  # a run is at work on it
    is_held: bool  # a run waits for a decision
    has_folders: bool  # its agent


async def head(tx: Transaction, thread_id: str) -> ThreadHead:
    return _head(await tx.fetch_one(_HEAD, {"thread": thread_id}), thread_id)


async def head_with_tools(tx: Transaction, thread_id: str) -> tuple[ThreadHead, list[Tool]]:
    """With those of its agent, oldest first. One statement on PostgreSQL."""
    if tx.dialect == "sqlite":
        found = await head(tx, thread_id)
        return found, await of_agent(tx, found.agent.id)
    row = await tx.fetch_one(_HEAD_WITH_TOOLS, {"thread": thread_id})
    found = _head(row, thread_id)
    assert row is not None
    return found, _tools(row)


async def head_with_tools_and_blocks(tx: Transaction, thread_id: str) -> tuple[ThreadHead, list[Tool], list[Block]]:
    """As `head_with_tools`, with the blocks of the agent, too: what every turn begins with."""
    if tx.dialect == "sqlite":
        found, its_tools = await head_with_tools(tx, thread_id)
        return found, its_tools, await blocks_of_agent(tx, found.agent.id)
    row = await tx.fetch_one(_HEAD_WITH_TOOLS_AND_BLOCKS, {"thread": thread_id})
    found = _head(row, thread_id)
    assert row is not None
    return found, _tools(row), [] if row["blocks"] is None else records_with_tags(_decode_rows(row["blocks"]))


def _tools(row: Row) -> list[Tool]:
    return [] if row["tools"] is None else by_age(record_of(each) for each in _decode_rows(row["tools"]))


def _head(row: Row | None, thread_id: str) -> ThreadHead:
    if row is None:
        raise _unknown(thread_id)
    return ThreadHead(
        _thread(row),
        agent_of(islice(row, len(_OF_HEAD), len(_OF_HEAD) + len(AGENT_COLUMNS))),
        row["next_position"],
        row["system_digest"],
        bool(row["is_busy"]),
        bool(row["is_held"]),
        bool(row["has_folders"]),
    )


async def update(tx: Transaction, thread: Thread) -> None:
    """Store it as it is now; its id, agent and birth do not change."""
    new = {f"new_{name}": value for name, value in _changeable(thread).items()}
    if await tx.execute(_UPDATE, {"thread": thread.id, **new}) == 0:
        raise _unknown(thread.id)


async def list_threads(
    tx: Transaction, filters: ThreadFilter, page: Page, order_by: OrderBy = "created_at"
) -> list[Thread]:
    """Conversations; an agent's default thread is not one. Those that never had the sorted event come last."""
    query = select(*_COLUMNS).where(*_conditions(filters))
    return [_thread(row) for row in await fetch_page(tx, query, _ORDERINGS[order_by], page)]


async def soft_delete(tx: Transaction, thread_id: str, deleted_us: int) -> None:
    """The conversation is gone for every reader, and with it the messages that no other live thread holds."""
    if await tx.execute(_SOFT_DELETE, {"thread": thread_id, "at_us": deleted_us}) == 0:
        raise _unknown(thread_id)
    await tx.execute(_DELETE_UNSHARED, {"thread": thread_id})
    await tx.execute(_FORGET, {"thread": thread_id})


async def reserve(
    tx: Transaction, thread_id: str, count: int, ended_us: int | None = None, *, end: int | None = None
) -> int:
    """Set aside `count` positions at the end and give the first. `ended_us`: when a run of the thread ended with this.
    `end`: where its history ends, as far as is known. If it does, PostgreSQL is told with what follows, not asked.

    Positions are an order and not a count: one that stays unused is a gap, which no reader can see (decision 5).
    """
    given = {"thread": thread_id, "count": count, "ended_us": ended_us}
    if end is not None and await tx.execute_one(_RESERVE_AT, {**given, "end": end}):
        return end
    row = await tx.fetch_one(_RESERVE, given)
    if row is None:
        raise _unknown(thread_id)
    return row["next_position"] - count


async def extend(
    tx: Transaction, thread_id: str, end: int, count: int, at_us: int, *, otherwise: HoldfastError
) -> None:
    """Set aside `count` positions for messages that have come in. Raises `otherwise` unless its history still ends at
    `end`.

    An optimistic lock. `next_position` only grows, and every change of the window moves it, so an equal value means
    that nobody has changed the thread since it was read (decision 11).
    """
    if not await tx.execute_one(_EXTEND, {"thread": thread_id, "end": end, "count": count, "at_us": at_us}):
        raise otherwise


async def place(tx: Transaction, thread_id: str, places: Sequence[tuple[int, str]]) -> None:
    """Put messages at positions that were set aside in the same transaction, in history and in the window."""
    await tx.execute_many(_PLACE, [_placed(thread_id, position, each, position) for position, each in places])


async def place_outside(tx: Transaction, thread_id: str, places: Sequence[tuple[int, str]]) -> None:
    """As `place`, in history alone: messages that had left the window before they came here."""
    await tx.execute_many(_PLACE, [_placed(thread_id, position, each, None) for position, each in places])


async def place_reserved(tx: Transaction, thread_id: str, places: Sequence[tuple[int, str]]) -> None:
    """Put messages at positions that were set aside earlier, for what follows an approval (decision 5). The end moves
    too, as with every change of the window, because other processes may have cached the window (decision 11)."""
    await place(tx, thread_id, places)
    await reserve(tx, thread_id, 1)
    await _number_by_position(tx, thread_id, min(position for position, _ in places))


async def _number_by_position(tx: Transaction, thread_id: str, first: int) -> None:
    """Lists over several threads are sorted by `seq`. A row that fills a reserved position was inserted later than rows
    after it, so the numbers of all of them are dealt out again in the order of their positions (decision 5)."""
    rows = await tx.fetch_all(_NUMBERS, {"thread": thread_id, "first": first})
    numbers = sorted(row["seq"] for row in rows)
    moved = [
        {"message": row["id"], "number": -number}
        for row, number in zip(rows, numbers, strict=True)
        if row["seq"] != number
    ]
    await tx.execute_many(_NUMBER, moved)  # below zero, where none is taken
    await tx.execute(_NUMBERED, {"ids": [each["message"] for each in moved]})


async def append(tx: Transaction, thread_id: str, message_ids: Sequence[str]) -> int:
    """At the end of history and of the window; gives the first position."""
    first = await reserve(tx, thread_id, len(message_ids))
    await place(tx, thread_id, list(enumerate(message_ids, first)))
    return first


async def window(tx: Transaction, thread_id: str) -> list[Message]:
    return [message_of(row) for row in await tx.fetch_all(_WINDOW, {"thread": thread_id})]


async def window_ids(tx: Transaction, thread_id: str) -> list[str]:
    return [row["message_id"] for row in await tx.fetch_all(_WINDOW_IDS, {"thread": thread_id})]


async def windows_ids(tx: Transaction, thread_ids: Sequence[str], *, of_runs: bool = True) -> dict[str, list[str]]:
    """The windows of many threads in one query, for lists; without the rows of runs unless `of_runs`."""
    found: dict[str, list[str]] = {thread_id: [] for thread_id in thread_ids}
    for row in await tx.fetch_all(_WINDOWS if of_runs else _WINDOWS_BEFORE_RUNS, {"threads": list(thread_ids)}):
        found[row["thread_id"]].append(row["message_id"])
    return found


async def replace_window(
    tx: Transaction, thread_id: str, evicted_ids: Sequence[str], summary_id: str | None = None
) -> None:
    """Take messages out of the window. The summary, already inserted but in no thread yet, joins the end of history
    and stands in the window where the last of them stood."""
    where = {"thread": thread_id, "ids": list(evicted_ids)}
    last = await tx.fetch_one(_LAST_PLACE, where)
    place_ = last["place"] if last else None
    if place_ is None:
        raise BugError(f"None of the messages to evict is in the window of {thread_id}")
    await tx.execute(_EVICT, where)
    position = await reserve(tx, thread_id, 1)
    if summary_id is not None:
        await tx.execute(_PLACE, _placed(thread_id, position, summary_id, place_))


async def reset_window(tx: Transaction, thread_id: str) -> None:
    """Keep the first message, which is the system's."""
    await tx.execute(_RESET, {"thread": thread_id})
    await reserve(tx, thread_id, 1)


async def fork(tx: Transaction, source_id: str, target_id: str, until_message_id: str | None = None) -> int:
    """Append the source's window after its system message to the target, sharing the rows; gives how many.

    With `until_message_id` the copy ends with that message. The source is locked: whoever deletes it meanwhile would
    not see that its messages are shared now.
    """
    await lock(tx, source_id)
    shared = [row["message_id"] for row in await tx.fetch_all(_SHAREABLE, {"thread": source_id})]
    if until_message_id is not None:
        if until_message_id not in shared:
            raise NotFound(f"Message {until_message_id} not found")
        shared = shared[: shared.index(until_message_id) + 1]
    await append(tx, target_id, shared)
    return len(shared)


async def system_digest(tx: Transaction, thread_id: str) -> str | None:
    row = await tx.fetch_one(_DIGEST, {"thread": thread_id})
    return row["system_digest"] if row else None


async def set_system_digest(tx: Transaction, thread_id: str, digest: str) -> None:
    await tx.execute(_SET_DIGEST, {"thread": thread_id, "digest": digest})


async def count_messages(tx: Transaction, thread_id: str) -> int:
    """All of its history, in the window or not."""
    row = await tx.fetch_one(_COUNT, {"thread": thread_id})
    return row["rows"] if row else 0


def _unknown(thread_id: str) -> NotFound:
    # An agent's own history is missing only when the agent is.
    return NotFound("Agent not found" if ids.is_id("agent", thread_id) else f"Conversation {thread_id} not found")


def _placed(thread_id: str, position: int, message_id: str, context_position: int | None) -> dict[str, Any]:
    return {
        "thread_id": thread_id,
        "position": position,
        "message_id": message_id,
        "context_position": context_position,
    }


def _conditions(filters: ThreadFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [_live, _named]
    if filters.agent_id is not None:
        found.append(threads.c.agent_id == filters.agent_id)
    if filters.summary_search:
        found.append(threads.c.summary.icontains(filters.summary_search, autoescape=True))
    if filters.archive_status != "all":
        archived = threads.c.archived_us.is_not(None)
        found.append(archived if filters.archive_status == "archived" else ~archived)
    if not filters.show_hidden:
        found.append(threads.c.hidden.is_not(True))
    return found


def _changeable(thread: Thread) -> dict[str, Any]:
    plain = {name: getattr(thread, name) for name in _CHANGED if name not in _SPECIAL}
    return plain | {
        "model_settings": None if thread.model_settings is None else _encode(thread.model_settings).decode(),
        "isolated_block_ids": _encode(thread.isolated_block_ids).decode(),
        "hidden": thread.hidden,
    }


def _thread(row: Row) -> Thread:
    return Thread(
        **{name: row[name] for name in _PLAIN},
        model_settings=None if row["model_settings"] is None else _decode_object(row["model_settings"]),
        isolated_block_ids=_decode_ids(row["isolated_block_ids"]),
        hidden=flag(row["hidden"]),
    )

"""What agents see of the files in their folders: which are open, and from which line to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, bindparam, delete, func, select, update

from holdfast import ids
from holdfast.core.records import AgentFile
from holdfast.store.archive_tables import agent_files, files, folders
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Row, Transaction

_COLUMNS: list[ColumnElement[Any]] = [
    agent_files.c.id,
    agent_files.c.agent_id,
    agent_files.c.file_id,
    files.c.folder_id,
    folders.c.name.label("folder_name"),
    files.c.name,
    files.c.status,
    files.c.error,
    files.c.lines,
    agent_files.c.is_open,
    agent_files.c.first_line,
    agent_files.c.last_line,
    agent_files.c.accessed_us,
    agent_files.c.created_us,
]
_ALL = (
    select(*_COLUMNS)
    .join(files, files.c.id == agent_files.c.file_id)
    .join(folders, folders.c.id == files.c.folder_id)
    .where(files.c.deleted_us.is_(None), folders.c.deleted_us.is_(None))
)
_OF_AGENT = _ALL.where(agent_files.c.agent_id == bindparam("agent_id")).order_by(
    agent_files.c.is_open.desc(), folders.c.created_us, folders.c.id, files.c.name
)
_SOME_OF_AGENT = _OF_AGENT.limit(bindparam("at_most", type_=BigInteger()))
_COUNTS = (
    select(files.c.folder_id, func.count().label("found"))
    .join(agent_files, agent_files.c.file_id == files.c.id)
    .where(agent_files.c.agent_id == bindparam("agent_id"), files.c.deleted_us.is_(None))
    .group_by(files.c.folder_id)
)
_ONE = _ALL.where(agent_files.c.agent_id == bindparam("agent_id"), agent_files.c.file_id == bindparam("file_id"))
_OPEN = _ALL.where(agent_files.c.agent_id == bindparam("agent_id"), agent_files.c.is_open).order_by(
    agent_files.c.accessed_us, agent_files.c.id
)
_ADD = insert_or_ignore(agent_files)
_ADD_SEEN = insert_into(agent_files)
_FILES_OF_FOLDER = (
    select(files.c.id)
    .where(files.c.folder_id == bindparam("folder_id"), files.c.deleted_us.is_(None))
    .order_by(files.c.created_us, files.c.id)
)
_REMOVE = delete(agent_files).where(
    agent_files.c.agent_id == bindparam("agent_id"),
    agent_files.c.file_id.in_(select(files.c.id).where(files.c.folder_id == bindparam("folder_id"))),
)
_REMOVE_FILE = (
    delete(agent_files)
    .where(agent_files.c.file_id == bindparam("file_id"))
    .returning(agent_files.c.id, agent_files.c.agent_id, agent_files.c.created_us)
)
_SHOW = (
    update(agent_files)
    .where(agent_files.c.agent_id == bindparam("of_agent"), agent_files.c.file_id == bindparam("of_file"))
    .values(
        is_open=True,
        first_line=bindparam("new_first"),
        last_line=bindparam("new_last"),
        accessed_us=bindparam("now_us"),
    )
)
_CLOSE = (
    update(agent_files)
    .where(
        agent_files.c.agent_id == bindparam("of_agent"), in_array(agent_files.c.file_id, "ids"), agent_files.c.is_open
    )
    .values(is_open=False, first_line=None, last_line=None)
)
_NEWEST_ACCESS = select(func.max(agent_files.c.accessed_us).label("us")).where(
    agent_files.c.agent_id == bindparam("agent_id")
)


class Window(msgspec.Struct, frozen=True):
    """The lines of a file that are to be shown, from 1. None: from its beginning, to its end."""

    file_id: str
    first_line: int | None = None
    last_line: int | None = None


class SeenWindow(msgspec.Struct, frozen=True):
    window: Window
    is_open: bool
    accessed_us: int | None


async def of_agent(tx: Transaction, agent_id: str, at_most: int | None = None) -> list[AgentFile]:
    """In the order of folders, then of names. If there are more than `at_most`, open ones are not left out."""
    if at_most is None:
        rows = await tx.fetch_all(_OF_AGENT, {"agent_id": agent_id})
    else:
        rows = await tx.fetch_all(_SOME_OF_AGENT, {"agent_id": agent_id, "at_most": at_most})
    return sorted(map(_record, rows), key=lambda file: (file.folder_id, file.name))


async def count_hidden(tx: Transaction, agent_id: str, listed: Sequence[AgentFile]) -> dict[str, int]:
    """By folder: how many files the agent has beside these."""
    seen = Counter(file.folder_id for file in listed)
    counts = await tx.fetch_all(_COUNTS, {"agent_id": agent_id})
    return {row["folder_id"]: row["found"] - seen[row["folder_id"]] for row in counts}


async def find(tx: Transaction, agent_id: str, file_id: str) -> AgentFile | None:
    row = await tx.fetch_one(_ONE, {"agent_id": agent_id, "file_id": file_id})
    return None if row is None else _record(row)


async def list_files(tx: Transaction, agent_id: str, page: Page, is_open: bool | None) -> list[AgentFile]:
    query = _ALL.where(agent_files.c.agent_id == agent_id)
    if is_open is not None:
        query = query.where(agent_files.c.is_open == is_open)
    return [_record(row) for row in await fetch_page(tx, query, _by_age(agent_id), page)]


async def add_folder(tx: Transaction, agent_id: str, folder_id: str, now_us: int) -> list[str]:
    """The ids of its files, oldest first."""
    found = [row["id"] for row in await tx.fetch_all(_FILES_OF_FOLDER, {"folder_id": folder_id})]
    await _add(tx, [(agent_id, file_id) for file_id in found], now_us)
    return found


async def add_file(tx: Transaction, agent_ids: Sequence[str], file_id: str, now_us: int) -> None:
    await _add(tx, [(agent_id, file_id) for agent_id in agent_ids], now_us)


async def _add(tx: Transaction, pairs: Sequence[tuple[str, str]], now_us: int) -> None:
    rows = [_new(agent_id, file_id, now_us + place) for place, (agent_id, file_id) in enumerate(pairs)]
    if rows:
        await tx.execute_many(_ADD, rows)


async def add_seen(tx: Transaction, agent_id: str, seen: Sequence[SeenWindow], now_us: int) -> None:
    """Files that the agent does not have yet, as it is to see them, in this order."""
    rows = [
        {
            **_new(agent_id, each.window.file_id, now_us + place),
            "is_open": each.is_open,
            "first_line": each.window.first_line,
            "last_line": each.window.last_line,
            "accessed_us": each.accessed_us,
        }
        for place, each in enumerate(seen)
    ]
    if rows:
        await tx.execute_many(_ADD_SEEN, rows)


async def remove_folder(tx: Transaction, agent_id: str, folder_id: str) -> None:
    await tx.execute(_REMOVE, {"folder_id": folder_id, "agent_id": agent_id})


async def remove_file(tx: Transaction, file_id: str) -> None:
    """From every agent."""
    for row in await tx.fetch_all(_REMOVE_FILE, {"file_id": file_id}):
        await save_tombstone(tx, row, (_by_age(row["agent_id"]),))


async def show(
    tx: Transaction, agent_id: str, windows: Sequence[Window], most_open: int, now_us: int
) -> list[AgentFile]:
    """Opens them, and closes those that were not opened for longest as far as there is no room: these are returned.
    The agent's row must be locked."""
    opened = {window.file_id for window in windows}
    others = [file for file in await open_files(tx, agent_id) if file.file_id not in opened]
    row = await tx.fetch_one(_NEWEST_ACCESS, {"agent_id": agent_id})
    # Clocks may be set back: what is opened now is the newest all the same.
    now_us = max(now_us, ((row["us"] if row else None) or 0) + 1)
    await tx.execute_many(
        _SHOW,
        [
            {
                "of_agent": agent_id,
                "of_file": window.file_id,
                "new_first": window.first_line,
                "new_last": window.last_line,
                "now_us": now_us + place,
            }
            for place, window in enumerate(windows)
        ],
    )
    closed = others[: max(0, len(others) + len(opened) - most_open)]
    await close(tx, agent_id, [file.file_id for file in closed])
    return closed


async def open_files(tx: Transaction, agent_id: str) -> list[AgentFile]:
    """Those that were not opened for longest come first."""
    return [_record(row) for row in await tx.fetch_all(_OPEN, {"agent_id": agent_id})]


async def close(tx: Transaction, agent_id: str, file_ids: Collection[str]) -> None:
    if file_ids:
        await tx.execute(_CLOSE, {"of_agent": agent_id, "ids": list(file_ids)})


def _by_age(agent_id: str) -> Ordering:
    return Ordering(
        sort=agent_files.c.created_us,
        id=agent_files.c.id,
        what="File",
        scope=(agent_files.c.agent_id == agent_id,),
        within=agent_id,
    )


def _new(agent_id: str, file_id: str, now_us: int) -> dict[str, Any]:
    return {
        "id": ids.derive("file_agent", agent_id, file_id, now_us),
        "agent_id": agent_id,
        "file_id": file_id,
        "is_open": False,
        "created_us": now_us,
    }


def _record(row: Row) -> AgentFile:
    values: dict[str, Any] = {name: row[name] for name in AgentFile.__struct_fields__}
    values["is_open"] = bool(values["is_open"])
    return AgentFile(**values)

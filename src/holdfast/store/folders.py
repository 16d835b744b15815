"""Folders, and the agents that use them.

A deletion marks a folder: from then on nobody sees it or its files. They go in parts afterwards (`files.clear`), so
that other writes get in between, and the folder with the last of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, select, update

from holdfast.core.changes import Change
from holdfast.core.records import Archive, Folder
from holdfast.errors import Conflict, NotFound
from holdfast.store import archives as archive_rows
from holdfast.store.archive_tables import agent_folders, archives, files, folders
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

_FIELDS = Folder.__struct_fields__
_COLUMNS = tuple(folders.columns[name] for name in _FIELDS)
_CHANGEABLE = ("name", "description", "instructions", "metadata", "embedding", "embedding_config", "updated_us")
_BY_AGE = Ordering(sort=folders.c.created_us, id=folders.c.id, what="Folder")
_LIVE = folders.c.deleted_us.is_(None)
_INSERT = insert_into(folders)
_INSERT_IF_FREE = insert_or_ignore(folders)
_ONE = select(*_COLUMNS).where(folders.c.id == bindparam("id"), _LIVE)
_ONE_KEPT = _ONE.with_for_update(read=True, key_share=True)
_ONE_LOCKED = _ONE.with_for_update()
_MANY_KEPT = select(*_COLUMNS).where(in_array(folders.c.id, "ids"), _LIVE).with_for_update(read=True, key_share=True)
_NAMED = select(folders.c.id).where(
    folders.c.organization_id == bindparam("organization_id"), folders.c.name == bindparam("name"), _LIVE
)
_COUNT = select(func.count().label("found")).select_from(folders).where(_LIVE)
_PAIRS = (
    select(agent_folders.c.agent_id, *_COLUMNS)
    .join(folders, folders.c.id == agent_folders.c.folder_id)
    .where(in_array(agent_folders.c.agent_id, "ids"), _LIVE)
    .order_by(folders.c.created_us, folders.c.id)
)
_UPDATE = (
    update(folders)
    .where(folders.c.id == bindparam("of_folder"))
    .values({folders.columns[name]: bindparam(f"new_{name}") for name in _CHANGEABLE})
)
_MARK = update(folders).where(folders.c.id == bindparam("of_folder")).values(deleted_us=bindparam("now_us"))
_MARKED = select(folders.c.id).where(folders.c.deleted_us.is_not(None))
_DELETE = delete(folders).where(folders.c.id == bindparam("id"), folders.c.deleted_us.is_not(None))
_DELETE_ARCHIVE = delete(archives).where(archives.c.id == bindparam("id"))
_ATTACH = insert_or_ignore(agent_folders)
_DETACH = delete(agent_folders).where(
    agent_folders.c.agent_id == bindparam("agent_id"), agent_folders.c.folder_id == bindparam("folder_id")
)
_DETACH_ALL = delete(agent_folders).where(agent_folders.c.folder_id == bindparam("folder_id"))
_USERS = (
    select(agent_folders.c.agent_id)
    .where(agent_folders.c.folder_id == bindparam("folder_id"))
    .order_by(agent_folders.c.agent_id)
)
_FILES = (
    select(folders.c.id.label("folder_id"), folders.c.name.label("folder_name"), files.c.id, files.c.name, files.c.size)
    .outerjoin(files, (files.c.folder_id == folders.c.id) & files.c.deleted_us.is_(None))
    .where(_LIVE)
    .order_by(folders.c.created_us, folders.c.id, files.c.created_us, files.c.id)
)


class FileSize(msgspec.Struct, frozen=True):
    id: str
    name: str
    size: int


class FolderSizes(msgspec.Struct, frozen=True):
    id: str
    name: str
    files: list[FileSize]


async def insert(tx: Transaction, folder: Folder) -> None:
    """A name that another folder has raises IntegrityError."""
    await archive_rows.insert(tx, Archive(id=folder.id, name=folder.id, created_us=folder.created_us))
    await tx.execute(_INSERT, _row(folder))


async def insert_under(tx: Transaction, folder: Folder, names: Iterable[str]) -> Folder:
    """Under the first of these names that no folder has."""
    await archive_rows.insert(tx, Archive(id=folder.id, name=folder.id, created_us=folder.created_us))
    for name in names:
        named = msgspec.structs.replace(folder, name=name)
        if await tx.execute(_INSERT_IF_FREE, _row(named)) == 1:
            return named
    raise Conflict(f"There are too many folders with the name {folder.name!r}.")


async def get(tx: Transaction, folder_id: str, *, lock: bool = False, keep: bool = False) -> Folder:
    """`keep` holds off its deletion until the transaction ends, for rows that will refer to it; `lock` any change."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE_KEPT if keep else _ONE, {"id": folder_id})
    if row is None:
        raise NotFound(f"Folder {folder_id} not found")
    return _record(row)


async def find_many(tx: Transaction, folder_ids: Collection[str]) -> dict[str, Folder]:
    """Kept from deletion until the transaction ends, because they are looked up to be attached."""
    return {row["id"]: _record(row) for row in await tx.fetch_all(_MANY_KEPT, {"ids": list(folder_ids)})}


async def find_named(tx: Transaction, organization_id: str, name: str) -> str | None:
    row = await tx.fetch_one(_NAMED, {"organization_id": organization_id, "name": name})
    return None if row is None else row["id"]


async def list_folders(
    tx: Transaction, page: Page, name: str | None = None, agent_id: str | None = None
) -> list[Folder]:
    query = select(*_COLUMNS).where(_LIVE)
    if name is not None:
        query = query.where(folders.c.name == name)
    if agent_id is not None:
        attached = select(agent_folders.c.folder_id).where(agent_folders.c.agent_id == agent_id)
        query = query.where(folders.c.id.in_(attached))
    return [_record(row) for row in await fetch_page(tx, query, _BY_AGE, page)]


async def count_folders(tx: Transaction) -> int:
    row = await tx.fetch_one(_COUNT)
    return row["found"] if row else 0


async def sizes(tx: Transaction) -> list[FolderSizes]:
    """Of all folders and their files. It may take long: use `read_long`."""
    found: dict[str, FolderSizes] = {}
    for row in await tx.fetch_all(_FILES):
        folder = found.setdefault(row["folder_id"], FolderSizes(row["folder_id"], row["folder_name"], []))
        if row["id"] is not None:
            folder.files.append(FileSize(row["id"], row["name"], row["size"]))
    return list(found.values())


async def of_agent(tx: Transaction, agent_id: str) -> list[Folder]:
    """Oldest first."""
    return (await of_agents(tx, (agent_id,))).get(agent_id, [])


async def of_agents(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[Folder]]:
    found: dict[str, list[Folder]] = {}
    for row in await tx.fetch_all(_PAIRS, {"ids": list(agent_ids)}):
        found.setdefault(row["agent_id"], []).append(_record(row))
    return found


async def update_folder(tx: Transaction, folder: Folder) -> None:
    """A name that another folder has raises IntegrityError."""
    row = _row(folder)
    await tx.execute(_UPDATE, {"of_folder": folder.id, **{f"new_{name}": row[name] for name in _CHANGEABLE}})


async def attach(tx: Transaction, agent_id: str, folder_id: str) -> bool:
    """False when it was attached already."""
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))
    return await tx.execute(_ATTACH, {"agent_id": agent_id, "folder_id": folder_id}) == 1


async def detach(tx: Transaction, agent_id: str, folder_id: str) -> bool:
    """False when it was not attached."""
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))
    return await tx.execute(_DETACH, {"agent_id": agent_id, "folder_id": folder_id}) == 1


async def agents_of(tx: Transaction, folder_id: str) -> list[str]:
    return [row["agent_id"] for row in await tx.fetch_all(_USERS, {"folder_id": folder_id})]


async def mark_deleted(tx: Transaction, folder_id: str, now_us: int) -> None:
    """No agent has it from then on. To be followed by `clear_folder` of `engine/retention.py`."""
    row = await tx.fetch_one(_ONE_LOCKED, {"id": folder_id})
    if row is None:
        raise NotFound(f"Folder {folder_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))
    await tx.execute(_MARK, {"of_folder": folder_id, "now_us": now_us})
    await tx.execute(_DETACH_ALL, {"folder_id": folder_id})


async def marked_deleted(tx: Transaction) -> list[str]:
    """The ids of those that are being deleted."""
    return [row["id"] for row in await tx.fetch_all(_MARKED)]


async def delete_marked(tx: Transaction, folder_id: str) -> None:
    """Once nothing is in it any more."""
    if await tx.execute(_DELETE, {"id": folder_id}):
        await tx.execute(_DELETE_ARCHIVE, {"id": folder_id})


def _row(folder: Folder) -> dict[str, Any]:
    row = msgspec.structs.asdict(folder)
    for name in ("metadata", "embedding_config"):
        row[name] = None if row[name] is None else _encode(row[name]).decode()
    return row


def _record(row: Row) -> Folder:
    values = {name: row[name] for name in _FIELDS}
    for name in ("metadata", "embedding_config"):
        values[name] = None if values[name] is None else _decode(values[name])
    return Folder(**values)

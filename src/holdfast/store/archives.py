"""Archives and the agents that use them.

A large archive takes long to delete. So a deletion only marks it: from then on nobody sees it or its passages. They go
in parts afterwards, so that other writes get in between, and the archive with the last of them.

A folder has a row here too, for its chunks (`archive_tables`). Nothing here finds it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, and_, bindparam, delete, select, update

from holdfast.core.records import Archive
from holdfast.errors import Conflict, NotFound
from holdfast.store.archive_tables import agent_archives, archives, folders, passages
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

_BY_AGE = Ordering(sort=archives.c.created_us, id=archives.c.id, what="Archive")
_INSERT = insert_into(archives)
PASSAGES_AT_ONCE: Final = 500
_LIVE = and_(archives.c.deleted_us.is_(None), archives.c.id.not_in(select(folders.c.id)))
_TAKEN = select(archives.c.id).where(archives.c.id == bindparam("id"))
_ONE = select(archives).where(archives.c.id == bindparam("id"), _LIVE)
_ONE_KEPT = _ONE.with_for_update(read=True, key_share=True)
_ONE_LOCKED = _ONE.with_for_update()
_MANY = select(archives).where(in_array(archives.c.id, "ids"), _LIVE).order_by(archives.c.created_us, archives.c.id)
_WITH_MODEL = select(archives).where(archives.c.embedding.is_not(None), _LIVE)
_OF_AGENT = (
    select(archives)
    .join(agent_archives, agent_archives.c.archive_id == archives.c.id)
    .where(agent_archives.c.agent_id == bindparam("agent_id"), _LIVE)
)
_OF_AGENT_KEPT = _OF_AGENT.with_for_update(read=True, key_share=True, of=archives)
_UPDATE = (
    update(archives)
    .where(archives.c.id == bindparam("of_archive"))
    .values(
        name=bindparam("new_name"), description=bindparam("new_description"), updated_us=bindparam("new_updated_us")
    )
)
_MARK = update(archives).where(archives.c.id == bindparam("of_archive")).values(deleted_us=bindparam("now_us"))
_MARKED = select(archives.c.id).where(archives.c.deleted_us.is_not(None))
_DELETE_PASSAGES = delete(passages).where(
    passages.c.seq.in_(
        select(passages.c.seq)
        .where(passages.c.archive_id == bindparam("id"))
        .limit(bindparam("at_most", type_=BigInteger()))
    )
)
_ANY_PASSAGE = select(passages.c.id).where(passages.c.archive_id == bindparam("id")).limit(1)
_DELETE_MARKED = delete(archives).where(archives.c.id == bindparam("id"), archives.c.deleted_us.is_not(None))
_ATTACH = insert_or_ignore(agent_archives)
_ATTACHED = select(agent_archives.c.archive_id).where(agent_archives.c.agent_id == bindparam("agent_id"))
_DETACH = delete(agent_archives).where(
    agent_archives.c.agent_id == bindparam("agent_id"), agent_archives.c.archive_id == bindparam("archive_id")
)
_USERS = select(agent_archives.c.agent_id).where(agent_archives.c.archive_id == bindparam("archive_id"))
_DETACH_ALL = delete(agent_archives).where(agent_archives.c.archive_id == bindparam("archive_id"))
_OWN = select(agent_archives.c.archive_id).where(
    agent_archives.c.agent_id == bindparam("agent_id"), agent_archives.c.is_owner
)


async def insert(tx: Transaction, archive: Archive) -> None:
    row = msgspec.structs.asdict(archive)
    config = archive.embedding_config
    await tx.execute(_INSERT, row | {"embedding_config": None if config is None else _encode(config).decode()})


async def is_taken(tx: Transaction, archive_id: str) -> bool:
    """Also by an archive that is being deleted."""
    return await tx.fetch_one(_TAKEN, {"id": archive_id}) is not None


async def get(tx: Transaction, archive_id: str, *, keep: bool = False) -> Archive:
    """`keep` holds off its deletion until the transaction ends, for rows that will refer to it."""
    row = await tx.fetch_one(_ONE_KEPT if keep else _ONE, {"id": archive_id})
    if row is None:
        raise NotFound(f"Archive {archive_id} not found")
    return _record(row)


async def find_many(tx: Transaction, archive_ids: Collection[str]) -> list[Archive]:
    return [_record(row) for row in await tx.fetch_all(_MANY, {"ids": list(archive_ids)})]


async def with_model(tx: Transaction) -> list[Archive]:
    return [_record(row) for row in await tx.fetch_all(_WITH_MODEL)]


async def of_agent(tx: Transaction, agent_id: str, *, keep: bool = False) -> Archive | None:
    row = await tx.fetch_one(_OF_AGENT_KEPT if keep else _OF_AGENT, {"agent_id": agent_id})
    return None if row is None else _record(row)


async def list_archives(tx: Transaction, page: Page, name: str | None, agent_id: str | None) -> list[Archive]:
    query = select(archives).where(_LIVE)
    if name is not None:
        query = query.where(archives.c.name == name)
    if agent_id is not None:
        attached = select(agent_archives.c.archive_id).where(agent_archives.c.agent_id == agent_id)
        query = query.where(archives.c.id.in_(attached))
    return [_record(row) for row in await fetch_page(tx, query, _BY_AGE, page)]


async def update_archive(tx: Transaction, archive: Archive) -> None:
    changed = {
        "new_name": archive.name,
        "new_description": archive.description,
        "new_updated_us": archive.updated_us,
    }
    await tx.execute(_UPDATE, {"of_archive": archive.id, **changed})


async def mark_deleted(tx: Transaction, archive_id: str, now_us: int) -> None:
    """The agents that used it have none from then on. To be followed by `clear`."""
    row = await tx.fetch_one(_ONE_LOCKED, {"id": archive_id})
    if row is None:
        raise NotFound(f"Archive {archive_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))
    await tx.execute(_MARK, {"of_archive": archive_id, "now_us": now_us})
    await tx.execute(_DETACH_ALL, {"archive_id": archive_id})


async def mark_own_deleted(tx: Transaction, agent_id: str, now_us: int) -> str | None:
    """The archive that was made for the agent, unless others use it too: then None."""
    own = await tx.fetch_one(_OWN, {"agent_id": agent_id})
    if own is None:
        return None
    archive_id: str = own["archive_id"]
    # A transaction that attaches the archive holds a lock on this row. Wait for it: only a statement that begins after
    # its commit sees what it has attached.
    await tx.fetch_one(_ONE_LOCKED, {"id": archive_id})
    if await agents_of(tx, archive_id) != [agent_id]:
        return None
    await mark_deleted(tx, archive_id, now_us)
    return archive_id


async def marked_deleted(tx: Transaction) -> list[str]:
    """The ids of those that are being deleted."""
    return [row["id"] for row in await tx.fetch_all(_MARKED)]


async def clear(tx: Transaction, archive_id: str) -> bool:
    """Deletes some passages of a marked archive, or the archive once it has none: then it says True."""
    await tx.execute(_DELETE_PASSAGES, {"id": archive_id, "at_most": PASSAGES_AT_ONCE})
    if await tx.fetch_one(_ANY_PASSAGE, {"id": archive_id}) is not None:
        return False
    await tx.execute(_DELETE_MARKED, {"id": archive_id})
    return True


async def attach(tx: Transaction, agent_id: str, archive_id: str, *, is_owner: bool = False) -> None:
    """Attaching twice is attaching once; a second archive is refused."""
    row = {"agent_id": agent_id, "archive_id": archive_id, "is_owner": is_owner}
    if await tx.execute(_ATTACH, row):
        return
    attached = await tx.fetch_one(_ATTACHED, {"agent_id": agent_id})
    if attached is not None and attached["archive_id"] != archive_id:
        raise Conflict(
            f"The agent {agent_id} already has the archive {attached['archive_id']}; an agent has at most one. "
            "Detach that first."
        )


async def detach(tx: Transaction, agent_id: str, archive_id: str) -> None:
    """Also when it is not attached."""
    await tx.execute(_DETACH, {"agent_id": agent_id, "archive_id": archive_id})


async def agents_of(tx: Transaction, archive_id: str) -> list[str]:
    return [row["agent_id"] for row in await tx.fetch_all(_USERS, {"archive_id": archive_id})]


def _record(row: Row) -> Archive:
    config = row["embedding_config"]
    return Archive(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        embedding=row["embedding"],
        embedding_config=None if config is None else _decode(config),
        created_us=row["created_us"],
        updated_us=row["updated_us"],
    )

"""Identities, and the agents and blocks that belong to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Column, ColumnElement, Select, Table, bindparam, delete, func, select, update

from holdfast import ids
from holdfast.core.records import Identity
from holdfast.errors import NotFound
from holdfast.store.group_tables import identities, identity_agents, identity_blocks
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[dict[str, Any], ...]).decode


class IdentityFilter(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    project_id: str | None = None
    identifier_key: str | None = None
    identity_type: str | None = None


class Relation:
    """What belongs to identities, agents or blocks: the statements over the table that says so."""

    def __init__(self, table: Table, owned: Column[str]) -> None:
        owner: Column[str] = table.c.identity_id
        self.name: str = owned.name
        self.add = insert_or_ignore(table)
        self.remove = delete(table).where(owner == bindparam("identity_id"), owned == bindparam(self.name))
        self.remove_owned = delete(table).where(owner == bindparam("identity_id"))
        self.remove_owners = delete(table).where(owned == bindparam(self.name))
        self.owned = select(table).where(in_array(owner, "ids")).order_by(owner, owned)
        self.owners = select(table).where(in_array(owned, "ids")).order_by(owned, owner)


AGENTS: Final = Relation(identity_agents, identity_agents.c.agent_id)
BLOCKS: Final = Relation(identity_blocks, identity_blocks.c.block_id)

_NO_PROJECT: Final = ""
_BY_AGE = Ordering(sort=identities.c.created_us, id=identities.c.id, what="Identity")
_ONE = select(identities).where(identities.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_MANY = select(identities).where(in_array(identities.c.id, "ids")).order_by(identities.c.created_us, identities.c.id)
_MANY_KEPT = _MANY.with_for_update(read=True, key_share=True)
_BY_KEY_LOCKED = (
    select(identities)
    .where(
        identities.c.organization_id == ids.DEFAULT_ORG,
        identities.c.project_id == bindparam("project"),
        identities.c.identifier_key == bindparam("key"),
    )
    .with_for_update()
)
_INSERT = insert_into(identities)
_INSERT_IF_FREE = insert_or_ignore(identities)
_CHANGING = ("identifier_key", "name", "identity_type", "properties", "updated_us")
_UPDATE = (
    update(identities)
    .where(identities.c.id == bindparam("of_identity"))
    .values({name: bindparam(f"new_{name}") for name in _CHANGING})
)
_DELETE = (
    delete(identities).where(identities.c.id == bindparam("id")).returning(identities.c.id, identities.c.created_us)
)


async def insert(tx: Transaction, identity: Identity) -> None:
    """Raises IntegrityError when its key is taken. Its agents and blocks are written apart."""
    await tx.execute(_INSERT, _columns(identity))


async def insert_unless_taken(tx: Transaction, identity: Identity) -> bool:
    """False when there is one with its key."""
    return await tx.execute(_INSERT_IF_FREE, _columns(identity)) == 1


async def get(tx: Transaction, identity_id: str, *, lock: bool = False) -> Identity:
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": identity_id})
    if row is None:
        raise NotFound(f"Identity {identity_id} not found")
    return (await _records(tx, (row,)))[0]


async def find_by_key(tx: Transaction, identifier_key: str, project_id: str | None) -> Identity | None:
    """Locked, for the change that is to follow."""
    row = await tx.fetch_one(_BY_KEY_LOCKED, {"project": project_id or _NO_PROJECT, "key": identifier_key})
    return None if row is None else (await _records(tx, (row,)))[0]


async def find_many(tx: Transaction, identity_ids: Collection[str], *, keep: bool = False) -> dict[str, Identity]:
    """`keep` holds off their deletion until the transaction ends, for rows that will refer to them."""
    if not identity_ids:
        return {}
    rows = await tx.fetch_all(_MANY_KEPT if keep else _MANY, {"ids": list(identity_ids)})
    return {identity.id: identity for identity in await _records(tx, rows)}


async def of_agents(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[Identity]]:
    """The identities of each agent, oldest first."""
    pairs = await tx.fetch_all(AGENTS.owners, {"ids": list(agent_ids)})
    known = await find_many(tx, {pair["identity_id"] for pair in pairs})
    found: dict[str, list[Identity]] = {}
    for pair in pairs:
        found.setdefault(pair["agent_id"], []).append(known[pair["identity_id"]])
    for listed in found.values():
        listed.sort(key=lambda identity: (identity.created_us, identity.id))
    return found


async def list_identities(tx: Transaction, filters: IdentityFilter, page: Page) -> list[Identity]:
    query = select(identities).where(*_conditions(filters))
    return await _records(tx, await fetch_page(tx, query, _BY_AGE, page))


async def count_identities(tx: Transaction) -> int:
    row = await tx.fetch_one(select(func.count().label("found")).select_from(identities))
    return 0 if row is None else row["found"]


async def update_identity(tx: Transaction, identity: Identity) -> None:
    """Raises IntegrityError when its new key is taken."""
    columns = _columns(identity)
    changed = {f"new_{name}": columns[name] for name in _CHANGING}
    await tx.execute(_UPDATE, {"of_identity": identity.id, **changed})


async def delete_identity(tx: Transaction, identity_id: str) -> None:
    """What belonged to it stays, and belongs to it no more."""
    row = await tx.fetch_one(_DELETE, {"id": identity_id})
    if row is None:
        raise NotFound(f"Identity {identity_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))


async def add(tx: Transaction, relation: Relation, identity_id: str, owned_ids: Iterable[str]) -> None:
    """Adding twice is adding once."""
    rows = [{"identity_id": identity_id, relation.name: owned_id} for owned_id in dict.fromkeys(owned_ids)]
    if rows:
        await tx.execute_many(relation.add, rows)


async def remove(tx: Transaction, relation: Relation, identity_id: str, owned_id: str) -> None:
    """Also when it does not belong to it."""
    await tx.execute(relation.remove, {"identity_id": identity_id, relation.name: owned_id})


async def replace_owned(tx: Transaction, relation: Relation, identity_id: str, owned_ids: Iterable[str]) -> None:
    await tx.execute(relation.remove_owned, {"identity_id": identity_id})
    await add(tx, relation, identity_id, owned_ids)


async def replace_owners(tx: Transaction, relation: Relation, owned_id: str, identity_ids: Iterable[str]) -> None:
    await tx.execute(relation.remove_owners, {relation.name: owned_id})
    await add_owners(tx, relation, owned_id, identity_ids)


async def add_owners(tx: Transaction, relation: Relation, owned_id: str, identity_ids: Iterable[str]) -> None:
    rows = [{"identity_id": identity_id, relation.name: owned_id} for identity_id in dict.fromkeys(identity_ids)]
    if rows:
        await tx.execute_many(relation.add, rows)


def owned_by(
    table: Table, owned: Column[str], identity_id: str | None, identifier_keys: Collection[str]
) -> Select[Any] | None:
    """Which items belong to this identity, or to any that has one of these keys; None: that was not asked."""
    if identity_id is None and not identifier_keys:
        return None
    query = select(owned)
    if identity_id is not None:
        query = query.where(table.c.identity_id == identity_id)
    if identifier_keys:
        keyed = select(identities.c.id).where(in_array(identities.c.identifier_key, identifier_keys))
        query = query.where(table.c.identity_id.in_(keyed))
    return query


def _conditions(filters: IdentityFilter) -> list[ColumnElement[bool]]:
    exact = {
        identities.c.name: filters.name,
        identities.c.project_id: filters.project_id,
        identities.c.identifier_key: filters.identifier_key,
        identities.c.identity_type: filters.identity_type,
    }
    return [column == value for column, value in exact.items() if value is not None]


async def _records(tx: Transaction, rows: Sequence[Row]) -> list[Identity]:
    if not rows:
        return []
    identity_ids = [row["id"] for row in rows]
    agents = await _owned(tx, AGENTS, identity_ids)
    blocks = await _owned(tx, BLOCKS, identity_ids)
    return [_record(row, agents.get(row["id"], ()), blocks.get(row["id"], ())) for row in rows]


async def _owned(tx: Transaction, relation: Relation, identity_ids: list[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in await tx.fetch_all(relation.owned, {"ids": identity_ids}):
        found.setdefault(row["identity_id"], []).append(row[relation.name])
    return found


def _record(row: Row, agent_ids: Iterable[str], block_ids: Iterable[str]) -> Identity:
    return Identity(
        id=row["id"],
        identifier_key=row["identifier_key"],
        name=row["name"],
        identity_type=row["identity_type"],
        project_id=row["project_id"] or None,
        properties=_decode(row["properties"]),
        agent_ids=tuple(agent_ids),
        block_ids=tuple(block_ids),
        created_us=row["created_us"],
        updated_us=row["updated_us"],
    )


def _columns(identity: Identity) -> dict[str, Any]:
    return {
        "id": identity.id,
        "organization_id": ids.DEFAULT_ORG,
        "project_id": identity.project_id or _NO_PROJECT,
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "identity_type": identity.identity_type,
        "properties": _encode(identity.properties).decode(),
        "created_us": identity.created_us,
        "updated_us": identity.updated_us,
    }

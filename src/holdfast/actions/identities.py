"""Identities: list, make and change them, and say which agents and blocks belong to them.

A PATCH adds: properties by their keys, agents and blocks to those that belong to it already. A PUT replaces.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from holdfast import ids
from holdfast.core.records import Block, Identity
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import identities as identity_rows
from holdfast.store.blocks import BlockFilter
from holdfast.store.identities import AGENTS, BLOCKS, IdentityFilter, Relation
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, IntegrityError, Job, T, Transaction
from holdfast.wire.identities import IdentityCreate, IdentityProperty, IdentityUpdate, properties_of


async def list_identities(database: Database, filters: IdentityFilter, page: Page) -> list[Identity]:
    return await database.read(lambda tx: identity_rows.list_identities(tx, filters, page))


async def count_identities(database: Database) -> int:
    return await database.read(identity_rows.count_identities)


async def read_identity(database: Database, identity_id: str) -> Identity:
    return await database.read(lambda tx: identity_rows.get(tx, identity_id))


async def list_blocks_of_identity(database: Database, identity_id: str, page: Page) -> list[Block]:
    async def read(tx: Transaction) -> list[Block]:
        await identity_rows.get(tx, identity_id)
        return await block_rows.list_blocks(tx, BlockFilter(identity_id=identity_id, show_hidden=True), page)

    return await database.read(read)


async def create_identity(database: Database, request: IdentityCreate, now_us: int) -> Identity:
    return await _unless_taken(database, request.identifier_key, lambda tx: _create(tx, request, now_us))


async def upsert_identity(database: Database, request: IdentityCreate, now_us: int) -> Identity:
    async def write(tx: Transaction) -> Identity:
        known = await identity_rows.find_by_key(tx, request.identifier_key, request.project_id)
        if known is None:
            return await _create(tx, request, now_us)
        changed = msgspec.structs.replace(
            known, name=request.name, identity_type=request.identity_type, updated_us=now_us
        )
        if request.properties is not None:
            changed = msgspec.structs.replace(changed, properties=properties_of(request.properties))
        await identity_rows.update_identity(tx, changed)
        await _write_relations(tx, known.id, request.agent_ids, request.block_ids, replace=True)
        return await identity_rows.get(tx, known.id)

    return await _unless_taken(database, request.identifier_key, write)


async def update_identity(database: Database, identity_id: str, request: IdentityUpdate, now_us: int) -> Identity:
    names = ("identifier_key", "name", "identity_type")
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(request, name)) is not None}

    async def write(tx: Transaction) -> Identity:
        known = await identity_rows.get(tx, identity_id, lock=True)
        if request.properties is not None:
            merged = {each["key"]: each for each in (*known.properties, *properties_of(request.properties))}
            changes["properties"] = tuple(merged.values())
        await identity_rows.update_identity(tx, msgspec.structs.replace(known, **changes, updated_us=now_us))
        await _write_relations(tx, identity_id, request.agent_ids, request.block_ids, replace=False)
        return await identity_rows.get(tx, identity_id)

    return await _unless_taken(database, request.identifier_key or "", write)


async def replace_properties(
    database: Database, identity_id: str, properties: list[IdentityProperty], now_us: int
) -> Identity:
    async def write(tx: Transaction) -> Identity:
        known = await identity_rows.get(tx, identity_id, lock=True)
        changed = msgspec.structs.replace(known, properties=properties_of(properties), updated_us=now_us)
        await identity_rows.update_identity(tx, changed)
        return changed

    return await database.write(write)


async def delete_identity(database: Database, identity_id: str) -> None:
    await database.write(lambda tx: identity_rows.delete_identity(tx, identity_id))


async def attach_to_agent(database: Database, agent_id: str, identity_id: str) -> None:
    async def write(tx: Transaction) -> None:
        await agent_rows.get(tx, agent_id, lock=True)
        await require_identities(tx, [identity_id])
        await identity_rows.add(tx, AGENTS, identity_id, [agent_id])

    _check_id(identity_id)
    await database.write(write)


async def detach_from_agent(database: Database, agent_id: str, identity_id: str) -> None:
    async def write(tx: Transaction) -> None:
        await agent_rows.get(tx, agent_id, lock=True)
        await identity_rows.remove(tx, AGENTS, identity_id, agent_id)

    _check_id(identity_id)
    await database.write(write)


async def attach_to_block(database: Database, block_id: str, identity_id: str) -> Block:
    async def write(tx: Transaction) -> Block:
        block = await block_rows.get(tx, block_id, lock=True)
        await require_identities(tx, [identity_id])
        await identity_rows.add(tx, BLOCKS, identity_id, [block_id])
        return block

    _check_id(identity_id)
    return await database.write(write)


async def detach_from_block(database: Database, block_id: str, identity_id: str) -> Block:
    async def write(tx: Transaction) -> Block:
        block = await block_rows.get(tx, block_id, lock=True)
        await identity_rows.remove(tx, BLOCKS, identity_id, block_id)
        return block

    _check_id(identity_id)
    return await database.write(write)


async def require_identities(tx: Transaction, identity_ids: Collection[str]) -> list[Identity]:
    """They stay until the transaction ends."""
    found = await identity_rows.find_many(tx, identity_ids, keep=True)
    if missing := [identity_id for identity_id in identity_ids if identity_id not in found]:
        raise NotFound(f"Identities not found: {', '.join(missing)}")
    return list(found.values())


async def _create(tx: Transaction, request: IdentityCreate, now_us: int) -> Identity:
    identity = Identity(
        id=ids.new("identity"),
        identifier_key=request.identifier_key,
        name=request.name,
        identity_type=request.identity_type,
        project_id=request.project_id,
        properties=properties_of(request.properties),
        created_us=now_us,
        updated_us=now_us,
    )
    await identity_rows.insert(tx, identity)
    await _write_relations(tx, identity.id, request.agent_ids, request.block_ids, replace=False)
    return await identity_rows.get(tx, identity.id)


async def _write_relations(
    tx: Transaction, identity_id: str, agent_ids: list[str] | None, block_ids: list[str] | None, *, replace: bool
) -> None:
    if agent_ids is not None:
        if missing := await agent_rows.missing(tx, agent_ids):
            raise NotFound(f"Agents not found: {', '.join(missing)}")
        await _own(tx, AGENTS, identity_id, agent_ids, replace=replace)
    if block_ids is not None:
        known = await block_rows.find_many(tx, block_ids, keep=True)
        if missing := [block_id for block_id in block_ids if block_id not in known]:
            raise NotFound(f"Blocks not found: {', '.join(missing)}")
        await _own(tx, BLOCKS, identity_id, block_ids, replace=replace)


async def _own(tx: Transaction, relation: Relation, identity_id: str, owned: list[str], *, replace: bool) -> None:
    write = identity_rows.replace_owned if replace else identity_rows.add
    await write(tx, relation, identity_id, owned)


async def _unless_taken(database: Database, identifier_key: str, job: Job[T]) -> T:
    try:
        return await database.write(job)
    except IntegrityError as error:
        raise Conflict(
            f"There is an identity with the identifier_key {identifier_key!r} in this project already. Change that "
            "one, or send this with PUT, which does."
        ) from error


def _check_id(identity_id: str) -> None:
    if not ids.is_id("identity", identity_id):
        raise Invalid(f"{identity_id!r} is not the id of an identity.")

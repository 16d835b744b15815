"""Memory blocks and the agents they are attached to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, func, or_, select, update

from holdfast.core.changes import Change
from holdfast.core.records import Block
from holdfast.errors import Conflict, NotFound
from holdfast.store.group_tables import identity_blocks
from holdfast.store.identities import owned_by
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.tables import agent_blocks, block_tags, blocks
from holdfast.store.transaction import Row, Transaction, flag

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class BlockFilter(msgspec.Struct, frozen=True, kw_only=True):
    label: str | None = None
    label_search: str | None = None
    description_search: str | None = None
    value_search: str | None = None
    template_name: str | None = None
    templates_only: bool = False
    project_id: str | None = None
    tags: tuple[str, ...] = ()
    match_all_tags: bool = False
    agents_more_than: int | None = None
    agents_less_than: int | None = None
    agents_exactly: tuple[int, ...] = ()
    agent_id: str | None = None
    identity_id: str | None = None
    identifier_keys: tuple[str, ...] = ()
    show_hidden: bool = False


_BY_AGE = Ordering(sort=blocks.c.created_us, id=blocks.c.id, what="Block")
_INSERT = insert_into(blocks)
_INSERT_TAG = insert_into(block_tags)
_ATTACH = insert_or_ignore(agent_blocks)
_ONE = select(blocks).where(blocks.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_MANY = select(blocks).where(in_array(blocks.c.id, "ids"))
_MANY_KEPT = _MANY.with_for_update(read=True, key_share=True)
_OF_LABEL = (
    select(blocks)
    .join(agent_blocks, agent_blocks.c.block_id == blocks.c.id)
    .where(agent_blocks.c.agent_id == bindparam("agent_id"), agent_blocks.c.label == bindparam("label"))
)
_OF_AGENT = (
    select(blocks, block_tags.c.tag)
    .join(agent_blocks, agent_blocks.c.block_id == blocks.c.id)
    .outerjoin(block_tags, block_tags.c.block_id == blocks.c.id)
    .where(agent_blocks.c.agent_id == bindparam("agent_id"))
    .order_by(blocks.c.created_us, blocks.c.id, block_tags.c.tag)
)
_TAGS = (
    select(block_tags.c.block_id, block_tags.c.tag)
    .where(in_array(block_tags.c.block_id, "ids"))
    .order_by(block_tags.c.block_id, block_tags.c.tag)
)
_PAIRS = select(agent_blocks.c.agent_id, agent_blocks.c.block_id).where(in_array(agent_blocks.c.agent_id, "ids"))
_HOLDERS = select(agent_blocks.c.label, agent_blocks.c.block_id).where(
    agent_blocks.c.agent_id == bindparam("agent_id"), in_array(agent_blocks.c.label, "labels")
)
_RENAME = update(agent_blocks).where(agent_blocks.c.block_id == bindparam("of_block")).values(label=bindparam("to"))
_DETACH = delete(agent_blocks).where(
    agent_blocks.c.agent_id == bindparam("agent_id"), agent_blocks.c.block_id == bindparam("block_id")
)
_DETACH_ALL = delete(agent_blocks).where(agent_blocks.c.agent_id == bindparam("agent_id"))
_DELETE = delete(blocks).where(blocks.c.id == bindparam("id")).returning(blocks.c.id, blocks.c.created_us)
_UNTAG = delete(block_tags).where(block_tags.c.block_id == bindparam("of_block"))
_UPDATE = (
    update(blocks)
    .where(blocks.c.id == bindparam("of_block"))
    .values({column: bindparam(f"new_{column.name}") for column in blocks.c if column.name not in ("id", "created_us")})
)


async def insert(tx: Transaction, block: Block) -> None:
    await insert_many(tx, (block,))


async def insert_many(tx: Transaction, new: Sequence[Block]) -> None:
    if new:
        await tx.execute_many(_INSERT, [_columns(block) for block in new])
        await _insert_tags(tx, new)


async def get(tx: Transaction, block_id: str, *, lock: bool = False) -> Block:
    """`lock` keeps the row as it is until the transaction ends, for a change that depends on what it holds."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": block_id})
    if row is None:
        raise NotFound(f"Block {block_id} not found")
    return (await _records(tx, (row,)))[0]


async def find_many(tx: Transaction, block_ids: Collection[str], *, keep: bool = False) -> dict[str, Block]:
    """`keep` holds off their deletion until the transaction ends, for rows that will refer to them."""
    if not block_ids:
        return {}
    found = await _records(tx, await tx.fetch_all(_MANY_KEPT if keep else _MANY, {"ids": list(block_ids)}))
    return {block.id: block for block in found}


async def of_label(tx: Transaction, agent_id: str, label: str) -> Block:
    row = await tx.fetch_one(_OF_LABEL, {"agent_id": agent_id, "label": label})
    if row is None:
        raise NotFound(f"The agent {agent_id} has no block with the label {label!r}")
    return (await _records(tx, (row,)))[0]


async def of_agent(tx: Transaction, agent_id: str) -> list[Block]:
    """Oldest first. One statement, because every turn asks: a block comes with each of its tags, or once without."""
    return records_with_tags(await tx.fetch_all(_OF_AGENT, {"agent_id": agent_id}))


def records_with_tags(rows: Sequence[Row | Mapping[str, Any]]) -> list[Block]:
    """Of rows with the columns of a block and one of its tags, or none; those of a block stand together."""
    of_each = (list(same) for _, same in groupby(rows, itemgetter("id")))
    return [_record(same[0], (row["tag"] for row in same if row["tag"] is not None)) for same in of_each]


async def of_agents(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[Block]]:
    """The blocks of each agent, oldest first. A block that many share is read once."""
    pairs = await tx.fetch_all(_PAIRS, {"ids": list(agent_ids)})
    found = await find_many(tx, {pair["block_id"] for pair in pairs})
    attached: dict[str, list[Block]] = {}
    for pair in pairs:
        attached.setdefault(pair["agent_id"], []).append(found[pair["block_id"]])
    for listed in attached.values():
        listed.sort(key=lambda block: (block.created_us, block.id))
    return attached


async def update_block(tx: Transaction, block: Block, *, label_before: str) -> None:
    """Write the whole row. Attachments carry the label too: one that an agent already has raises IntegrityError."""
    if block.label != label_before:
        await tx.execute(_RENAME, {"of_block": block.id, "to": block.label})
    changed = {f"new_{name}": value for name, value in _columns(block).items() if name not in ("id", "created_us")}
    await tx.execute(_UPDATE, {"of_block": block.id, **changed})
    await tx.execute(_UNTAG, {"of_block": block.id})
    await _insert_tags(tx, (block,))


async def delete_block(tx: Transaction, block_id: str) -> None:
    """Gone from every agent as well."""
    row = await tx.fetch_one(_DELETE, {"id": block_id})
    if row is None:
        raise NotFound(f"Block {block_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))


async def attach(tx: Transaction, agent_id: str, block: Block) -> None:
    await attach_many(tx, agent_id, (block,))


async def attach_many(tx: Transaction, agent_id: str, new: Sequence[Block]) -> None:
    """Attaching twice is attaching once; a second block of the same label is refused.

    Two statements for any number of blocks: what is attached now tells which of them were refused.
    """
    if not new:
        return
    rows = [{"agent_id": agent_id, "block_id": block.id, "label": block.label} for block in new]
    await tx.execute_many(_ATTACH, rows)
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))
    labels = [block.label for block in new]
    found = await tx.fetch_all(_HOLDERS, {"agent_id": agent_id, "labels": labels})
    holders = {row["label"]: row["block_id"] for row in found}
    for block in new:
        if holders.get(block.label, block.id) != block.id:
            raise Conflict(f"The agent {agent_id} already has a block with the label {block.label!r}")


async def detach(tx: Transaction, agent_id: str, block_id: str) -> None:
    if not await tx.execute(_DETACH, {"agent_id": agent_id, "block_id": block_id}):
        raise NotFound(f"Block {block_id} is not attached to the agent {agent_id}")
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))


async def detach_if_attached(tx: Transaction, agent_id: str, block_id: str) -> None:
    await tx.execute(_DETACH, {"agent_id": agent_id, "block_id": block_id})


async def detach_all(tx: Transaction, agent_id: str) -> None:
    await tx.execute(_DETACH_ALL, {"agent_id": agent_id})


async def list_blocks(tx: Transaction, filters: BlockFilter, page: Page) -> list[Block]:
    query = select(blocks).where(*_conditions(filters))
    return await _records(tx, await fetch_page(tx, query, _BY_AGE, page))


async def count_blocks(tx: Transaction, filters: BlockFilter) -> int:
    row = await tx.fetch_one(select(func.count().label("found")).select_from(blocks).where(*_conditions(filters)))
    return 0 if row is None else row["found"]


def _conditions(filters: BlockFilter) -> list[ColumnElement[bool]]:
    exact = {
        blocks.c.label: filters.label,
        blocks.c.template_name: filters.template_name,
        blocks.c.project_id: filters.project_id,
    }
    searched = {
        blocks.c.label: filters.label_search,
        blocks.c.description: filters.description_search,
        blocks.c.value: filters.value_search,
    }
    conditions: list[ColumnElement[bool]] = [column == value for column, value in exact.items() if value is not None]
    conditions += [contains_text(column, text) for column, text in searched.items() if text]
    if filters.templates_only:
        conditions.append(blocks.c.is_template.is_(True))
    if not filters.show_hidden:
        conditions.append(or_(blocks.c.hidden.is_(None), blocks.c.hidden.is_(False)))
    if filters.tags:
        conditions.append(
            tagged(block_tags.c.tag, block_tags.c.block_id, blocks.c.id, filters.tags, filters.match_all_tags)
        )
    if filters.agent_id is not None:
        conditions.append(
            blocks.c.id.in_(select(agent_blocks.c.block_id).where(agent_blocks.c.agent_id == filters.agent_id))
        )
    owned = owned_by(identity_blocks, identity_blocks.c.block_id, filters.identity_id, filters.identifier_keys)
    if owned is not None:
        conditions.append(blocks.c.id.in_(owned))
    return conditions + _agent_counts(filters)


def _agent_counts(filters: BlockFilter) -> list[ColumnElement[bool]]:
    count = (
        select(func.count())
        .select_from(agent_blocks)
        .where(agent_blocks.c.block_id == blocks.c.id)
        .correlate(blocks)
        .scalar_subquery()
    )
    conditions: list[ColumnElement[bool]] = []
    if filters.agents_more_than is not None:
        conditions.append(count > filters.agents_more_than)
    if filters.agents_less_than is not None:
        conditions.append(count < filters.agents_less_than)
    if filters.agents_exactly:
        conditions.append(or_(*(count == number for number in filters.agents_exactly)))
    return conditions


def contains_text(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """Substring, whatever the case; SQLite folds the case of ASCII letters only."""
    return or_(func.lower(column).contains(text.lower(), autoescape=True), column.contains(text, autoescape=True))


def tagged(
    tag: ColumnElement[str],
    owner: ColumnElement[str],
    item_id: ColumnElement[str],
    tags: Iterable[str],
    match_all: bool,
) -> ColumnElement[bool]:
    names = sorted(set(tags))
    if not match_all:
        return item_id.in_(select(owner).where(in_array(tag, names)))
    return item_id.in_(select(owner).where(in_array(tag, names)).group_by(owner).having(func.count() == len(names)))


async def _insert_tags(tx: Transaction, tagged_blocks: Iterable[Block]) -> None:
    rows = [{"block_id": block.id, "tag": tag} for block in tagged_blocks for tag in dict.fromkeys(block.tags)]
    if rows:
        await tx.execute_many(_INSERT_TAG, rows)


async def _records(tx: Transaction, rows: Sequence[Row]) -> list[Block]:
    if not rows:
        return []
    tags: dict[str, list[str]] = {}
    for found in await tx.fetch_all(_TAGS, {"ids": [row["id"] for row in rows]}):
        tags.setdefault(found["block_id"], []).append(found["tag"])
    return [_record(row, tags.get(row["id"], ())) for row in rows]


def _record(row: Row | Mapping[str, Any], tags: Iterable[str]) -> Block:
    return Block(
        id=row["id"],
        label=row["label"],
        value=row["value"],
        limit=row["limit"],
        description=row["description"],
        read_only=bool(row["read_only"]),
        metadata=_decode(row["metadata"]),
        tags=tuple(tags),
        hidden=flag(row["hidden"]),
        is_template=bool(row["is_template"]),
        template_name=row["template_name"],
        project_id=row["project_id"],
        version=row["version"],
        created_us=row["created_us"],
        updated_us=row["updated_us"],
    )


def _columns(block: Block) -> Mapping[str, Any]:
    return {
        "id": block.id,
        "label": block.label,
        "value": block.value,
        "limit": block.limit,
        "description": block.description,
        "read_only": block.read_only,
        "metadata": _encode(block.metadata).decode(),
        "hidden": block.hidden,
        "is_template": block.is_template,
        "template_name": block.template_name,
        "project_id": block.project_id,
        "version": block.version,
        "created_us": block.created_us,
        "updated_us": block.updated_us,
    }

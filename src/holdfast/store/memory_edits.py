"""What memory tools do to blocks: an optimistic lock on the version of the block that each edit was computed from."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import bindparam, delete, exists, select, update

from holdfast.core.memory import Created, Detached, Edited, MemoryChange, Operation
from holdfast.errors import Conflict
from holdfast.store import blocks as block_rows
from holdfast.store.tables import agent_blocks, agents, blocks
from holdfast.store.transaction import Transaction

_EDIT = (
    update(blocks)
    .where(blocks.c.id == bindparam("of_block"), blocks.c.version == bindparam("was"))
    .values(
        label=bindparam("new_label"),
        value=bindparam("new_value"),
        description=bindparam("new_description"),
        version=bindparam("becomes"),
        updated_us=bindparam("now_us"),
    )
)
_RELABEL = update(agent_blocks).where(agent_blocks.c.block_id == bindparam("of_block")).values(label=bindparam("to"))
_DETACH = delete(agent_blocks).where(
    agent_blocks.c.agent_id == bindparam("of_agent"),
    agent_blocks.c.block_id == bindparam("of_block"),
    exists().where(blocks.c.id == bindparam("of_block"), blocks.c.version == bindparam("was")),
)
_theirs = agent_blocks.alias("theirs")
_TAKEN = (
    select(_theirs.c.agent_id)
    .join(agent_blocks, agent_blocks.c.agent_id == _theirs.c.agent_id)
    .where(
        agent_blocks.c.block_id == bindparam("of_block"),
        _theirs.c.block_id != bindparam("of_block"),
        _theirs.c.label == bindparam("to"),
    )
    .limit(1)
)
_TAKEN_ELSEWHERE = _TAKEN.where(_theirs.c.agent_id != bindparam("of_agent"))
# Attaching a block refers to the agent, so this keeps further blocks off all agents that have the block.
_LOCK_SHARERS = (
    select(agents.c.id)
    .where(agents.c.id.in_(select(agent_blocks.c.agent_id).where(agent_blocks.c.block_id == bindparam("of_block"))))
    .order_by(agents.c.id)
    .with_for_update()
)


async def apply(tx: Transaction, agent_id: str, change: MemoryChange, versions: Mapping[str, int], now_us: int) -> bool:
    """False when a block is no longer what the change was computed from. The transaction must then be given up:
    operations before that one have been written."""
    current = dict(versions)
    for operation in change.operations:
        if not await _apply_one(tx, agent_id, operation, current, now_us):
            return False
    return True


async def refused_rename(tx: Transaction, agent_id: str, change: MemoryChange) -> Edited | None:
    """A block cannot take a label under which another agent that shares it already has a different one."""
    for operation in change.operations:
        if isinstance(operation, Edited) and operation.renamed:
            names = {"of_agent": agent_id, "of_block": operation.block.id, "to": operation.block.label}
            if await tx.fetch_one(_TAKEN_ELSEWHERE, names) is not None:
                return operation
    return None


async def _apply_one(
    tx: Transaction, agent_id: str, operation: Operation, current: dict[str, int], now_us: int
) -> bool:
    block_id = operation.block.id
    if isinstance(operation, Created):
        current[block_id] = operation.block.version
        return await _create(tx, agent_id, operation)
    was = current[block_id]
    if isinstance(operation, Detached):
        return await tx.execute(_DETACH, {"of_agent": agent_id, "of_block": block_id, "was": was}) > 0
    current[block_id] = was + 1
    return await _edit(tx, operation, was, now_us)


async def _create(tx: Transaction, agent_id: str, created: Created) -> bool:
    await block_rows.insert(tx, created.block)
    try:
        await block_rows.attach(tx, agent_id, created.block)
    except Conflict:
        return False
    return True


async def _edit(tx: Transaction, edited: Edited, was: int, now_us: int) -> bool:
    block = edited.block
    columns = {
        "of_block": block.id,
        "was": was,
        "becomes": was + 1,
        "new_label": block.label,
        "new_value": block.value,
        "new_description": block.description,
        "now_us": now_us,
    }
    if not await tx.execute(_EDIT, columns):
        return False
    return not edited.renamed or await _relabel(tx, block.id, block.label)


async def _relabel(tx: Transaction, block_id: str, label: str) -> bool:
    await tx.fetch_all(_LOCK_SHARERS, {"of_block": block_id})
    if await tx.fetch_one(_TAKEN, {"of_block": block_id, "to": label}) is not None:
        return False
    await tx.execute(_RELABEL, {"of_block": block_id, "to": label})
    return True

"""Memory blocks, by themselves and as those of an agent: list, read, write, attach, detach.

A limit is a promise to the model, so it holds here as it does for its tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast import ids
from holdfast.actions.agents.read import whole_state
from holdfast.actions.agents.sleeptime import share_blocks
from holdfast.core.records import Block
from holdfast.errors import Conflict, Unprocessable
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store.blocks import BlockFilter
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, IntegrityError, Transaction
from holdfast.wire.agents import AgentState
from holdfast.wire.blocks import BlockUpdate, CreateBlock, block_changes, new_block


async def list_blocks(database: Database, filters: BlockFilter, page: Page) -> list[Block]:
    return await database.read(lambda tx: block_rows.list_blocks(tx, filters, page))


async def list_blocks_of_agent(database: Database, agent_id: str, page: Page) -> list[Block]:
    filters = BlockFilter(agent_id=agent_id, show_hidden=True)

    async def read(tx: Transaction) -> list[Block]:
        await agent_rows.require(tx, agent_id)
        return await block_rows.list_blocks(tx, filters, page)

    return await database.read(read)


async def count_blocks(database: Database, filters: BlockFilter) -> int:
    return await database.read(lambda tx: block_rows.count_blocks(tx, filters))


async def read_block(database: Database, block_id: str) -> Block:
    return await database.read(lambda tx: block_rows.get(tx, block_id))


async def read_labelled_block(database: Database, agent_id: str, label: str) -> Block:
    return await database.read(lambda tx: _labelled(tx, agent_id, label))


async def create_block(database: Database, request: CreateBlock, now_us: int) -> Block:
    block = new_block(request, ids.new("block"), now_us)
    check_limit(block)
    await database.write(lambda tx: block_rows.insert(tx, block))
    return block


async def update_block(database: Database, block_id: str, request: BlockUpdate, now_us: int) -> Block:
    async def find(tx: Transaction) -> str:
        return block_id

    return await _update_found(database, find, request, now_us)


async def update_labelled_block(
    database: Database, agent_id: str, label: str, request: BlockUpdate, now_us: int
) -> Block:
    async def find(tx: Transaction) -> str:
        return (await _labelled(tx, agent_id, label)).id

    return await _update_found(database, find, request, now_us)


async def delete_block(database: Database, block_id: str) -> None:
    await database.write(lambda tx: block_rows.delete_block(tx, block_id))


async def attach_block(database: Database, agent_id: str, block_id: str) -> AgentState:
    async def write(tx: Transaction) -> AgentState:
        await agent_rows.get(tx, agent_id, lock=True)
        await block_rows.attach(tx, agent_id, await block_rows.get(tx, block_id, lock=True))
        await share_blocks(tx, agent_id)
        return await whole_state(tx, agent_id)

    return await database.write(write)


async def detach_block(database: Database, agent_id: str, block_id: str) -> AgentState:
    async def write(tx: Transaction) -> AgentState:
        await agent_rows.get(tx, agent_id, lock=True)
        await block_rows.detach(tx, agent_id, block_id)
        await share_blocks(tx, agent_id, (block_id,))
        return await whole_state(tx, agent_id)

    return await database.write(write)


async def _labelled(tx: Transaction, agent_id: str, label: str) -> Block:
    await agent_rows.require(tx, agent_id)
    return await block_rows.of_label(tx, agent_id, label)


async def _update_found(
    database: Database, find: Callable[[Transaction], Awaitable[str]], request: BlockUpdate, now_us: int
) -> Block:
    """`find` gives the id of the block inside the transaction that changes it."""

    async def write(tx: Transaction) -> Block:
        return await _update(tx, await find(tx), request, now_us)

    try:
        return await database.write(write)
    except IntegrityError as error:
        if request.label is None:
            raise
        taken = f"An agent that has this block already has another with the label {request.label!r}."
        raise Conflict(taken) from error


async def _update(tx: Transaction, block_id: str, request: BlockUpdate, now_us: int) -> Block:
    """What is already so is left alone: only a real change makes a new version."""
    block = await block_rows.get(tx, block_id, lock=True)
    changes = {name: value for name, value in block_changes(request).items() if value != getattr(block, name)}
    if not changes:
        return block
    changed = _changed(block, changes, now_us)
    check_limit(changed)
    await block_rows.update_block(tx, changed, label_before=block.label)
    return changed


def check_limit(block: Block) -> None:
    if len(block.value) > block.limit:
        raise Unprocessable(
            f"The value of block {block.label!r} has {len(block.value)} characters, which exceeds its limit of "
            f"{block.limit}: shorten the value or raise the limit."
        )


def _changed(block: Block, changes: dict[str, Any], now_us: int) -> Block:
    return msgspec.structs.replace(block, **changes, version=block.version + 1, updated_us=now_us)

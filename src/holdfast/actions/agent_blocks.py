"""Attach blocks to an agent, detach them, and reach them by their label."""

from __future__ import annotations

from holdfast.actions.agents.read import whole_state
from holdfast.actions.blocks import update_found_block
from holdfast.core.records import Block
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import AgentState
from holdfast.wire.blocks import BlockUpdate


async def attach_block(tx: Transaction, agent_id: str, block_id: str) -> AgentState:
    await agent_rows.get(tx, agent_id, lock=True)
    await block_rows.attach(tx, agent_id, await block_rows.get(tx, block_id, lock=True))
    return await whole_state(tx, agent_id)


async def detach_block(tx: Transaction, agent_id: str, block_id: str) -> AgentState:
    await agent_rows.get(tx, agent_id, lock=True)
    await block_rows.detach(tx, agent_id, block_id)
    return await whole_state(tx, agent_id)


async def find_block(tx: Transaction, agent_id: str, label: str) -> Block:
    await agent_rows.require(tx, agent_id)
    return await block_rows.of_label(tx, agent_id, label)


async def update_labelled_block(
    database: Database, agent_id: str, label: str, request: BlockUpdate, now_us: int
) -> Block:
    async def find(tx: Transaction) -> str:
        return (await find_block(tx, agent_id, label)).id

    return await update_found_block(database, find, request, now_us)

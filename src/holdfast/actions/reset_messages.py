"""Empties an agent's window but for the system message. The history stays listable; nothing in it stays pending."""

from __future__ import annotations

from holdfast.actions.agents.first_messages import first_messages
from holdfast.actions.agents.read import whole_state
from holdfast.actions.threads.context import recompile_system
from holdfast.actions.threads.find import require_idle
from holdfast.engine.cancel_parked import cancel_parked_within
from holdfast.engine.clock import Clock
from holdfast.store import agents, blocks, holds, messages, threads
from holdfast.store.transaction import Transaction
from holdfast.wire.agents import AgentState


async def reset_messages(tx: Transaction, agent_id: str, clock: Clock, *, greet: bool) -> AgentState:
    """`greet`: begin again as a new agent of this kind does."""
    agent = await agents.get(tx, agent_id)
    await require_idle(tx, agent_id, "reset the messages")
    hold = await holds.open_of_thread(tx, agent_id)
    if hold is not None:
        await cancel_parked_within(tx, clock, hold.run_id)
    await threads.reset_window(tx, agent_id)
    now_us = clock.now_us()
    await recompile_system(tx, agent_id, now_us, update_timestamp=True)
    if greet:
        greeting = first_messages(agent, await blocks.of_agent(tx, agent_id), None, now_us)[1:]
        if greeting:
            await messages.insert_many(tx, agent_id, greeting)
            await threads.append(tx, agent_id, [message.id for message in greeting])
    return await whole_state(tx, agent_id)

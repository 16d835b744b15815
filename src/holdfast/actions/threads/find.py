"""Which history a conversation id means: a conversation's own, or an agent's default one by its other names."""

from __future__ import annotations

from typing import Final

from holdfast import ids
from holdfast.errors import Conflict, NotFound
from holdfast.store import agents, runs, threads
from holdfast.store.transaction import Transaction

DEFAULT: Final = "default"


def thread_of(conversation_id: str, agent_id: str | None) -> str:
    """The thread's id, whether or not there is such a thread. `default` says nothing without an agent."""
    if conversation_id != DEFAULT:
        return conversation_id
    if agent_id is None:
        raise NotFound("Conversation default not found: name the agent whose default conversation it is in agent_id.")
    if not ids.is_id("agent", agent_id):
        raise NotFound("Agent not found")
    return agent_id


def is_default(thread_id: str) -> bool:
    """An agent's default thread has the agent's id."""
    return ids.is_id("agent", thread_id)


async def require_thread(tx: Transaction, thread_id: str) -> None:
    if is_default(thread_id):
        await agents.require(tx, thread_id)
    else:
        await threads.get(tx, thread_id)


async def require_idle(tx: Transaction, thread_id: str, what: str) -> None:
    """For what would pull the history away from under a run."""
    active = await runs.active_of_thread(tx, thread_id)
    if active is not None:
        raise Conflict(f"CONFLICT: Cannot {what} while run {active.id} is active. Wait for it to end, or cancel it.")

"""Brings a thread's stored system message up to date with the agent, its memory and its tool rules."""

from __future__ import annotations

from holdfast.core import prompt
from holdfast.core.messages import Message, text_of
from holdfast.core.records import Agent, Block, Thread
from holdfast.engine import requests
from holdfast.engine.loading import blocks_in_view
from holdfast.errors import NotFound
from holdfast.store import agents, messages, passages, threads
from holdfast.store.transaction import Transaction


async def recompile_system(
    tx: Transaction, thread_id: str, now_us: int, *, dry_run: bool = False, update_timestamp: bool = False
) -> str:
    """The compiled text. While nothing it shows has changed its bytes stay, so that vendors' caches keep serving them;
    `update_timestamp` compiles it anew all the same."""
    thread = await threads.get(tx, thread_id)
    agent = await agents.get(tx, thread.agent_id)
    blocks = await blocks_in_view(tx, thread)
    known = await _stored_system(tx, thread_id)
    digest = prompt.digest(agent, blocks, thread.conversation_id)
    if not update_timestamp and digest == await threads.system_digest(tx, thread_id):
        return text_of(known.parts)
    system = await compiled(tx, known, agent, blocks, thread, now_us)
    if not dry_run:
        await messages.replace_parts(tx, system.id, system.parts)
        await threads.set_system_digest(tx, thread_id, digest)
    return text_of(system.parts)


async def compiled(
    tx: Transaction, known: Message, agent: Agent, blocks: list[Block], thread: Thread, now_us: int
) -> Message:
    return requests.system_message(
        known,
        agent,
        blocks,
        conversation_id=thread.conversation_id,
        hidden=await hidden_messages(tx, thread.id),
        archived=await passages.count_of_agent(tx, agent.id),
        now_us=now_us,
    )


async def hidden_messages(tx: Transaction, thread_id: str) -> int:
    """How many messages of its history are not in the window."""
    return max(0, await threads.count_messages(tx, thread_id) - len(await threads.window_ids(tx, thread_id)))


async def _stored_system(tx: Transaction, thread_id: str) -> Message:
    window = await threads.window_ids(tx, thread_id)
    first = await messages.get(tx, window[0]) if window else None
    if first is None or first.role != "system":
        raise NotFound(f"The history of {thread_id} has no system message.")
    return first

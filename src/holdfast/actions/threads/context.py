"""What a thread shows its model: bring the system message up to date, begin the window again, weigh it all."""

from __future__ import annotations

from holdfast.actions.agents.create import first_messages
from holdfast.actions.agents.read import whole_state
from holdfast.actions.runs.spec import effective_model
from holdfast.actions.threads.find import require_idle
from holdfast.core import dates, system_prompt
from holdfast.core.messages import Message, text_of
from holdfast.engine.attached_files import directories_in_view
from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.run_loading import blocks_in_view
from holdfast.errors import NotFound
from holdfast.llm.base import Catalog
from holdfast.store import agents, blocks, holds, messages, passages, threads, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import AgentState
from holdfast.wire.context import Contents, ContextOverview, context_overview


async def recompile(
    database: Database, thread_id: str, now_us: int, *, dry_run: bool, update_timestamp: bool = False
) -> str:
    do = database.read if dry_run else database.write
    return await do(
        lambda tx: recompile_system(tx, thread_id, now_us, dry_run=dry_run, update_timestamp=update_timestamp)
    )


async def reset_messages(database: Database, agent_id: str, clock: Clock, *, greet: bool) -> AgentState:
    """Empties the agent's window but for the system message. The history stays listable; nothing in it stays pending.

    `greet`: begin again as a new agent of this kind does.
    """
    return await database.write(lambda tx: _reset(tx, agent_id, clock, greet))


async def _reset(tx: Transaction, agent_id: str, clock: Clock, greet: bool) -> AgentState:
    agent = await agents.get(tx, agent_id)
    await require_idle(tx, agent_id, "reset the messages")
    hold = await holds.open_of_thread(tx, agent_id)
    if hold is not None:
        await cancel_parked(tx, clock, hold.run_id)
    await threads.reset_window(tx, agent_id)
    now_us = clock.now_us()
    await recompile_system(tx, agent_id, now_us, update_timestamp=True)
    if greet:
        greeting = first_messages(agent, await blocks.of_agent(tx, agent_id), None, now_us)[1:]
        if greeting:
            await messages.insert_many(tx, agent_id, greeting)
            await threads.append(tx, agent_id, [message.id for message in greeting])
    return await whole_state(tx, agent_id)


async def read_context(
    database: Database, catalog: Catalog, ratios: TokenRatios, agent_id: str, thread_id: str, now_us: int
) -> ContextOverview:
    """What the next request of the thread would consist of, compiled from what is true now, and what each part
    weighs."""
    contents = await database.read_long(lambda tx: _contents(tx, agent_id, thread_id, now_us))
    model = await effective_model(catalog, contents.agent, contents.thread, None)
    return context_overview(contents, model.context_window, await ratios.of(model.handle))


async def _contents(tx: Transaction, agent_id: str, thread_id: str, now_us: int) -> Contents:
    agent = await agents.get(tx, agent_id)
    thread = await threads.get(tx, thread_id)
    if thread.agent_id != agent_id:
        raise NotFound(f"Conversation {thread_id} not found")
    archived = await passages.count_of_agent(tx, agent_id)
    sections = system_prompt.compile_sections(
        agent,
        await blocks_in_view(tx, thread),
        conversation_id=thread.conversation_id,
        recompiled_at_text=dates.local_time(now_us, agent.timezone),
        previous_messages=await _hidden_messages(tx, thread_id),
        archival_count=archived,
        directories=await directories_in_view(tx, agent),
    )
    window = await threads.window(tx, thread_id)
    return Contents(
        agent=agent,
        thread=thread,
        sections=sections,
        window=[row for row in window if row.run_id is None] if agent.message_buffer_autoclear else window,
        tools=await tools.of_agent(tx, agent_id),
        stored_messages=await messages.count_of_agent(tx, agent_id),
        archived_passages=archived,
    )


async def recompile_system(
    tx: Transaction, thread_id: str, now_us: int, *, dry_run: bool = False, update_timestamp: bool = False
) -> str:
    """The compiled text. While nothing it shows has changed its bytes stay, so that vendors' caches keep serving them;
    `update_timestamp` compiles it anew all the same."""
    thread = await threads.get(tx, thread_id)
    agent = await agents.get(tx, thread.agent_id)
    in_view = await blocks_in_view(tx, thread)
    directories = await directories_in_view(tx, agent)
    known = await _stored_system(tx, thread_id)
    digest = system_prompt.digest(agent, in_view, thread.conversation_id, directories)
    if not update_timestamp and digest == await threads.system_digest(tx, thread_id):
        return text_of(known.parts)
    system = system_prompt.recompiled(
        known,
        agent,
        in_view,
        conversation_id=thread.conversation_id,
        hidden=await _hidden_messages(tx, thread.id),
        archived=await passages.count_of_agent(tx, agent.id),
        directories=directories,
        now_us=now_us,
    )
    if not dry_run:
        await messages.replace_parts(tx, system.id, system.parts)
        await threads.set_system_digest(tx, thread_id, digest)
    return text_of(system.parts)


async def _hidden_messages(tx: Transaction, thread_id: str) -> int:
    """How many messages of its history are not in the window."""
    return max(0, await threads.count_messages(tx, thread_id) - len(await threads.window_ids(tx, thread_id)))


async def _stored_system(tx: Transaction, thread_id: str) -> Message:
    window = await threads.window_ids(tx, thread_id)
    first = await messages.get(tx, window[0]) if window else None
    if first is None or first.role != "system":
        raise NotFound(f"The history of {thread_id} has no system message.")
    return first

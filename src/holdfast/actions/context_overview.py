"""What the next request of a thread would consist of, compiled from what is true now, and what each part weighs."""

from __future__ import annotations

from holdfast.actions.runs.spec import effective_model
from holdfast.actions.threads.context import hidden_messages
from holdfast.core import envelopes, prompt
from holdfast.engine.loading import blocks_in_view
from holdfast.engine.ratios import TokenRatios
from holdfast.errors import NotFound
from holdfast.llm.base import Catalog
from holdfast.store import agents, messages, passages, threads, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.context import Contents, ContextOverview, context_overview


async def read_context(
    database: Database, catalog: Catalog, ratios: TokenRatios, agent_id: str, thread_id: str, now_us: int
) -> ContextOverview:
    contents = await database.read_long(lambda tx: _look(tx, agent_id, thread_id, now_us))
    model = await effective_model(catalog, contents.agent, contents.thread, None)
    return context_overview(contents, model.context_window, await ratios.of(model.handle))


async def _look(tx: Transaction, agent_id: str, thread_id: str, now_us: int) -> Contents:
    agent = await agents.get(tx, agent_id)
    thread = await threads.get(tx, thread_id)
    if thread.agent_id != agent_id:
        raise NotFound(f"Conversation {thread_id} not found")
    archived = await passages.count_of_agent(tx, agent_id)
    sections = prompt.compile_sections(
        agent,
        await blocks_in_view(tx, thread),
        conversation_id=thread.conversation_id,
        recompiled_at_text=envelopes.local_time(now_us, agent.timezone),
        previous_messages=await hidden_messages(tx, thread_id),
        archival_count=archived,
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

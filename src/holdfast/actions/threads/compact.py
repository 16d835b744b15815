"""Compacts a history on request, outside any run: the same summaries as within one, and one transaction at the end."""

from __future__ import annotations

import msgspec

from holdfast.actions.runs.spec import effective_model, tool_specs
from holdfast.actions.threads.context import recompile_system
from holdfast.actions.threads.find import require_idle
from holdfast.core import compaction
from holdfast.core.messages import Message, text_of
from holdfast.core.records import Agent, CompactionSettings, Thread, Tool
from holdfast.engine.clock import Clock
from holdfast.engine.compacting import Compaction, CompactionJob, Compactor
from holdfast.errors import Conflict, Invalid
from holdfast.llm.base import Catalog, ToolSchema
from holdfast.store import agents, messages, threads, tools
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.conversations import CompactionSettingsInput

_WHAT = "compact the messages"
_TRIGGER = "manual"
_FEWEST_EVICTED = 2  # a summary is a message, too


class Compacted(msgspec.Struct, frozen=True):
    summary: str | None
    before: int
    after: int


class _Context(msgspec.Struct, frozen=True):
    agent: Agent
    thread: Thread
    window: list[Message]
    tools: list[Tool]


async def compact_thread(
    thread_id: str,
    sent: CompactionSettingsInput | None,
    *,
    database: Database,
    catalog: Catalog,
    compactor: Compactor,
    clock: Clock,
    refuse_empty: bool,
) -> Compacted:
    """`refuse_empty`: whether a history with nothing to summarise is an error or merely stays as it is."""
    context = await database.read(lambda tx: _load_context(tx, thread_id))
    window = context.window
    if not compaction.summarisable(window):
        if refuse_empty:
            raise Invalid("There are no messages to compact in this conversation.")
        return Compacted(_known_summary(window), len(window), len(window))
    if len(compaction.evictable(window)) < _FEWEST_EVICTED:
        raise Invalid(
            "Summarization failed to reduce the number of messages: there is only one, and a summary would be another."
        )
    made = await compactor.compact(await _wanted(catalog, context, sent))
    await database.write(lambda tx: _write(tx, context, made, clock.now_us()))
    return Compacted(text_of(made.summary.parts), len(window), len(window) - len(made.evicted) + 1)


async def _wanted(catalog: Catalog, context: _Context, sent: CompactionSettingsInput | None) -> CompactionJob:
    settings = _settings(context.agent.compaction, sent)
    if sent is not None and sent.model is not None:
        await catalog.find(sent.model)  # a handle that the request made up is the request's mistake, not a vendor's
    return CompactionJob(
        window=context.window,
        settings=settings,
        model=await effective_model(catalog, context.agent, context.thread, None),
        timezone=context.agent.timezone,
        trigger=_TRIGGER,
        shown=True,
        fewest_evicted=_FEWEST_EVICTED,
        tools=tuple(ToolSchema(tool.name, tool.description, tool.parameters) for tool in tool_specs(context.tools)),
    )


async def _load_context(tx: Transaction, thread_id: str) -> _Context:
    thread = await threads.get(tx, thread_id)
    await require_idle(tx, thread_id, _WHAT)
    return _Context(
        await agents.get(tx, thread.agent_id),
        thread,
        await threads.window(tx, thread_id),
        await tools.of_agent(tx, thread.agent_id),
    )


async def _write(tx: Transaction, context: _Context, made: Compaction, now_us: int) -> None:
    """The summary took a while to make: it must still be a summary of what is there."""
    thread_id = context.thread.id
    await threads.lock(tx, thread_id)  # or a message could be accepted between the look and the change
    await require_idle(tx, thread_id, _WHAT)
    if await threads.window_ids(tx, thread_id) != [row.id for row in context.window]:
        raise Conflict("CONFLICT: The messages changed while they were being summarised. Send the request again.")
    await messages.insert_many(tx, context.agent.id, [made.summary])
    await threads.replace_window(tx, thread_id, [row.id for row in made.evicted], made.summary.id)
    await recompile_system(tx, thread_id, now_us, update_timestamp=True)


def _known_summary(window: list[Message]) -> str | None:
    return next((text_of(row.parts) for row in window if row.role == "summary"), None)


def _settings(known: CompactionSettings, sent: CompactionSettingsInput | None) -> CompactionSettings:
    """What was sent overrides the agent's; another mode has another prompt."""
    changes = sent.overrides() if sent else {}
    if changes.get("mode", known.mode) != known.mode:
        changes.setdefault("prompt", None)
    return msgspec.structs.replace(known, **changes)

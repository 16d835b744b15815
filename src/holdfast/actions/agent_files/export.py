"""Writes an agent as an agent file: what there is at one moment, also while a run is under way. Calls that have not
returned by then are repaired when the file is imported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.actions.threads.find import thread_of
from holdfast.core import heartbeats
from holdfast.core.messages import Message
from holdfast.core.records import Agent
from holdfast.engine.run_loading import blocks_in_view
from holdfast.errors import NotFound
from holdfast.llm.catalog.presets import completed
from holdfast.store import agents, archives, passages, threads, tools
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.version import VERSION
from holdfast.wire.agent_file_views import AgentContents, Skill, agent_file_view

_ALL: Final = Page(limit=None, order="asc")


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    conversation_id: str | None = None  # whose messages are written; None: those of the agent's default history
    scrub_messages: bool = False
    include_archives: bool = False


async def export_agent(
    database: Database, agent_id: str, options: ExportOptions, now_us: int, skills: Sequence[Skill] = ()
) -> dict[str, Any]:
    contents = await database.read_long(lambda tx: _contents(tx, agent_id, options))
    return await asyncio.to_thread(agent_file_view, contents, skills, VERSION, now_us)


async def _contents(tx: Transaction, agent_id: str, options: ExportOptions) -> AgentContents:
    agent = await agents.get(tx, agent_id)
    thread = await threads.get(tx, thread_of(options.conversation_id or agent_id, agent_id))
    if thread.agent_id != agent_id:
        raise NotFound(f"Conversation {thread.id} not found")
    archive = await archives.of_agent(tx, agent_id) if options.include_archives else None
    whole = completed(agent.model, in_words=agent.agent_type in heartbeats.AGENT_TYPES)
    return AgentContents(
        agent=msgspec.structs.replace(agent, model=whole),
        blocks=await blocks_in_view(tx, thread),
        tools=await tools.of_agent(tx, agent_id),
        tags=(await agents.tags_of(tx, (agent_id,))).get(agent_id, ()),
        secret_names=sorted(await agents.secret_ids_of(tx, agent_id)),
        messages=[] if options.scrub_messages else _shown(agent, await threads.window(tx, thread.id)),
        archive=archive,
        passages=[] if archive is None else await passages.list_of_archive(tx, archive.id, _ALL, None),
    )


def _shown(agent: Agent, window: Sequence[Message]) -> list[Message]:
    """An agent that forgets after each turn has in view only what came before its first one."""
    return [row for row in window if row.run_id is None or not agent.message_buffer_autoclear]

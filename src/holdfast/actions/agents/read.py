"""Agents as they are shown: the rows, and one query for each relation asked for, however many agents there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.actions.folders.attached_files import files_seen
from holdfast.core import heartbeat_loop
from holdfast.core.records import Agent
from holdfast.core.system_prompt import file_limits
from holdfast.llm.catalog.presets import completed
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import archives as archive_rows
from holdfast.store import blocks as block_rows
from holdfast.store import folders as folder_rows
from holdfast.store import groups as group_rows
from holdfast.store import identities as identity_rows
from holdfast.store import tags as tag_rows
from holdfast.store import threads as thread_rows
from holdfast.store import tools as tool_rows
from holdfast.store.agents import AgentFilter
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agents import ALL_RELATIONS, AgentState, MemoryView, Relations, Secret, agent_state, memory_view
from holdfast.wire.blocks import block_view
from holdfast.wire.folders import FileBlockView, file_block_view
from holdfast.wire.model_settings import ModelViews


async def list_agents(
    database: Database,
    filters: AgentFilter,
    page: Page,
    include: frozenset[str],
    reveal: SecretBox | None,
    order_by: agent_rows.OrderBy = "created_at",
) -> list[AgentState]:
    async def read(tx: Transaction) -> list[AgentState]:
        return await agent_states(tx, await agent_rows.list_agents(tx, filters, page, order_by), include, reveal)

    return await database.read(read)


async def list_agents_of_block(
    database: Database, block_id: str, page: Page, include: frozenset[str], reveal: SecretBox | None
) -> list[AgentState]:
    async def read(tx: Transaction) -> list[AgentState]:
        await block_rows.get(tx, block_id)
        return await _states_of(tx, AgentFilter(block_id=block_id, show_hidden=True), page, include, reveal)

    return await database.read(read)


async def list_agents_of_archive(
    database: Database, archive_id: str, page: Page, include: frozenset[str], reveal: SecretBox | None
) -> list[AgentState]:
    async def read(tx: Transaction) -> list[AgentState]:
        await archive_rows.get(tx, archive_id)
        return await _states_of(tx, AgentFilter(archive_id=archive_id, show_hidden=True), page, include, reveal)

    return await database.read(read)


async def list_agents_of_identity(
    database: Database, identity_id: str, page: Page, include: frozenset[str], reveal: SecretBox | None
) -> list[AgentState]:
    async def read(tx: Transaction) -> list[AgentState]:
        await identity_rows.get(tx, identity_id)
        return await _states_of(tx, AgentFilter(identity_id=identity_id, show_hidden=True), page, include, reveal)

    return await database.read(read)


async def _states_of(
    tx: Transaction, filters: AgentFilter, page: Page, include: frozenset[str], reveal: SecretBox | None
) -> list[AgentState]:
    return await agent_states(tx, await agent_rows.list_agents(tx, filters, page), include, reveal)


async def count_agents(database: Database, filters: AgentFilter) -> int:
    return await database.read(lambda tx: agent_rows.count_agents(tx, filters))


async def read_agent(
    database: Database, agent_id: str, include: frozenset[str], reveal: SecretBox | None
) -> AgentState:
    async def read(tx: Transaction) -> AgentState:
        agent = await agent_rows.get(tx, agent_id)
        (state,) = await agent_states(tx, (agent,), include, reveal)
        if "agent.blocks" in include:
            state["memory"]["file_blocks"] = await file_blocks(tx, agent)
        return state

    return await database.read(read)


async def read_memory(database: Database, agent_id: str) -> MemoryView:
    async def read(tx: Transaction) -> MemoryView:
        agent = await agent_rows.get(tx, agent_id)
        blocks = [block_view(block) for block in await block_rows.of_agent(tx, agent_id)]
        return memory_view(agent.agent_type, blocks, await file_blocks(tx, agent))

    return await database.read(read)


async def file_blocks(tx: Transaction, agent: Agent) -> list[FileBlockView]:
    limit = file_limits(agent).characters
    return [file_block_view(seen, limit) for seen in await files_seen(tx, agent)]


async def list_tags(database: Database, text: str | None, page: Page) -> list[str]:
    """Of agents and of blocks; `text` is a part of a tag."""
    return await database.read(lambda tx: tag_rows.list_tags(tx, text, page))


async def agent_states(
    tx: Transaction,
    agents: Sequence[Agent],
    include: frozenset[str],
    reveal: SecretBox | None,
    sent: Mapping[str, str] = {},
) -> list[AgentState]:
    """`reveal` opens the secrets that are included; without it they are masked, but for those that the caller has just
    `sent`."""
    if not agents:
        return []
    agent_ids = [agent.id for agent in agents]
    windows = await thread_rows.windows_ids(tx, [agent.id for agent in agents if not agent.message_buffer_autoclear])
    if forgetful := [agent.id for agent in agents if agent.message_buffer_autoclear]:
        windows |= await thread_rows.windows_ids(tx, forgetful, of_runs=False)
    blocks = await block_rows.of_agents(tx, agent_ids) if "agent.blocks" in include else {}
    tools = await tool_rows.of_agents(tx, agent_ids) if "agent.tools" in include else {}
    tags = await agent_rows.tags_of(tx, agent_ids) if "agent.tags" in include else {}
    secrets = await agent_rows.secrets_of(tx, agent_ids) if "agent.secrets" in include else {}
    folders = await folder_rows.of_agents(tx, agent_ids) if "agent.sources" in include else {}
    waiting = await agent_rows.pending_approvals_of(tx, agent_ids) if "agent.pending_approval" in include else {}
    identities = await identity_rows.of_agents(tx, agent_ids) if "agent.identities" in include else {}
    groups = await group_rows.managed_by(tx, agent_ids) if "agent.managed_group" in include else {}
    models = ModelViews()
    return [
        agent_state(
            _with_whole_model(agent),
            Relations(
                message_ids=windows.get(agent.id, ()),
                blocks=blocks.get(agent.id, ()),
                tools=tools.get(agent.id, ()),
                tags=tags.get(agent.id, ()),
                secrets=[_shown(secret, reveal, sent) for secret in secrets.get(agent.id, ())],
                folders=folders.get(agent.id, ()),
                pending_approval=waiting[agent.id].request if agent.id in waiting else None,
                identities=identities.get(agent.id, ()),
                managed_group=groups.get(agent.id),
                changed_secrets=waiting[agent.id].changed_secrets if agent.id in waiting else (),
            ),
            models,
        )
        for agent in agents
    ]


async def whole_state(tx: Transaction, agent_id: str, sent: Mapping[str, str] = {}) -> AgentState:
    """With every secret masked, but for those that the caller has just `sent`."""
    agent = await agent_rows.get(tx, agent_id)
    (state,) = await agent_states(tx, (agent,), ALL_RELATIONS, None, sent)
    if state["sources"]:
        state["memory"]["file_blocks"] = await file_blocks(tx, agent)
    return state


def _shown(secret: agent_rows.SealedSecret, reveal: SecretBox | None, sent: Mapping[str, str]) -> Secret:
    value = reveal.open(secret.sealed) if reveal else sent.get(secret.key)
    return Secret(secret.id, secret.key, value, secret.description)


def _with_whole_model(agent: Agent) -> Agent:
    whole = completed(agent.model, in_words=agent.agent_type in heartbeat_loop.AGENT_TYPES)
    return agent if whole is agent.model else msgspec.structs.replace(agent, model=whole)

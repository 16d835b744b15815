"""Brings the agents of a file into the database: everything is read and decided first, then written in one transaction,
or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.agent_files.imported_agents import AgentPlan, PlanAgents, write_agent
from holdfast.actions.agent_files.imported_folders import (
    ArchivePlan,
    FolderPlan,
    PlanFolders,
    StoredFolders,
    attach_folders,
    planned_archives,
    write_archive,
    write_folders,
)
from holdfast.actions.agent_files.imported_groups import (
    GroupPlan,
    IdentityPlan,
    new_group_ids,
    planned_groups,
    planned_identities,
    write_group,
    write_identities,
)
from holdfast.actions.agent_files.imported_model import Embeddings, file_models
from holdfast.actions.agent_files.imported_tools import (
    ServerPlan,
    StoredTools,
    WantedTools,
    planned_servers,
    store_tools,
    wanted_tools,
    write_servers,
)
from holdfast.actions.agents.create import add_sleeptime_agent
from holdfast.actions.agents.model_choice import Defaults
from holdfast.actions.blocks import check_limit
from holdfast.actions.tools import base_tools
from holdfast.actions.tools.attach import attach_named
from holdfast.core.records import Block, Tool
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.mcp_servers import McpServers
from holdfast.engine.tasks import TaskWorker
from holdfast.errors import Invalid
from holdfast.llm.base import Catalog
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.files import NAMES
from holdfast.wire.agent_files import LEGACY_GROUPS, AgentFile, ImportOptions
from holdfast.wire.blocks import new_block

# What is not imported, and what that means for the agents.
_LEFT_OUT: Final = {
    LEGACY_GROUPS: "the older format names the agents of a group by ids that mean nothing here",
    "skills": "skills are kept by the program that uses them, not by this server",
}

log = logging.getLogger(__name__)


class Imported(msgspec.Struct, frozen=True):
    agent_ids: list[str]
    repairs: list[str]
    warnings: list[str]


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written, with the ids that it gets. The transaction may be tried more than once."""

    agents: Sequence[AgentPlan]
    blocks: Sequence[Block]
    servers: Sequence[ServerPlan]
    tools: WantedTools
    archives: Sequence[ArchivePlan]
    folders: Sequence[FolderPlan]
    groups: Sequence[GroupPlan]
    identities: Sequence[IdentityPlan]
    override_tools: bool
    is_ours: bool
    warnings: Sequence[str]
    now_us: int


class _Written(msgspec.Struct, frozen=True):
    agent_ids: list[str]
    has_new_files: bool
    warnings: list[str]  # that only the database could tell


class ImportAgents:
    def __init__(
        self,
        database: Database,
        catalog: Catalog,
        secretbox: SecretBox,
        archival: ArchivalMemory,
        servers: McpServers,
        tasks: TaskWorker,
        defaults: Defaults,
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._secretbox = secretbox
        self._archival = archival
        self._servers = servers
        self._tasks = tasks
        self._defaults = defaults

    async def __call__(self, file: AgentFile, options: ImportOptions, now_us: int) -> Imported:
        plan = await self._plan(file, options, now_us)
        written = await self._database.write(lambda tx: _write(tx, plan))
        if written.has_new_files:
            self._tasks.wake()
        imported = Imported(
            written.agent_ids,
            [repair for each in plan.agents for repair in each.history.repairs],
            [*plan.warnings, *written.warnings],
        )
        log.info("imported from an agent file: %s", ", ".join(imported.agent_ids))
        for line in (*imported.repairs, *imported.warnings):
            log.warning("agent file: %s", line)
        return imported

    async def _plan(self, file: AgentFile, options: ImportOptions, now_us: int) -> _Plan:
        warnings = _left_out(file)
        tools = wanted_tools(file, options.project_id, now_us)
        blocks = _new_blocks(file, now_us)
        models = await file_models(file, options, self._catalog, self._defaults, warnings)
        embeddings = Embeddings(self._catalog, options, self._defaults.embedding, warnings)
        agent_ids = {local: ids.new("agent") for local in file.agents}
        new_ids = {**agent_ids, **new_group_ids(file)}
        plan_agents = PlanAgents(file, options, self._secretbox, new_ids, warnings, now_us)
        agents = await plan_agents(models, embeddings, blocks, tools)
        block_ids = {local: block.id for local, block in blocks.items()}
        return _Plan(
            agents=agents,
            blocks=list(blocks.values()),
            servers=await planned_servers(file, self._servers, warnings, now_us),
            tools=tools,
            archives=await planned_archives(file, agent_ids, embeddings, self._archival, now_us),
            folders=await PlanFolders(self._database, embeddings, now_us)(file, warnings),
            groups=planned_groups(file, new_ids, blocks, options.project_id, warnings, now_us),
            identities=planned_identities(file, agent_ids, block_ids, options.project_id, now_us),
            override_tools=options.override_existing_tools,
            is_ours=file.is_ours,
            warnings=[*warnings, *tools.warnings],
            now_us=now_us,
        )


def _left_out(file: AgentFile) -> list[str]:
    warnings = [
        f"{section}: {len(file.others[section])} left out, because {why}"
        for section, why in _LEFT_OUT.items()
        if file.others.get(section)
    ]
    warnings += [
        f"{entry.where}: its identities are left out: it names them by ids that mean nothing here"
        for entry in file.agents.values()
        if entry.fields.identity_ids
    ]
    return warnings


def _new_blocks(file: AgentFile, now_us: int) -> dict[str, Block]:
    """Blocks are listed by age. This server writes them in that order; in other files it is the order in which the
    first agent that has them names them."""
    named_first = [] if file.is_ours else [local for entry in file.agents.values() for local in entry.block_ids]
    ages = {local: age for age, local in enumerate(dict.fromkeys([*named_first, *file.sections.blocks]))}
    blocks: dict[str, Block] = {}
    for local, entry in file.sections.blocks.items():
        blocks[local] = new_block(entry.block, ids.new("block"), now_us + ages[local])
        with named(entry.where):
            check_limit(blocks[local])
    return blocks


async def _write(tx: Transaction, plan: _Plan) -> _Written:
    warnings: list[str] = []
    servers = await write_servers(tx, plan.servers, warnings)
    tools = await store_tools(tx, plan.tools.tools, servers, plan.now_us, override=plan.override_tools)
    await block_rows.insert_many(tx, plan.blocks)
    folders = await write_folders(tx, plan.folders, warnings)
    for each in plan.agents:
        with named(each.where):
            await write_agent(tx, each, await _tools_of(tx, each, tools, plan.now_us), tools.guards)
            await _attach(tx, each, folders, plan)
    for archive in plan.archives:
        await write_archive(tx, archive)
    for group in plan.groups:
        await write_group(tx, group)
    agent_ids = [each.agent.id for each in plan.agents]
    for each in plan.agents:
        if each.wants_sleeptime_agent:
            with named(each.where):
                agent_ids += await _look_after(tx, each, plan.now_us)
    warnings += await write_identities(tx, plan.identities)
    return _Written(agent_ids, bool(folders.new_files), [*tools.warnings, *warnings])


async def _attach(tx: Transaction, each: AgentPlan, folders: StoredFolders, plan: _Plan) -> None:
    if not each.folders:
        return
    await attach_folders(tx, each.agent, each.folders, each.windows, folders)
    if not plan.is_ours:  # the file tools of an agent of ours are in the file, unless they were taken from it
        agent = await agent_rows.get(tx, each.agent.id, lock=True)
        await attach_named(tx, agent, NAMES, plan.now_us)


async def _look_after(tx: Transaction, each: AgentPlan, now_us: int) -> Sequence[str]:
    """The file says that it has sleeptime, and nothing of a group."""
    agent = await agent_rows.get(tx, each.agent.id)
    return (await add_sleeptime_agent(tx, agent, each.blocks, now_us)).agent_ids


async def _tools_of(tx: Transaction, each: AgentPlan, stored: StoredTools, now_us: int) -> list[Tool]:
    by_name: Mapping[str, Tool] = await base_tools.find_named(tx, each.tool_names, now_us)
    if missing := [name for name in each.tool_names if name not in by_name]:
        raise Invalid(f"it names tools that are neither in the file nor on this server: {', '.join(missing)}")
    found = [stored.by_local[local] for local in each.tool_locals if local in stored.by_local]
    return [*found, *by_name.values()]

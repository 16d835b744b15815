"""Brings the agents of a file into the database: everything is read and decided first, then written in one transaction,
or not at all.

A section that this server learns to store is taken out of `_LEFT_OUT`, gets a field in `_Plan`, and a function that
writes it, like `_write_archive`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.agent_files.imported_history import History, imported_history, new_history
from holdfast.actions.agent_files.imported_model import Embeddings, FileModel, file_models
from holdfast.actions.agent_files.imported_tools import StoredTools, WantedTools, store_tools, wanted_tools
from holdfast.actions.agents.create import check_file_limits, check_first_rules, seal_secrets
from holdfast.actions.agents.model_choice import Defaults, Embedding
from holdfast.actions.blocks import check_limit
from holdfast.actions.tools import base_tools
from holdfast.core.default_texts import DEFAULT_SYSTEM
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Archive, Block, Thread, Tool
from holdfast.core.tool_rules import Rule
from holdfast.engine.archival import ArchivalMemory, NewPassage, PassageWrite, model_in
from holdfast.errors import Invalid
from holdfast.llm.base import Catalog
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import archives as archive_rows
from holdfast.store import blocks as block_rows
from holdfast.store import messages as message_rows
from holdfast.store import passages as passage_rows
from holdfast.store import threads as thread_rows
from holdfast.store import tools as tool_rows
from holdfast.store.agents import SealedSecret
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agent_files import AgentEntry, AgentFile, FileAgent, ImportOptions
from holdfast.wire.blocks import new_block
from holdfast.wire.bounds import MAX_NAME_BYTES
from holdfast.wire.times import optional_microseconds
from holdfast.wire.tool_rules import rules_of

_COPY: Final = "_copy"
_ROWS_AT_ONCE: Final = 200  # a driver encodes them in one go, and nothing else runs meanwhile
# Sections that are not imported, and what that means for the agents.
_LEFT_OUT: Final = {
    "groups": "groups of agent files are not imported yet: the agents are, each by itself",
    "sources": "folders are not imported yet: the agents come without them",
    "files": "files are not imported yet: upload them to a folder, and attach that",
    "mcp_servers": "MCP servers are not imported: add them here, with their secrets, and their tools work again",
    "skills": "skills are kept by the program that uses them, not by this server",
}

log = logging.getLogger(__name__)


class Imported(msgspec.Struct, frozen=True):
    agent_ids: list[str]
    repairs: list[str]
    warnings: list[str]


class _AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    agent: Agent
    blocks: Sequence[Block]
    tool_locals: Sequence[str]
    tool_names: Sequence[str]
    tags: Sequence[str]
    secrets: Sequence[SealedSecret]
    history: History


class _ArchivePlan(msgspec.Struct, frozen=True):
    archive: Archive
    passages: PassageWrite
    agent_ids: Sequence[str]


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is written, with the ids that it gets. The transaction may be tried more than once."""

    agents: Sequence[_AgentPlan]
    blocks: Sequence[Block]
    tools: WantedTools
    archives: Sequence[_ArchivePlan]
    override_tools: bool
    warnings: Sequence[str]
    now_us: int


class ImportAgents:
    def __init__(
        self, database: Database, catalog: Catalog, secretbox: SecretBox, archival: ArchivalMemory, defaults: Defaults
    ) -> None:
        self._database = database
        self._catalog = catalog
        self._secretbox = secretbox
        self._archival = archival
        self._defaults = defaults

    async def __call__(self, file: AgentFile, options: ImportOptions, now_us: int) -> Imported:
        plan = await self._plan(file, options, now_us)
        found_in_database = await self._database.write(lambda tx: _write(tx, plan))
        imported = Imported(
            [each.agent.id for each in plan.agents],
            [repair for each in plan.agents for repair in each.history.repairs],
            [*plan.warnings, *found_in_database],
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
        agents: dict[str, _AgentPlan] = {}
        for number, (local, entry) in enumerate(file.agents.items()):
            embedding = await embeddings.of(entry.where, entry.fields)
            with named(entry.where):
                agent = _agent(entry.fields, models[local], embedding, options, now_us + number)
                agent = msgspec.structs.replace(agent, tool_rules=_kept_rules(entry, agent, tools, warnings))
                secrets = self._secrets(entry, options, warnings)
            own_blocks = [blocks[each] for each in dict.fromkeys(entry.block_ids)]
            agents[local] = _AgentPlan(
                where=entry.where,
                agent=agent,
                blocks=own_blocks,
                tool_locals=list(dict.fromkeys(entry.fields.tool_ids or ())),
                tool_names=list(dict.fromkeys(entry.fields.tools or ())),
                tags=entry.fields.tags or (),
                secrets=secrets,
                history=await _history(entry, agent, own_blocks, models[local], options, file.is_ours, now_us),
            )
        return _Plan(
            agents=list(agents.values()),
            blocks=list(blocks.values()),
            tools=tools,
            archives=await self._archives(file, agents, embeddings, now_us),
            override_tools=options.override_existing_tools,
            warnings=[*warnings, *tools.warnings],
            now_us=now_us,
        )

    def _secrets(self, entry: AgentEntry, options: ImportOptions, warnings: list[str]) -> list[SealedSecret]:
        names = entry.fields.given_secrets or {}
        warnings += [
            f"{entry.where}: it declares no secret {name}, so the one that was sent is not stored"
            for name in sorted(options.secrets.keys() - names.keys())
        ]
        return seal_secrets({name: options.secrets.get(name, value) for name, value in names.items()}, self._secretbox)

    async def _archives(
        self, file: AgentFile, agents: dict[str, _AgentPlan], embeddings: Embeddings, now_us: int
    ) -> list[_ArchivePlan]:
        """With the vectors of their passages, which files do not hold."""
        plans: list[_ArchivePlan] = []
        for local, entry in file.archives.items():
            embedding = await embeddings.of(entry.where, entry.archive)
            archive = Archive(
                id=ids.new("archive"),
                name=entry.archive.name,
                description=entry.archive.description,
                embedding=embedding.handle or model_in(embedding.config),
                embedding_config=embedding.config,
                created_us=now_us,
                updated_us=now_us,
            )
            new = [
                NewPassage(
                    text=passage.text,
                    tags=tuple(passage.tags or ()),
                    metadata=passage.metadata or {},
                    created_us=optional_microseconds(passage.created_at),
                )
                for passage in entry.archive.passages
            ]
            with named(entry.where):
                write = await self._archival.prepared(archive, new)
            users = [
                agents[each].agent.id for each, one in file.agents.items() if local in (one.fields.archive_ids or ())
            ]
            plans.append(_ArchivePlan(archive, write, users))
        return plans


def _left_out(file: AgentFile) -> list[str]:
    warnings = [
        f"{section}: {len(file.others[section])} left out, because {why}"
        for section, why in _LEFT_OUT.items()
        if file.others.get(section)
    ]
    for entry in file.agents.values():
        if entry.fields.identity_ids:
            warnings.append(
                f"{entry.where}: its identities are left out: a file names them by ids that mean nothing here"
            )
        if entry.fields.enable_sleeptime:
            warnings.append(
                f"{entry.where}: it is imported without sleeptime: set enable_sleeptime to give it a second agent"
            )
    return warnings


def _new_blocks(file: AgentFile, now_us: int) -> dict[str, Block]:
    """In the order in which the first agent that has them names them: blocks are listed by age."""
    named_first = [local for entry in file.agents.values() for local in entry.block_ids]
    ages = {local: age for age, local in enumerate(dict.fromkeys([*named_first, *file.blocks]))}
    blocks: dict[str, Block] = {}
    for local, entry in file.blocks.items():
        blocks[local] = new_block(entry.block, ids.new("block"), now_us + ages[local])
        with named(entry.where):
            check_limit(blocks[local])
    return blocks


def _agent(fields: FileAgent, model: FileModel, embedding: Embedding, options: ImportOptions, now_us: int) -> Agent:
    check_file_limits(fields)
    system = DEFAULT_SYSTEM.get(fields.agent_type) if fields.system is None else fields.system
    if system is None:
        raise Invalid(f"an agent of type {fields.agent_type} needs its instructions in `system`")
    if fields.name is None:
        raise Invalid("it has no name")
    if len(fields.archive_ids or ()) > 1:
        raise Invalid("it names several archives; an agent has at most one")
    return Agent(
        id=ids.new("agent"),
        name=_name(fields.name, options),
        agent_type=fields.agent_type,
        system=system,
        model=model.choice,
        embedding=embedding.handle,
        embedding_config=embedding.config,
        description=fields.description,
        metadata=fields.metadata,
        tool_rules=rules_of(fields.tool_rules or ()),
        compaction=model.compaction,
        timezone=fields.timezone or "UTC",
        message_buffer_autoclear=bool(fields.message_buffer_autoclear),
        enable_sleeptime=None if fields.enable_sleeptime else fields.enable_sleeptime,
        max_files_open=fields.max_files_open,
        per_file_view_window_char_limit=fields.per_file_view_window_char_limit,
        hidden=fields.hidden,
        project_id=options.project_id,
        created_us=now_us,
        updated_us=now_us,
    )


def _name(name: str, options: ImportOptions) -> str:
    if options.name is not None or not options.append_copy_suffix:
        return options.name or name
    return name + _COPY if len((name + _COPY).encode()) <= MAX_NAME_BYTES else name


def _kept_rules(entry: AgentEntry, agent: Agent, tools: WantedTools, warnings: list[str]) -> tuple[Rule, ...]:
    """A rule about a tool that is left out could keep the agent from calling any."""
    kept = tuple(rule for rule in agent.tool_rules if rule.tool_name not in tools.left_out)
    warnings += [
        f"{entry.where}: its rules about {name} are left out with the tool"
        for name in dict.fromkeys(rule.tool_name for rule in agent.tool_rules if rule.tool_name in tools.left_out)
    ]
    check_first_rules(kept, agent.model.handle.partition("/")[2])
    return kept


async def _history(
    entry: AgentEntry,
    agent: Agent,
    blocks: Sequence[Block],
    model: FileModel,
    options: ImportOptions,
    is_ours: bool,
    now_us: int,
) -> History:
    if options.strip_messages:
        return new_history(agent, blocks, now_us)
    return await asyncio.to_thread(
        imported_history, entry, agent, blocks, model.file_handle, is_ours=is_ours, now_us=now_us
    )


async def _write(tx: Transaction, plan: _Plan) -> list[str]:
    """Gives the warnings that only the database could tell."""
    stored = await store_tools(tx, plan.tools.tools, plan.now_us, override=plan.override_tools)
    await block_rows.insert_many(tx, plan.blocks)
    for each in plan.agents:
        with named(each.where):
            tools = await _tools_of(tx, each, stored, plan.now_us)
            await _write_agent(tx, each, tools, stored.guards)
    for archive in plan.archives:
        await _write_archive(tx, archive)
    return stored.warnings


async def _tools_of(tx: Transaction, each: _AgentPlan, stored: StoredTools, now_us: int) -> list[Tool]:
    by_name = await base_tools.find_named(tx, each.tool_names, now_us)
    if missing := [name for name in each.tool_names if name not in by_name]:
        raise Invalid(f"it names tools that are neither in the file nor on this server: {', '.join(missing)}")
    found = [stored.by_local[local] for local in each.tool_locals if local in stored.by_local]
    return [*found, *by_name.values()]


async def _write_agent(tx: Transaction, each: _AgentPlan, tools: Sequence[Tool], guards: dict[str, Rule]) -> None:
    added = [guards[tool.name] for tool in tools if tool.name in guards]
    agent = msgspec.structs.replace(each.agent, tool_rules=base_tools.with_rules(each.agent.tool_rules, added))
    await agent_rows.insert(tx, agent)
    await block_rows.attach_many(tx, agent.id, each.blocks)
    await tool_rows.attach_many(tx, agent.id, [tool.id for tool in tools])
    await agent_rows.add_tags(tx, agent.id, each.tags)
    await agent_rows.add_secrets(tx, agent.id, each.secrets)
    now_us = agent.created_us
    await thread_rows.insert(tx, Thread(id=agent.id, agent_id=agent.id, created_us=now_us, updated_us=now_us))
    await _write_history(tx, agent.id, each.history)


async def _write_history(tx: Transaction, thread_id: str, history: History) -> None:
    """What had left the window is older than what is in it, but for the system message."""
    first, *others = history.window
    everything: list[Message] = [first, *history.outside, *others]
    start = await thread_rows.reserve(tx, thread_id, len(everything))
    outside = range(1, 1 + len(history.outside))
    places = [(start + place, row.id) for place, row in enumerate(everything)]
    for begin in range(0, len(everything), _ROWS_AT_ONCE):
        await message_rows.insert_many(tx, thread_id, everything[begin : begin + _ROWS_AT_ONCE])
    await thread_rows.place(tx, thread_id, [places[0], *places[outside.stop :]])
    await thread_rows.place_outside(tx, thread_id, places[outside.start : outside.stop])
    if history.digest is not None:
        await thread_rows.set_system_digest(tx, thread_id, history.digest)


async def _write_archive(tx: Transaction, plan: _ArchivePlan) -> None:
    await archive_rows.insert(tx, plan.archive)
    await passage_rows.insert_many(tx, plan.passages.rows)
    for agent_id in plan.agent_ids:
        await archive_rows.attach(tx, agent_id, plan.archive.id, is_owner=len(plan.agent_ids) == 1)

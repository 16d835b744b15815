"""The agents of an agent file, with what belongs to each alone: settings, rules, secrets, history.

A history is the file's, repaired, or a system message alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.actions.agent_files.errors import named
from holdfast.actions.agent_files.imported_groups import sleeptime_flags
from holdfast.actions.agent_files.imported_model import Embeddings, FileModel
from holdfast.actions.agent_files.imported_tools import WantedTools
from holdfast.actions.agents.create import (
    check_can_be_looked_after,
    check_file_limits,
    check_first_rules,
    first_messages,
    seal_secrets,
)
from holdfast.actions.agents.model_choice import Embedding
from holdfast.actions.tools import base_tools
from holdfast.core import heartbeat_loop, system_prompt
from holdfast.core.default_texts import DEFAULT_SYSTEM
from holdfast.core.history_repair import repaired
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block, Thread, Tool
from holdfast.core.tool_rules import Rule
from holdfast.errors import Invalid, Unsupported
from holdfast.secretbox import SecretBox
from holdfast.store import agents as agent_rows
from holdfast.store import blocks as block_rows
from holdfast.store import messages as message_rows
from holdfast.store import threads as thread_rows
from holdfast.store import tools as tool_rows
from holdfast.store.agents import SealedSecret
from holdfast.store.transaction import Transaction
from holdfast.wire.agent_file_messages import FileMessage, MessageReader, Origin
from holdfast.wire.agent_file_sections import FileWindow
from holdfast.wire.agent_files import AgentEntry, AgentFile, FileAgent, ImportOptions
from holdfast.wire.bounds import MAX_NAME_BYTES
from holdfast.wire.tool_rules import rules_of

_COPY: Final = "_copy"
_SLEEPTIME: Final = "-sleeptime"  # how the name of the agent ends that looks after another
_ROWS_AT_ONCE: Final = 200  # a driver encodes them in one go, and nothing else runs meanwhile


class History(msgspec.Struct, frozen=True, kw_only=True):
    window: Sequence[Message]
    outside: Sequence[Message] = ()  # what had left the context window before
    digest: str | None = None  # of a system message that was compiled now; the file's is compiled anew by the next turn
    repairs: Sequence[str] = ()


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    agent: Agent
    blocks: Sequence[Block]
    tool_locals: Sequence[str]
    tool_names: Sequence[str]
    tags: Sequence[str]
    secrets: Sequence[SealedSecret]
    history: History
    folders: Sequence[str]  # by their ids in the file
    windows: Sequence[FileWindow]
    wants_sleeptime_agent: bool


class PlanAgents:
    """`new_ids`: of the agents and groups of the file."""

    def __init__(
        self,
        file: AgentFile,
        options: ImportOptions,
        secretbox: SecretBox,
        new_ids: Mapping[str, str],
        warnings: list[str],
        now_us: int,
    ) -> None:
        self._file = file
        self._options = options
        self._secretbox = secretbox
        self._new_ids = new_ids
        self._warnings = warnings
        self._now_us = now_us
        self._looked_after = sleeptime_flags(file)
        self._first_name = next(iter(file.agents.values())).fields.name or ""

    async def __call__(
        self,
        models: Mapping[str, FileModel],
        embeddings: Embeddings,
        blocks: Mapping[str, Block],
        tools: WantedTools,
    ) -> list[AgentPlan]:
        plans: list[AgentPlan] = []
        for number, (local, entry) in enumerate(self._file.agents.items()):
            embedding = await embeddings.of(entry.where, entry.fields)
            with named(entry.where):
                agent = self._agent(local, entry.fields, models[local], embedding, self._now_us + number)
                agent = msgspec.structs.replace(agent, tool_rules=_kept_rules(entry, agent, tools, self._warnings))
                secrets = self._secrets(entry)
            own_blocks = [blocks[each] for each in dict.fromkeys(entry.block_ids)]
            plans.append(
                AgentPlan(
                    where=entry.where,
                    agent=agent,
                    blocks=own_blocks,
                    tool_locals=list(dict.fromkeys(entry.fields.tool_ids or ())),
                    tool_names=list(dict.fromkeys(entry.fields.tools or ())),
                    tags=entry.fields.tags or (),
                    secrets=secrets,
                    history=await self._history(entry, agent, own_blocks, models[local]),
                    folders=entry.fields.folders,
                    windows=entry.fields.files_agents or (),
                    wants_sleeptime_agent=bool(agent.enable_sleeptime) and local not in self._looked_after,
                )
            )
        return plans

    def _agent(self, local: str, fields: FileAgent, model: FileModel, embedding: Embedding, now_us: int) -> Agent:
        check_file_limits(fields)
        system = DEFAULT_SYSTEM.get(fields.agent_type) if fields.system is None else fields.system
        if system is None:
            raise Invalid(f"an agent of type {fields.agent_type} needs its instructions in `system`")
        if fields.name is None:
            raise Invalid("it has no name")
        if len(fields.archive_ids or ()) > 1:
            raise Invalid("it names several archives; an agent has at most one")
        return Agent(
            id=self._new_ids[local],
            name=self._name(fields.name),
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
            enable_sleeptime=self._sleeptime(local, fields),
            max_files_open=fields.max_files_open,
            per_file_view_window_char_limit=fields.per_file_view_window_char_limit,
            hidden=fields.hidden,
            project_id=self._options.project_id,
            created_us=now_us,
            updated_us=now_us,
        )

    def _sleeptime(self, local: str, fields: FileAgent) -> bool | None:
        """A group that looks after the agent tells it; other files say it of the agent alone."""
        if local not in self._looked_after and not fields.enable_sleeptime:
            return fields.enable_sleeptime
        try:
            check_can_be_looked_after(fields.agent_type)
        except Unsupported as error:
            self._warnings.append(
                f"{self._file.agents[local].where}: it is imported without sleeptime. {error.message}"
            )
            return None
        return self._looked_after.get(local, True)

    def _name(self, name: str) -> str:
        """All agents get the name that is asked for; the one that looks after the first keeps its ending."""
        if self._options.name is not None:
            ending = _SLEEPTIME if name == self._first_name + _SLEEPTIME else ""
            return self._options.name + ending
        if not self._options.append_copy_suffix:
            return name
        return name + _COPY if len((name + _COPY).encode()) <= MAX_NAME_BYTES else name

    def _secrets(self, entry: AgentEntry) -> list[SealedSecret]:
        names = entry.fields.given_secrets or {}
        given = self._options.secrets
        self._warnings += [
            f"{entry.where}: it declares no secret {name}, so the one that was sent is not stored"
            for name in sorted(given.keys() - names.keys())
        ]
        return seal_secrets({name: given.get(name, value) for name, value in names.items()}, self._secretbox)

    async def _history(self, entry: AgentEntry, agent: Agent, blocks: Sequence[Block], model: FileModel) -> History:
        if self._options.strip_messages:
            return new_history(agent, blocks, self._now_us)
        return await asyncio.to_thread(
            imported_history,
            entry,
            agent,
            blocks,
            model.file_handle,
            self._new_ids,
            is_ours=self._file.is_ours,
            now_us=self._now_us,
        )


def _kept_rules(entry: AgentEntry, agent: Agent, tools: WantedTools, warnings: list[str]) -> tuple[Rule, ...]:
    """A rule about a tool that is left out could keep the agent from calling any."""
    kept = tuple(rule for rule in agent.tool_rules if rule.tool_name not in tools.left_out)
    warnings += [
        f"{entry.where}: its rules about {name} are left out with the tool"
        for name in dict.fromkeys(rule.tool_name for rule in agent.tool_rules if rule.tool_name in tools.left_out)
    ]
    check_first_rules(kept, agent.model.handle.partition("/")[2])
    return kept


async def write_agent(tx: Transaction, each: AgentPlan, tools: Sequence[Tool], guards: Mapping[str, Rule]) -> None:
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


def new_history(agent: Agent, blocks: Sequence[Block], now_us: int) -> History:
    return History(window=[_system(agent, blocks, now_us)], digest=system_prompt.digest(agent, blocks, None))


def imported_history(
    entry: AgentEntry,
    agent: Agent,
    blocks: Sequence[Block],
    file_handle: str,
    new_ids: Mapping[str, str],
    *,
    is_ours: bool,
    now_us: int,
) -> History:
    """`file_handle`: the model that the agent had in the file; `new_ids`: of the file's agents and groups. Takes long
    for a long history: use a thread."""
    if not entry.messages:
        return new_history(agent, blocks, now_us)
    config = entry.fields.llm_config
    origin = Origin(
        model_name=config.model if config else None,
        handle=file_handle,
        is_ours=is_ours,
        thinks_in_text=not is_ours and agent.agent_type in heartbeat_loop.AGENT_TYPES,
        now_us=now_us,
        new_ids=new_ids,
    )
    reader = MessageReader(origin, entry.messages)
    places = {message.id: place for place, message in enumerate(entry.messages)}
    rows = {message.id: _row(reader, entry, message, places) for message in entry.messages}
    in_context = set(entry.in_context)
    told = [f"{entry.where} messages[{places[local]}]: {what}" for local, what in reader.losses]
    window, repairs = _in_order(entry, [rows[local] for local in entry.in_context], places)
    if not window or window[0].role != "system":
        window = [_system(agent, blocks, now_us), *window]
        repairs.insert(0, f"{entry.where}: its history does not begin with a system message; one was put before it")
    return History(
        window=window,
        outside=[row for local, row in rows.items() if local not in in_context],
        repairs=[*told, *repairs],
    )


def _row(reader: MessageReader, entry: AgentEntry, message: FileMessage, places: dict[str, int]) -> Message:
    with named(f"{entry.where} messages[{places[message.id]}]"):
        return reader.row(message)


def _in_order(
    entry: AgentEntry, window: Sequence[Message], places: dict[str, int]
) -> tuple[Sequence[Message], list[str]]:
    result = repaired(window)
    told = [f"{entry.where} messages[{places[entry.in_context[each.index]]}]: {each.what}" for each in result.repairs]
    return result.rows, told


def _system(agent: Agent, blocks: Sequence[Block], now_us: int) -> Message:
    return first_messages(agent, blocks, (), now_us)[0]

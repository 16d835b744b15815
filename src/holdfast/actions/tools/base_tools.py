"""The tools that ship with the server: which exist, which kinds of agent start with them, and the rules they bring."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from holdfast import ids
from holdfast.core.records import Tool
from holdfast.core.tool_rules import ContinueLoop, ExitLoop, RequiresApproval, Rule
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.tools import builtin

_BY_TYPE: Final[dict[str, tuple[str, ...]]] = {
    "voice_sleeptime_agent": ("store_memories", "rethink_user_memory", "finish_rethinking_memory"),
    "voice_convo_agent": ("send_message", "search_memory"),
    "sleeptime_agent": ("memory_replace", "memory_insert", "memory_rethink", "memory_finish_edits"),
    "memgpt_v2_agent": ("send_message", "conversation_search", "memory_replace", "memory_insert"),
    "letta_v1_agent": ("conversation_search", "memory_replace", "memory_insert"),
    "react_agent": (),
    "workflow_agent": (),
}
_WITH_SLEEPTIME: Final = ("send_message", "conversation_search", "archival_memory_search")
_OTHERWISE: Final = (
    "send_message",
    "conversation_search",
    "core_memory_append",
    "core_memory_replace",
    "memory",
    "memory_apply_patch",
)
_LOOKED_AFTER_BY_SLEEPTIME: Final = frozenset(_BY_TYPE) - {
    "voice_sleeptime_agent",
    "voice_convo_agent",
    "sleeptime_agent",
}
_ENDS_TURN: Final = frozenset({"send_message", "send_message_to_agent_async", "memory_finish_edits"})
_GO_ON: Final = frozenset({"letta_core", "letta_memory_core", "letta_sleeptime_core"})  # types of tools
# Models that follow their instructions well enough to need no rules.
_NEED_NO_RULES: Final = ("claude-4-sonnet", "claude-3-5-sonnet", "gpt-5", "gemini-2.5-pro")


def base_tool_names(agent_type: str, enable_sleeptime: bool | None) -> tuple[str, ...]:
    if enable_sleeptime and (agent_type in _LOOKED_AFTER_BY_SLEEPTIME or agent_type not in _BY_TYPE):
        return _WITH_SLEEPTIME
    return _BY_TYPE.get(agent_type, _OTHERWISE)


def is_base_tool(tool: Tool) -> bool:
    return tool.tool_type != "custom" and tool.name in builtin.TOOLS


async def restore_base_tools(database: Database, now_us: int) -> list[Tool]:
    return await database.write(lambda tx: sync_base_tools(tx, now_us))


async def sync_base_tools(tx: Transaction, now_us: int) -> list[Tool]:
    """Make the stored rows say what this release ships; what the operator tuned on them stays."""
    known = await tool_rows.find_many_named(tx, list(builtin.TOOLS))
    synced: list[Tool] = []
    for name in builtin.TOOLS:
        shipped, stored = shipped_tool(name, now_us), known.get(name)
        if stored is None:
            await tool_rows.insert(tx, shipped)
            synced.append(shipped)
        else:
            synced.append(await _refreshed(tx, stored, shipped, now_us))
    return synced


async def find_named(tx: Transaction, names: Collection[str], now_us: int) -> dict[str, Tool]:
    """Stored tools by name. A shipped one that is missing is put back first."""
    found = await tool_rows.find_many_named(tx, names)
    for name in names:
        if name not in found and name in builtin.TOOLS:
            found[name] = shipped_tool(name, now_us)
            await tool_rows.insert(tx, found[name])
    return found


def shipped_id(name: str) -> str:
    """It follows from the name, so that two servers starting at once write the same row."""
    return ids.derive("tool", "built in", name)


def shipped_tool(name: str, now_us: int) -> Tool:
    entry = builtin.TOOLS[name]
    return Tool(
        id=shipped_id(name),
        name=name,
        tool_type=entry.tool_type,
        description=entry.description,
        json_schema=entry.json_schema,
        tags=tuple(entry.tags),
        enable_parallel_execution=entry.parallel_safe,
        created_us=now_us,
        updated_us=now_us,
    )


def wants_base_rules(agent_type: str, asked: bool | None, model_name: str) -> bool:
    """New agents end their turns by speaking, so the rules would only forbid them parallel calls: on demand only."""
    if asked is not None:
        return asked
    if agent_type == "letta_v1_agent":
        return False
    if agent_type == "sleeptime_agent" or "mini" in model_name:
        return True
    return not any(known in model_name for known in _NEED_NO_RULES)


def base_rules(tools: Iterable[Tool]) -> list[Rule]:
    return [
        ExitLoop(tool_name=tool.name) if tool.name in _ENDS_TURN else ContinueLoop(tool_name=tool.name)
        for tool in tools
        if is_base_tool(tool) and (tool.name in _ENDS_TURN or tool.tool_type in _GO_ON)
    ]


def approval_rules(tools: Iterable[Tool]) -> list[Rule]:
    """A tool may ask, wherever it is attached, that a human agrees to each call."""
    return [RequiresApproval(tool_name=tool.name) for tool in tools if tool.default_requires_approval]


def with_rules(rules: Iterable[Rule], added: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules with those of `added` that are not there yet."""
    kept = list(rules)
    present = {(type(rule), rule.tool_name) for rule in kept}
    kept.extend(rule for rule in added if (type(rule), rule.tool_name) not in present)
    return tuple(kept)


async def _refreshed(tx: Transaction, stored: Tool, shipped: Tool, now_us: int) -> Tool:
    if stored.tool_type == "custom":
        return stored  # a user's tool of that name came first and is left in peace
    ours = {"tool_type", "description", "json_schema"}
    changes = {name: getattr(shipped, name) for name in ours if getattr(shipped, name) != getattr(stored, name)}
    if not changes:
        return stored
    version = stored.version + ("json_schema" in changes)
    tool = msgspec.structs.replace(stored, **changes, version=version, updated_us=now_us)
    await tool_rows.update_tool(tx, tool)
    return tool

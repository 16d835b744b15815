"""The tools of an agent file. A name is one tool on this server: the file's version takes the place of what is there,
or is passed over for it, as the caller asked. Tools that come with the server stay as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.actions.agent_files.errors import named
from holdfast.actions.tools import base_tools
from holdfast.actions.tools.write import described_tool, store_named
from holdfast.core.records import Tool
from holdfast.core.tool_rules import RequiresApproval, Rule
from holdfast.errors import Invalid
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Transaction
from holdfast.tools import builtin
from holdfast.wire.agent_files import AgentFile, FileTool, ToolEntry
from holdfast.wire.tools import SHIPPED_TYPES, ToolCreate


class WantedTool(msgspec.Struct, frozen=True):
    """`described` is None for a tool that comes with the server."""

    local: str
    where: str
    name: str
    described: Tool | None


class WantedTools(msgspec.Struct, frozen=True):
    tools: Sequence[WantedTool]
    left_out: frozenset[str]  # names of those that cannot be had here
    warnings: Sequence[str]


class StoredTools(msgspec.Struct, frozen=True):
    by_local: dict[str, Tool]
    guards: dict[str, Rule]  # by name, of those of which this server wants each call approved and the file does not
    warnings: list[str]


def wanted_tools(file: AgentFile, project_id: str | None, now_us: int) -> WantedTools:
    wanted: list[WantedTool] = []
    left_out: set[str] = set()
    warnings: list[str] = []
    for local, entry in file.tools.items():
        name, kind = entry.tool.called, entry.tool.tool_type
        if kind in SHIPPED_TYPES and name not in builtin.TOOLS:
            left_out.add(name)
            warnings.append(f"{entry.where}: this server has no built-in tool of that name; it is left out")
            continue
        if kind == "external_mcp":
            warnings.append(
                f"{entry.where}: it is a tool of an MCP server, which is not imported; calls of it fail until a server "
                "of that name is added here"
            )
        elif _is_stub(entry.tool):
            warnings.append(
                f"{entry.where}: its source is not valid Python; calls of it fail unless the client runs it"
            )
        described = None if kind in SHIPPED_TYPES else _described(entry, project_id, now_us)
        wanted.append(WantedTool(local, entry.where, name, described))
    # In the order of their names, so that two imports at once do not wait for each other's rows.
    return WantedTools(sorted(wanted, key=lambda tool: tool.name), frozenset(left_out), warnings)


async def store_tools(tx: Transaction, wanted: Iterable[WantedTool], now_us: int, *, override: bool) -> StoredTools:
    stored = StoredTools({}, {}, [])
    for tool in wanted:
        with named(tool.where):
            row = await _store(tx, tool, stored.warnings, now_us, override=override)
        stored.by_local[tool.local] = row
        if row.default_requires_approval and not (tool.described and tool.described.default_requires_approval):
            stored.guards[row.name] = RequiresApproval(tool_name=row.name)
    return stored


async def _store(tx: Transaction, tool: WantedTool, warnings: list[str], now_us: int, *, override: bool) -> Tool:
    if tool.described is None:
        return (await base_tools.find_named(tx, (tool.name,), now_us))[tool.name]
    known = await tool_rows.find_named(tx, tool.name)
    if known is None:
        return await store_named(tx, tool.described, now_us)
    if not override or (known.mcp_server_id is not None and tool.described.tool_type == known.tool_type):
        return known
    if base_tools.is_base_tool(known):
        raise Invalid(
            "a tool that comes with this server has this name. Rename it in the file, or import with "
            "override_existing_tools=false to use the server's."
        )
    wanted = tool.described
    if wanted.default_requires_approval is None:  # a guard that this server's owner has set stays
        wanted = msgspec.structs.replace(wanted, default_requires_approval=known.default_requires_approval)
    row = await store_named(tx, wanted, now_us)
    if row.version != known.version:
        warnings.append(f"{tool.where}: the tool of this name was replaced by the file's, for all agents that have it")
    return row


def _described(entry: ToolEntry, project_id: str | None, now_us: int) -> Tool:
    tool = entry.tool
    with named(entry.where):
        if tool.tool_type == "external_mcp" or _is_stub(tool):
            return _run_elsewhere(tool, project_id, now_us)
        if not tool.source_code:
            raise Invalid("it has no source_code, and this server has no tool of that name of its own")
        described = described_tool(_request(tool), project_id, now_us)
    return msgspec.structs.replace(
        described,
        description=described.description if tool.description is None else tool.description,
        metadata=tool.metadata_ or {},
    )


def _request(tool: FileTool) -> ToolCreate:
    # Some files say json where they mean the schema beside the source, which is Python all the same.
    return ToolCreate(
        source_code=tool.source_code or "",
        source_type="typescript" if tool.source_type == "typescript" else "python",
        description=tool.description,
        tags=tool.tags,
        json_schema=tool.json_schema,
        args_json_schema=tool.args_json_schema,
        return_char_limit=tool.return_char_limit,
        pip_requirements=tool.pip_requirements,
        npm_requirements=tool.npm_requirements,
        default_requires_approval=tool.default_requires_approval,
        enable_parallel_execution=tool.enable_parallel_execution,
    )


def _is_stub(tool: FileTool) -> bool:
    """Made from its schema for a tool that the client runs. Its parameters may have names that Python does not take."""
    if tool.source_type == "typescript" or tool.json_schema is None:
        return False
    try:
        ast.parse(tool.source_code or "")
    except (SyntaxError, ValueError):
        return True
    return False


def _run_elsewhere(tool: FileTool, project_id: str | None, now_us: int) -> Tool:
    """Only its description is its own: what it does happens at its server, or at the client."""
    request = _request(tool).model_copy(update={"source_code": f"def {tool.called}(): ..."})
    return msgspec.structs.replace(
        described_tool(request, project_id, now_us),
        tool_type=tool.tool_type,
        source_code=tool.source_code,
        metadata=tool.metadata_ or {},
    )

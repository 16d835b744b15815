"""The tools of an agent file, and its MCP servers.

A name is one tool on this server: the file's version takes the place of what is there, or is passed over for it, as the
caller asked. Tools that come with the server stay as they are.

No file holds the secrets of MCP servers, and none is connected to: the file brings the tools. A server whose name is
known here is used as it is: otherwise a file could send its secrets elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.mcp.servers import require_usable
from holdfast.actions.tools import base_tools
from holdfast.actions.tools.write import described_tool, store_named
from holdfast.core.mcp import McpSecrets, McpServer, only_names_a_secret
from holdfast.core.records import MCP_TAG, Tool
from holdfast.core.tool_rules import RequiresApproval, Rule
from holdfast.engine.mcp_servers import McpServers
from holdfast.errors import Invalid, Unprocessable
from holdfast.store import mcp_servers as server_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Transaction
from holdfast.tools import builtin
from holdfast.wire.agent_file_sections import FileServer, FileTool, ServerEntry, ServerExtras, ToolEntry
from holdfast.wire.agent_files import AgentFile
from holdfast.wire.tools import SHIPPED_TYPES, ToolCreate


class WantedTool(msgspec.Struct, frozen=True):
    """`described` is None for a tool that comes with the server."""

    local: str
    where: str
    name: str
    described: Tool | None
    server: str | None = None  # the id in the file of the MCP server that runs it
    server_names: Sequence[str] = ()  # what that server may be called
    about_mcp: dict[str, Any] = {}  # what the file says of the tool at that server

    @property
    def mcp_name(self) -> str:
        """What that server calls it."""
        told = self.about_mcp.get("tool_name")
        return told if isinstance(told, str) and told else self.name


class WantedTools(msgspec.Struct, frozen=True):
    tools: Sequence[WantedTool]
    left_out: frozenset[str]  # names of those that cannot be had here
    warnings: Sequence[str]


class StoredTools(msgspec.Struct, frozen=True):
    by_local: dict[str, Tool]
    guards: dict[str, Rule]  # by name, of those of which this server wants each call approved and the file does not
    warnings: list[str]


def wanted_tools(file: AgentFile, project_id: str | None, now_us: int) -> WantedTools:
    """New ones are as old as their place in the file says: tools are listed by age."""
    wanted: list[WantedTool] = []
    left_out: set[str] = set()
    warnings: list[str] = []
    for place, (local, entry) in enumerate(file.sections.tools.items()):
        name, kind = entry.tool.called, entry.tool.tool_type
        if kind in SHIPPED_TYPES and name not in builtin.TOOLS:
            left_out.add(name)
            warnings.append(f"{entry.where}: this server has no built-in tool of that name; it is left out")
            continue
        if kind != "external_mcp" and _is_stub(entry.tool):
            warnings.append(
                f"{entry.where}: its source is not valid Python; calls of it fail unless the client runs it"
            )
        described = None if kind in SHIPPED_TYPES else _described(entry, project_id, now_us + place)
        names = entry.tool.mcp_servers if kind == "external_mcp" else []
        server = _server_of(entry.tool, names, file) if kind == "external_mcp" else None
        wanted.append(WantedTool(local, entry.where, name, described, server, names, entry.tool.mcp))
    # In the order of their names, so that two imports at once do not wait for each other's rows.
    return WantedTools(sorted(wanted, key=lambda tool: tool.name), frozenset(left_out), warnings)


async def store_tools(
    tx: Transaction, wanted: Iterable[WantedTool], servers: Mapping[str, McpServer], now_us: int, *, override: bool
) -> StoredTools:
    """`servers`: those of the file that are here now."""
    stored = StoredTools({}, {}, [])
    for tool in wanted:
        with named(tool.where):
            linked, server = await _linked(tx, tool, servers, stored.warnings)
            row = await _store(tx, linked, server, stored.warnings, now_us, override=override)
        stored.by_local[tool.local] = row
        if row.default_requires_approval and not (tool.described and tool.described.default_requires_approval):
            stored.guards[row.name] = RequiresApproval(tool_name=row.name)
    return stored


async def _linked(
    tx: Transaction, tool: WantedTool, servers: Mapping[str, McpServer], warnings: list[str]
) -> tuple[WantedTool, McpServer | None]:
    """With its MCP server: that of the file, or the one of that name that is here."""
    if tool.described is None or tool.described.tool_type != "external_mcp":
        return tool, None
    server = servers.get(tool.server or "")
    for name in tool.server_names if server is None else ():
        server = server or await server_rows.find_named(tx, name)
    if server is None:
        warnings.append(
            f"{tool.where}: it is a tool of an MCP server that is not here; calls of it fail until a server of that "
            "name is added"
        )
        return tool, None
    about = {**tool.about_mcp, "server_name": server.name, "server_id": server.id, "tool_name": tool.mcp_name}
    described = msgspec.structs.replace(
        tool.described,
        mcp_server_id=server.id,
        mcp_name=tool.mcp_name,
        tags=(MCP_TAG + server.name, *(tag for tag in tool.described.tags if not tag.startswith(MCP_TAG))),
        metadata={**tool.described.metadata, "mcp": about},
    )
    return msgspec.structs.replace(tool, described=described), server


async def _store(
    tx: Transaction, tool: WantedTool, server: McpServer | None, warnings: list[str], now_us: int, *, override: bool
) -> Tool:
    if tool.described is None:
        return (await base_tools.find_named(tx, (tool.name,), now_us))[tool.name]
    known = None if server is None else await _of_server(tx, server, tool.described)
    known = known or await tool_rows.find_named(tx, tool.name)
    if known is None:
        return await store_named(tx, tool.described, now_us)
    if known.mcp_server_id is not None and tool.described.tool_type == known.tool_type:
        if server is not None and known.mcp_server_id != server.id:
            warnings.append(f"{tool.where}: the tool of this name that is here is another MCP server's, and is called")
        return known
    if not override:
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


async def _of_server(tx: Transaction, server: McpServer, wanted: Tool) -> Tool | None:
    """The tool as the server has it here, perhaps under another name."""
    return next(
        (tool for tool in await tool_rows.of_mcp_server(tx, server.id) if tool.mcp_name == wanted.mcp_name), None
    )


def _server_of(tool: FileTool, names: Sequence[str], file: AgentFile) -> str | None:
    servers = file.sections.servers
    told = tool.mcp.get("server_id")
    if isinstance(told, str) and told in servers:
        return told
    by_name = {entry.server.server_name: local for local, entry in servers.items()}
    return next((by_name[name] for name in names if name in by_name), None)


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


class ServerPlan(msgspec.Struct, frozen=True):
    local: str
    where: str
    server: McpServer
    unset: Sequence[str]  # what is secret of it, and not in the file


async def planned_servers(file: AgentFile, servers: McpServers, warnings: list[str], now_us: int) -> list[ServerPlan]:
    """One that could not be added here by hand is left out."""
    plans: list[ServerPlan] = []
    for number, (local, entry) in enumerate(file.sections.servers.items()):
        server = _described_server(entry.server, servers, now_us + number)
        try:
            await require_usable(servers, server)
        except (Invalid, Unprocessable) as error:
            warnings.append(f"{entry.where}: it is left out, and its tools come without it. {error.message}")
            continue
        plans.append(ServerPlan(local, entry.where, server, _unset(entry)))
    return plans


async def write_servers(tx: Transaction, plans: Sequence[ServerPlan], warnings: list[str]) -> dict[str, McpServer]:
    """By their ids in the file. In the order of their names, so that two imports at once do not wait for each other."""
    stored: dict[str, McpServer] = {}
    for plan in sorted(plans, key=lambda plan: plan.server.name):
        known = await server_rows.find_named(tx, plan.server.name)
        if known is None and not await server_rows.insert(tx, plan.server):
            known = await server_rows.find_named(tx, plan.server.name)
        stored[plan.local] = plan.server if known is None else known
        if known is None and plan.unset:
            warnings.append(
                f"{plan.where}: it has no {', '.join(plan.unset)} yet, because no file holds secrets: set them"
            )
        elif known is not None and known.destination != plan.server.destination:
            warnings.append(
                f"{plan.where}: the MCP server of this name that is here has another address or command; it stays as "
                "it is, and the tools of the file are called there"
            )
    return stored


def _described_server(told: FileServer, servers: McpServers, now_us: int) -> McpServer:
    access = told.access or ServerExtras()
    token = access.auth_token
    secrets = McpSecrets(
        auth_token=token if token and only_names_a_secret(token) else None,
        custom_headers=_named_only(access.custom_headers),
        env=_named_only(access.env),
    )
    stdio = told.stdio_config if told.server_type == "stdio" else None
    return McpServer(
        id=ids.new("mcp_server"),
        name=told.server_name,
        kind=told.server_type,
        url=told.server_url if stdio is None else None,
        auth_header=access.auth_header,
        command=None if stdio is None else stdio.command,
        args=tuple((stdio.args if stdio else None) or ()),
        secrets=servers.seal(secrets),
        organization_id=ids.DEFAULT_ORG,
        created_us=now_us,
        updated_us=now_us,
    )


def _named_only(told: dict[str, str] | None) -> dict[str, str] | None:
    """Values that name a secret of the agent's are all that a file can tell."""
    kept = {name: value for name, value in (told or {}).items() if only_names_a_secret(value)}
    return kept or None


def _unset(entry: ServerEntry) -> list[str]:
    access = entry.server.access or ServerExtras()
    maps: dict[str, Mapping[str, str]] = {"header": access.custom_headers or {}, "variable": access.env or {}}
    missing = [
        f"{what} {name}"
        for what, told in maps.items()
        for name, value in told.items()
        if not only_names_a_secret(value)
    ]
    is_unset = access.auth_token is not None and not only_names_a_secret(access.auth_token)
    return [*(["auth_token"] if is_unset else []), *missing]

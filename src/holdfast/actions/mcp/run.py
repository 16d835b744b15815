"""Run a tool of an MCP server by hand. No run, and no message is written."""

from __future__ import annotations

from typing import Any

from holdfast import ids
from holdfast.core.records import Tool
from holdfast.engine.mcp_servers import NO_SERVER, McpServers, Reached
from holdfast.errors import McpUnavailable, NotFound
from holdfast.store import mcp_servers as server_rows
from holdfast.store import tools as tool_rows
from holdfast.store.paging import Page
from holdfast.store.tools import ToolFilter
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.base import cut_to_limit, failure_text
from holdfast.tools.mcp.values import Called
from holdfast.wire.tools import ToolExecutionResult, execution_view


async def tools_of(database: Database, server_id: str) -> list[Tool]:
    """As they were last synced, oldest first."""

    async def read(tx: Transaction) -> list[Tool]:
        await server_rows.get(tx, server_id)
        return await tool_rows.list_tools(tx, ToolFilter(mcp_server_id=server_id), Page(limit=None, order="asc"))

    return await database.read(read)


async def tool_of(database: Database, server_id: str, tool_id: str) -> Tool:
    return await database.read(lambda tx: _tool_of(tx, server_id, tool_id))


async def run_tool(
    database: Database, servers: McpServers, server_id: str, tool_id: str, arguments: dict[str, Any]
) -> ToolExecutionResult:
    async def read(tx: Transaction) -> tuple[Tool, Reached]:
        tool = await _tool_of(tx, server_id, tool_id)
        return tool, await servers.reach(tx, await server_rows.get(tx, server_id))

    tool, reached = await database.read(read)
    return await _run(servers, reached, tool, arguments)


async def run_for_agent(
    database: Database, servers: McpServers, agent_id: str, tool: Tool, arguments: dict[str, Any]
) -> ToolExecutionResult:
    """With the agent's secrets, as when it calls the tool itself."""

    server_id = tool.mcp_server_id
    if server_id is None:
        raise NotFound(NO_SERVER)

    async def read(tx: Transaction) -> Reached:
        return await servers.reach(tx, await server_rows.get(tx, server_id), agent_id)

    return await _run(servers, await database.read(read), tool, arguments)


async def _run(servers: McpServers, reached: Reached, tool: Tool, arguments: dict[str, Any]) -> ToolExecutionResult:
    """A tool that fails is an answer, not an error: the caller wants to see how it failed."""
    try:
        called = await servers.call(reached, tool.mcp_name or tool.name, arguments, ids.new("call"))
    except McpUnavailable as error:
        called = Called("error", failure_text(tool.name, type(error).__name__, error.message))
    return execution_view(called.status, cut_to_limit(called.content, tool.return_char_limit), (), (), None)


async def _tool_of(tx: Transaction, server_id: str, tool_id: str) -> Tool:
    await server_rows.get(tx, server_id)
    tool = await tool_rows.get(tx, tool_id)
    if tool.mcp_server_id != server_id:
        raise NotFound(f"Tool {tool_id} is not one of the MCP server {server_id}")
    return tool

"""MCP servers by their names, as older clients know them. Tools are listed live: what the server says now."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from holdfast import ids
from holdfast.actions.mcp.connect import Event, connect_stored, connect_unstored
from holdfast.actions.mcp.servers import change_server, delete_server, described_server, store_server
from holdfast.actions.mcp.sync import Surroundings, list_live, live_view, refresh_tools, store_one
from holdfast.core.mcp import McpServer
from holdfast.core.records import Tool
from holdfast.errors import NotFound
from holdfast.store import mcp_servers as server_rows
from holdfast.tools.mcp.values import Called
from holdfast.wire.mcp import Changed, LiveTool, NamedServer, NamedServerUpdate, NamedServerView, named_view


async def list_named(around: Surroundings) -> list[NamedServerView]:
    found = await around.database.read(server_rows.list_servers)
    return [named_view(server, around.servers.open(server)) for server in found]


async def add_named(around: Surroundings, request: NamedServer, now_us: int) -> list[NamedServerView]:
    await store_server(around, request.as_create(), now_us)
    return await list_named(around)


async def update_named(around: Surroundings, name: str, request: NamedServerUpdate, now_us: int) -> NamedServerView:
    known = await _named(around, name)
    changed = await change_server(around, known.id, request.as_update(known.kind), now_us)
    return named_view(changed, around.servers.open(changed))


async def delete_named(around: Surroundings, name: str) -> list[NamedServerView]:
    await delete_server(around, (await _named(around, name)).id)
    return await list_named(around)


async def try_out(around: Surroundings, request: NamedServer, now_us: int) -> list[LiveTool]:
    """Connects and lists, and stores nothing."""
    return live_view(await list_live(around, described_server(around, request.as_create(), now_us), None))


async def connect_described(around: Surroundings, request: NamedServer, now_us: int) -> AsyncGenerator[Event]:
    """If it is the stored server of that name, that one is connected to: only there can a login be kept."""
    wanted = described_server(around, request.as_create(), now_us)
    try:
        stored = await _named(around, wanted.name)
    except NotFound:
        stored = wanted
    if stored.destination == wanted.destination and stored.id != wanted.id:
        return connect_stored(around, stored, now_us)
    return connect_unstored(around, wanted)


async def live_tools(around: Surroundings, name: str) -> list[LiveTool]:
    return live_view(await list_live(around, await _named(around, name), None))


async def resync_named(around: Surroundings, name: str, agent_id: str | None, now_us: int) -> Changed:
    return await refresh_tools(around, (await _named(around, name)).id, agent_id, now_us)


async def add_tool(around: Surroundings, name: str, tool_name: str, now_us: int) -> Tool:
    return await store_one(around, await _named(around, name), tool_name, now_us)


async def execute(around: Surroundings, name: str, tool_name: str, arguments: dict[str, Any]) -> Called:
    """The tool need not be stored."""
    server = await _named(around, name)
    reached = await around.database.read(lambda tx: around.servers.reach(tx, server))
    return await around.servers.call(reached, tool_name, arguments, ids.new("call"))


async def _named(around: Surroundings, name: str) -> McpServer:
    return await around.database.read(lambda tx: server_rows.get_named(tx, name))

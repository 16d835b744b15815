"""Tools of an MCP server for scenes: their calls go to a server on a socket, through the client that ships."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from holdfast import ids
from holdfast.core.mcp import McpServer
from holdfast.core.records import Tool
from holdfast.core.run import OpenCall
from holdfast.ssrf_guard import Guard
from holdfast.store import mcp_servers, tools
from holdfast.store.transaction import Transaction
from holdfast.tools.mcp.client import McpClient
from holdfast.tools.mcp.values import Destination, Limits
from tests.mcp_servers.hostile import hostile, listing, result
from tests.scenario import NO_ARGUMENTS, World

# By name, whether a call may be repeated.
REMOTE = {"remote": False, "remote_lookup": True}


@cache
def _client() -> McpClient:
    """One for all trials: to read the certificates of authorities takes longer than most of them do."""
    return McpClient(Guard(("127.0.0.1",)), Limits())


def _answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if asked.get("method") == "tools/call":
        result(writer, asked, {"content": [{"type": "text", "text": "done"}]})
    else:
        listing([])(asked, writer)


async def give_mcp_tools(world: World) -> None:
    server = await world.closing.enter_async_context(hostile(_answer))
    world.closing.push_async_callback(_client().aclose)
    await world.database.write(lambda tx: _store(tx, world.agent_id, server.url))
    destination = Destination(kind="streamable_http", url=server.url)

    async def call(call: OpenCall) -> None:
        called = await _client().call(destination, call.call.name, {}, call.call.id)
        assert (called.status, called.content) == ("success", "done")

    world.tools.on_the_way |= dict.fromkeys(REMOTE, call)


async def _store(tx: Transaction, agent_id: str, url: str) -> None:
    server = McpServer(id=ids.new("mcp_server"), name="harbour", kind="streamable_http", url=url)
    assert await mcp_servers.insert(tx, server)
    made = [
        Tool(
            id=ids.new("tool"),
            name=name,
            tool_type="external_mcp",
            description="",
            json_schema={"name": name, "parameters": NO_ARGUMENTS},
            tags=("retry-safe",) if retry_safe else (),
            mcp_server_id=server.id,
            mcp_name=name,
        )
        for name, retry_safe in REMOTE.items()
    ]
    for tool in made:
        assert await tools.insert(tx, tool)
    await tools.attach_many(tx, agent_id, [tool.id for tool in made])

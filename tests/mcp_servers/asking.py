"""What these tests ask of the served API."""

from __future__ import annotations

from typing import Any

from tests.served import ServedClient

SERVERS = "/v1/mcp-servers/"
Json = dict[str, Any]


def over_http(url: str, **fields: Any) -> Json:
    return {"mcp_server_type": "streamable_http", "server_url": url, **fields}


async def add(client: ServedClient, url: str, name: str = "harbour", **fields: Any) -> Json:
    return await client.ask("POST", SERVERS, {"server_name": name, "config": over_http(url, **fields)})


async def tools_of(client: ServedClient, server: Json) -> dict[str, Json]:
    """By the name that the server calls them."""
    listed = await client.ask("GET", f"{SERVERS}{server['id']}/tools")
    return {tool["metadata_"]["mcp"]["tool_name"]: tool for tool in listed}


async def run(client: ServedClient, server: Json, tool: Json, **arguments: Any) -> Json:
    return await client.ask("POST", f"{SERVERS}{server['id']}/tools/{tool['id']}/run", {"args": arguments})


async def refresh(client: ServedClient, server: Json, **query: Any) -> Json:
    return await client.ask("PATCH", f"{SERVERS}{server['id']}/refresh", **query)

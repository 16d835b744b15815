"""Bring the stored tools of an MCP server to what it offers now.

A tool keeps its id, its name here and what its owner has set on it. Its id follows from its server and its name there,
so it is the same tool even if it was gone for a while. A name that another tool has is not taken from it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core.mcp import McpServer
from holdfast.core.records import MCP_TAG, RETRY_SAFE_TAG, Tool
from holdfast.engine.mcp_servers import McpServers
from holdfast.errors import ConfigError, McpNotRefreshed, McpUnavailable, NotFound, RequestError
from holdfast.store import agents as agent_rows
from holdfast.store import mcp_servers as server_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.mcp.schema import Unusable, described, free_name, health, usable_name
from holdfast.tools.mcp.values import ListedTool, Listing
from holdfast.wire.mcp import Changed, LiveTool

_TYPE: Final = "external_mcp"
_BY_ANNOTATION: Final = "retry_safe_by_annotation"


class Surroundings(msgspec.Struct, frozen=True):
    """What every one of these needs. `trust_annotations`: whether a server is believed that a tool may be repeated."""

    database: Database
    servers: McpServers
    trust_annotations: bool


async def refresh_tools(around: Surroundings, server_id: str, agent_id: str | None, now_us: int) -> Changed:
    async def find(tx: Transaction) -> McpServer:
        if agent_id is not None:
            await agent_rows.require(tx, agent_id)
        return await server_rows.get(tx, server_id)

    server = await around.database.read(find)
    try:
        listing = await list_live(around, server, agent_id)
    except McpUnavailable as error:
        await _remember_failure(around, server, error.message, now_us)
        raise McpNotRefreshed(server.name, error.message) from error
    return await store_tools(around, server.id, listing, now_us)


async def try_to_sync(around: Surroundings, server: McpServer, now_us: int) -> McpServer:
    """The server as it is afterwards; it says itself whether that went well."""
    try:
        listing = await list_live(around, server, None)
    except (RequestError, ConfigError) as error:
        return await _remember_failure(around, server, error.message, now_us)
    await store_tools(around, server.id, listing, now_us)
    return await around.database.read(lambda tx: server_rows.get(tx, server.id))


async def list_live(around: Surroundings, server: McpServer, agent_id: str | None) -> Listing:
    reached = await around.database.read(lambda tx: around.servers.reach(tx, server, agent_id))
    return await around.servers.list_tools(reached)


async def store_tools(around: Surroundings, server_id: str, listing: Listing, now_us: int) -> Changed:
    async def write(tx: Transaction) -> Changed:
        return await _Sync(tx, await server_rows.get(tx, server_id, lock=True), around, now_us).run(listing)

    return await around.database.write(write)


async def store_one(around: Surroundings, server: McpServer, name: str, now_us: int) -> Tool:
    """Only this tool of those that the server offers; the others stay as they are."""
    listing = await list_live(around, server, None)
    wanted = next((tool for tool in listing.tools if tool.name == name), None)
    if wanted is None:
        raise NotFound(f"The MCP server {server.name!r} has no tool {name!r} that could be used.")

    async def write(tx: Transaction) -> Tool:
        sync = _Sync(tx, await server_rows.get(tx, server.id, lock=True), around, now_us)
        try:
            return await sync.put(wanted)
        except Unusable as error:
            raise NotFound(f"The tool {name!r} cannot be used: {error}.") from error

    return await around.database.write(write)


async def renamed_tools(tx: Transaction, before: McpServer, after: McpServer, now_us: int) -> None:
    """Tools say what their server is called. If their calls go elsewhere from now on, they are new versions: what was
    approved was a call to where it went before."""
    moved = before.destination != after.destination
    if before.name == after.name and not moved:
        return
    for tool in await tool_rows.of_mcp_server(tx, after.id):
        tags = [MCP_TAG + after.name if tag == MCP_TAG + before.name else tag for tag in tool.tags]
        about = {**tool.metadata.get("mcp", {}), "server_name": after.name}
        changed = msgspec.structs.replace(
            tool,
            tags=tuple(tags),
            metadata={**tool.metadata, "mcp": about},
            version=tool.version + moved,
            updated_us=now_us,
        )
        await tool_rows.update_tool(tx, changed)


def live_view(listing: Listing) -> list[LiveTool]:
    """All of them, also those that are left out, with the reason."""
    return [_live(tool) for tool in listing.tools] + [
        {
            "name": name,
            "title": None,
            "description": "",
            "inputSchema": {},
            "outputSchema": None,
            "annotations": None,
            "health": {"status": "INVALID", "reasons": [reason]},
        }
        for name, reason in listing.left_out.items()
    ]


def _live(tool: ListedTool) -> LiveTool:
    status, reasons = health(tool)
    return {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": tool.annotations or None,
        "health": {"status": status, "reasons": reasons},
    }


async def _remember_failure(around: Surroundings, server: McpServer, reason: str, now_us: int) -> McpServer:
    async def write(tx: Transaction) -> McpServer:
        known = await server_rows.get(tx, server.id, lock=True)
        failed = msgspec.structs.replace(known, sync_error=reason)
        await server_rows.update_server(tx, failed)
        return failed

    return await around.database.write(write)


class _Sync:
    """Within one transaction that holds the server's row."""

    def __init__(self, tx: Transaction, server: McpServer, around: Surroundings, now_us: int) -> None:
        self._tx = tx
        self._server = server
        self._trusts = around.trust_annotations
        self._now_us = now_us

    async def run(self, listing: Listing) -> Changed:
        known = {tool.mcp_name: tool for tool in await tool_rows.of_mcp_server(self._tx, self._server.id)}
        left_out = dict(listing.left_out)
        changed: Changed = {"deleted": [], "updated": [], "added": []}
        for number, tool in enumerate(listing.tools):
            stored = known.get(tool.name)
            try:
                put = await self.put(tool, stored, number)
            except Unusable as error:
                left_out[tool.name] = str(error)
                continue
            if stored is None:
                changed["added"].append(put.name)
            elif put != stored:
                changed["updated"].append(put.name)
        # One whose new description cannot be used stays as it was: its server still offers it.
        offered = {tool.name for tool in listing.tools} | listing.left_out.keys()
        for name, tool in known.items():
            if name not in offered:
                await tool_rows.delete_tool(self._tx, tool.id)
                changed["deleted"].append(tool.name)
        synced = msgspec.structs.replace(self._server, synced_us=self._now_us, sync_error=None, left_out=left_out)
        await server_rows.update_server(self._tx, synced)
        return changed

    async def put(self, tool: ListedTool, stored: Tool | None = None, number: int = 0) -> Tool:
        """Raises Unusable if no model can be told of it. `number`: its place among those that are put together."""
        if stored is None:
            tool_id = ids.derive("tool", _TYPE, self._server.id, tool.name)
            stored = (await tool_rows.find_many(self._tx, [tool_id])).get(tool_id) or await self._orphan(tool)
        return await (self._insert(tool, number) if stored is None else self._update(stored, tool))

    async def _orphan(self, tool: ListedTool) -> Tool | None:
        """A tool that came without its server, in an agent file, and was offered by one of this name: it is at home."""
        found = await tool_rows.find_named(self._tx, usable_name(tool.name))
        if found is None or found.tool_type != _TYPE or found.mcp_server_id is not None:
            return None
        if MCP_TAG + self._server.name not in found.tags:
            return None
        adopted = msgspec.structs.replace(found, mcp_server_id=self._server.id, mcp_name=tool.name)
        await tool_rows.update_tool(self._tx, adopted)
        return adopted

    async def _insert(self, tool: ListedTool, number: int) -> Tool:
        taken: set[str] = set()
        while True:
            name = free_name(tool.name, self._server.name, taken)
            schema = described(tool, name)
            wanted = Tool(
                id=ids.derive("tool", _TYPE, self._server.id, tool.name),
                name=name,
                tool_type=_TYPE,
                description=schema["description"],
                json_schema=schema,
                tags=(MCP_TAG + self._server.name, *((RETRY_SAFE_TAG,) if self._repeatable(tool) else ())),
                metadata={"mcp": self._about(tool)},
                created_us=self._now_us + number,  # lists go by age: this way the server's order is kept
                updated_us=self._now_us,
                mcp_server_id=self._server.id,
                mcp_name=tool.name,
            )
            if await tool_rows.insert(self._tx, wanted):
                return wanted
            taken.add(name)

    async def _update(self, stored: Tool, tool: ListedTool) -> Tool:
        schema = described(tool, stored.name)
        changed = msgspec.structs.replace(
            stored,
            description=schema["description"],
            json_schema=schema,
            tags=self._tags(stored, tool),
            metadata={**stored.metadata, "mcp": self._about(tool)},
            version=stored.version + (schema != stored.json_schema),
        )
        if changed == stored:
            return stored
        changed = msgspec.structs.replace(changed, updated_us=self._now_us)
        await tool_rows.update_tool(self._tx, changed)
        return changed

    def _tags(self, stored: Tool, tool: ListedTool) -> tuple[str, ...]:
        """A mark that came from an annotation goes with it; one that the owner has set stays."""
        was_annotated = bool(stored.metadata.get("mcp", {}).get(_BY_ANNOTATION))
        kept = [tag for tag in stored.tags if not (tag == RETRY_SAFE_TAG and was_annotated)]
        if self._repeatable(tool) and RETRY_SAFE_TAG not in kept:
            kept.append(RETRY_SAFE_TAG)
        return tuple(kept)

    def _repeatable(self, tool: ListedTool) -> bool:
        hints = (tool.annotations.get("idempotentHint"), tool.annotations.get("readOnlyHint"))
        return self._trusts and True in hints

    def _about(self, tool: ListedTool) -> dict[str, Any]:
        about: dict[str, Any] = {
            "server_name": self._server.name,
            "server_id": self._server.id,
            "tool_name": tool.name,
            "annotations": tool.annotations,
        }
        return {**about, _BY_ANNOTATION: True} if self._repeatable(tool) else about

"""Connect to an MCP server while somebody watches: what happens is told as events, a login included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from holdfast.actions.mcp.sync import Surroundings, list_live, live_view, store_tools
from holdfast.core.mcp import McpLogin, McpServer
from holdfast.errors import McpLoginNeeded, NotFound, RequestError
from holdfast.store import mcp_servers as server_rows
from holdfast.tools.mcp.values import Listing

# How long a stream waits for a person. The login itself may be finished later.
PATIENCE_S: Final = 300.0
# The callback may come to another process, which cannot wake this one.
_LOOK_S: Final = 1.0
Event = dict[str, Any]


async def connect_to(around: Surroundings, server_id: str, now_us: int) -> AsyncGenerator[Event]:
    server = await around.database.read(lambda tx: server_rows.get(tx, server_id))
    return connect_stored(around, server, now_us)


async def connect_stored(around: Surroundings, server: McpServer, now_us: int) -> AsyncGenerator[Event]:
    """Ends with `success`, and then the server's tools are stored, or with `error`."""
    yield {"event": "connection_attempt", "server_name": server.name}
    try:
        try:
            listing = await list_live(around, server, None)
        except McpLoginNeeded as needed:
            yield {"event": "oauth_required", "message": needed.message}
            async for event in _log_in(around, server):
                yield event
            listing = await list_live(around, server, None)
        await store_tools(around, server.id, listing, now_us)
    except RequestError as error:
        yield {"event": "error", "message": error.message}
        return
    yield _success(listing)


async def connect_unstored(around: Surroundings, server: McpServer) -> AsyncGenerator[Event]:
    yield {"event": "connection_attempt", "server_name": server.name}
    try:
        listing = await list_live(around, server, None)
    except McpLoginNeeded as needed:
        yield {"event": "oauth_required", "message": needed.message}
        yield {"event": "error", "message": "A login is kept with a stored server: add this one first, then connect."}
    except RequestError as error:
        yield {"event": "error", "message": error.message}
    else:
        yield _success(listing)


async def finish_login(
    around: Surroundings, state: str | None, code: str | None, iss: str | None, refusal: str | None
) -> McpLogin:
    """What the authorization server sends a browser back with."""
    if not state:
        raise NotFound("This login is not known, or is over: begin it anew.")
    return await around.servers.finish_login(state, code, iss, refusal)


async def _log_in(around: Surroundings, server: McpServer) -> AsyncGenerator[Event]:
    reached = await around.database.read(lambda tx: around.servers.reach(tx, server))
    begun = await around.servers.begin_login(reached)
    if begun is None:
        return
    login = await around.servers.login_of(server.id)
    yield {"event": "authorization_url", "url": begun.url, "session_id": login.id if login else None}
    yield {"event": "waiting_for_auth", "message": "Open the URL in a browser and agree there."}
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _until_over(around, server)
    except TimeoutError as error:
        raise McpLoginNeeded(f"Nobody logged in within {PATIENCE_S:g} seconds.") from error


async def _until_over(around: Surroundings, server: McpServer) -> None:
    while True:
        changed = around.servers.login_changed  # taken before the look: what happens after it is not missed
        login = await around.servers.login_of(server.id)
        if login is None:
            raise NotFound(f"MCP server {server.id} not found")
        if login.status == "authorized":
            return
        if login.status == "error":
            raise McpLoginNeeded(login.error or "The login failed.")
        with suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), _LOOK_S)


def _success(listing: Listing) -> Event:
    return {"event": "success", "tools": live_view(listing)}

"""MCP servers, by id: keep them, refresh their tools, run these by hand, log in. And by name, as older clients know
them.

By name tools are listed live: what the server says now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from html import escape
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query
from starlette.responses import HTMLResponse, Response, StreamingResponse

from holdfast.actions.dependencies import Holdfast
from holdfast.actions.mcp import run, servers, sync
from holdfast.actions.mcp.connect import connect_to, finish_login
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.wire.mcp import (
    Changed,
    LiveTool,
    McpServerCreate,
    McpServerUpdate,
    McpServerView,
    McpToolRun,
    NamedServer,
    NamedServerUpdate,
    NamedServerView,
)
from holdfast.wire.tools import ToolExecutionResult, ToolView, content_view, tool_view

router = LazyRouter(prefix="/v1/mcp-servers", tags=["mcp-servers"])
named_router = LazyRouter(prefix="/v1/tools/mcp", tags=["tools"])
_encode = msgspec.json.Encoder().encode

# Not checked: clients of the old server rely on 404 for any unknown value.
McpServerId = Annotated[str, Path()]
McpToolId = Annotated[str, Path()]
ForAgent = Annotated[str | None, Query(description="The agent whose secrets fill in templates.")]


@router.get("/", responses={200: {"model": list[McpServerView]}}, response_model=None)
async def list_mcp_servers(deps: Deps) -> Response:
    return json_response(await servers.list_servers(_around(deps)))


@router.post("/", responses={200: {"model": McpServerView}}, response_model=None)
async def create_mcp_server(deps: Deps, request: McpServerCreate) -> Response:
    """Also if the server cannot be reached: then `sync_error` says why, and a refresh tries again."""
    return json_response(await servers.create_server(_around(deps), request, deps.clock.now_us()))


@router.get("/connect/{mcp_server_id}", response_model=None)
async def connect_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    """Server-sent events: `connection_attempt`, and at the end `success` or `error`. If a person has to log in,
    `oauth_required`, `authorization_url` and `waiting_for_auth` come between."""
    events = await connect_to(_around(deps), mcp_server_id, deps.clock.now_us())
    return _ConnectionEvents(events, keepalive_s=deps.settings.keepalive_s)


@router.get("/{mcp_server_id}", responses={200: {"model": McpServerView}}, response_model=None)
async def retrieve_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    return json_response(await servers.read_server(_around(deps), mcp_server_id))


@router.patch("/{mcp_server_id}", responses={200: {"model": McpServerView}}, response_model=None)
async def update_mcp_server(deps: Deps, mcp_server_id: McpServerId, request: McpServerUpdate) -> Response:
    """What is not sent stays, and so does a secret that is sent as its mask."""
    return json_response(await servers.update_server(_around(deps), mcp_server_id, request, deps.clock.now_us()))


@router.delete("/{mcp_server_id}", status_code=204, response_model=None)
async def delete_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    """With its tools, which agents lose."""
    await servers.delete_server(_around(deps), mcp_server_id)
    return Response(status_code=204)


@router.patch("/{mcp_server_id}/refresh", responses={200: {"model": Changed}}, response_model=None)
async def refresh_mcp_server(deps: Deps, mcp_server_id: McpServerId, agent_id: ForAgent = None) -> Response:
    changed = await sync.refresh_tools(_around(deps), mcp_server_id, agent_id, deps.clock.now_us())
    return json_response(changed)


@router.get("/{mcp_server_id}/tools", responses={200: {"model": list[ToolView]}}, response_model=None)
async def list_mcp_tools(deps: Deps, mcp_server_id: McpServerId) -> Response:
    """As they were last synced."""
    return json_response([tool_view(tool) for tool in await run.tools_of(deps.database, mcp_server_id)])


@router.get("/{mcp_server_id}/tools/{tool_id}", responses={200: {"model": ToolView}}, response_model=None)
async def retrieve_mcp_tool(deps: Deps, mcp_server_id: McpServerId, tool_id: McpToolId) -> Response:
    return json_response(tool_view(await run.tool_of(deps.database, mcp_server_id, tool_id)))


@router.post(
    "/{mcp_server_id}/tools/{tool_id}/run", responses={200: {"model": ToolExecutionResult}}, response_model=None
)
async def run_mcp_tool(
    deps: Deps, mcp_server_id: McpServerId, tool_id: McpToolId, request: McpToolRun | None = None
) -> Response:
    arguments = request.args if request else {}
    return json_response(await run.run_tool(deps.database, deps.mcp, mcp_server_id, tool_id, arguments))


@named_router.get("/servers", responses={200: {"model": dict[str, NamedServerView]}}, response_model=None)
async def list_named_servers(deps: Deps) -> Response:
    return json_response({view["server_name"]: view for view in await servers.list_named(_around(deps))})


@named_router.put("/servers", responses={200: {"model": list[NamedServerView]}}, response_model=None)
async def add_named_server(deps: Deps, request: NamedServer) -> Response:
    return json_response(await servers.add_named(_around(deps), request, deps.clock.now_us()))


@named_router.post("/servers/test", response_model=None)
async def test_named_server(deps: Deps, request: NamedServer) -> Response:
    """Connects and lists, and stores nothing."""
    found = await servers.try_out(_around(deps), request, deps.clock.now_us())
    return json_response({"status": "success", "tools": found})


@named_router.post("/servers/connect", response_model=None)
async def connect_named_server(deps: Deps, request: NamedServer) -> Response:
    """The events of `GET /v1/mcp-servers/connect/{mcp_server_id}`, for a server that need not be stored."""
    events = await servers.connect_described(_around(deps), request, deps.clock.now_us())
    return _ConnectionEvents(events, keepalive_s=deps.settings.keepalive_s)


@named_router.patch("/servers/{mcp_server_name}", responses={200: {"model": NamedServerView}}, response_model=None)
async def update_named_server(deps: Deps, mcp_server_name: str, request: NamedServerUpdate) -> Response:
    return json_response(await servers.update_named(_around(deps), mcp_server_name, request, deps.clock.now_us()))


@named_router.delete(
    "/servers/{mcp_server_name}", responses={200: {"model": list[NamedServerView]}}, response_model=None
)
async def delete_named_server(deps: Deps, mcp_server_name: str) -> Response:
    return json_response(await servers.delete_named(_around(deps), mcp_server_name))


@named_router.get("/servers/{mcp_server_name}/tools", responses={200: {"model": list[LiveTool]}}, response_model=None)
async def list_live_tools(deps: Deps, mcp_server_name: str) -> Response:
    return json_response(await servers.live_tools(_around(deps), mcp_server_name))


@named_router.post("/servers/{mcp_server_name}/resync", responses={200: {"model": Changed}}, response_model=None)
async def resync_named_server(deps: Deps, mcp_server_name: str, agent_id: ForAgent = None) -> Response:
    changed = await servers.resync_named(_around(deps), mcp_server_name, agent_id, deps.clock.now_us())
    return json_response(changed)


@named_router.post("/servers/{mcp_server_name}/tools/{tool_name}/execute", response_model=None)
async def execute_live_tool(
    deps: Deps, mcp_server_name: str, tool_name: str, request: McpToolRun | None = None
) -> Response:
    called = await servers.call_live_tool(_around(deps), mcp_server_name, tool_name, request.args if request else {})
    return json_response({"result": content_view(called.content), "success": called.status == "success"})


@named_router.post(
    "/servers/{mcp_server_name}/{mcp_tool_name}", responses={200: {"model": ToolView}}, response_model=None
)
async def add_live_tool(deps: Deps, mcp_server_name: str, mcp_tool_name: str) -> Response:
    """Stores this one of the server's tools, so that it can be attached."""
    tool = await servers.store_live_tool(_around(deps), mcp_server_name, mcp_tool_name, deps.clock.now_us())
    return json_response(tool_view(tool))


@named_router.get("/oauth/callback", response_model=None)
async def finish_mcp_login(
    deps: Deps,
    state: str | None = None,
    code: str | None = None,
    iss: str | None = None,
    error: str | None = None,
    error_description: str | None = None,
) -> Response:
    """Where an authorization server sends the browser after a login."""
    refusal = None if error is None else f"{error} {error_description or ''}".strip()
    login = await finish_login(_around(deps), state, code, iss, refusal)
    done = "The login is done." if login.status == "authorized" else f"The login failed. {login.error or ''}"
    page = f"<!doctype html><title>Holdfast</title><p>{escape(done)} You can close this window.</p>"
    return HTMLResponse(page, status_code=200 if login.status == "authorized" else 400)


def _around(deps: Holdfast) -> sync.Surroundings:
    return sync.Surroundings(deps.database, deps.mcp, deps.settings.mcp_trust_annotations)


class _ConnectionEvents(StreamingResponse):
    """Each event of a connection as it happens, with signs of life between them."""

    def __init__(self, events: AsyncGenerator[dict[str, Any]], *, keepalive_s: float) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_lines(events, keepalive_s), media_type="text/event-stream", headers=headers)


async def _lines(events: AsyncGenerator[dict[str, Any]], keepalive_s: float) -> AsyncGenerator[bytes]:
    following: asyncio.Task[dict[str, Any]] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait([following], timeout=keepalive_s))[0]:
                yield b": still connecting\n\n"
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield b"data: " + _encode(event) + b"\n\n"
    finally:
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait([following])
        await events.aclose()

"""MCP servers, by name, as older clients know them. Tools are listed live: what the server says now."""

from __future__ import annotations

from html import escape

from starlette.responses import HTMLResponse, Response

from holdfast.actions.mcp import by_name
from holdfast.actions.mcp.connect import finish_login
from holdfast.api.deps import Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.mcp_events import McpEvents
from holdfast.api.routes.mcp_servers import ForAgent, around
from holdfast.wire.mcp import Changed, LiveTool, McpToolRun, NamedServer, NamedServerUpdate, NamedServerView
from holdfast.wire.tools import ToolView, content_view, tool_view

router = LazyRouter(prefix="/v1/tools/mcp", tags=["tools"])


@router.get("/servers", responses={200: {"model": dict[str, NamedServerView]}}, response_model=None)
async def list_named_servers(deps: Deps) -> Response:
    return json_response({view["server_name"]: view for view in await by_name.list_named(around(deps))})


@router.put("/servers", responses={200: {"model": list[NamedServerView]}}, response_model=None)
async def add_named_server(deps: Deps, request: NamedServer) -> Response:
    return json_response(await by_name.add_named(around(deps), request, deps.clock.now_us()))


@router.post("/servers/test", response_model=None)
async def test_named_server(deps: Deps, request: NamedServer) -> Response:
    """Connects and lists, and stores nothing."""
    found = await by_name.try_out(around(deps), request, deps.clock.now_us())
    return json_response({"status": "success", "tools": found})


@router.post("/servers/connect", response_model=None)
async def connect_named_server(deps: Deps, request: NamedServer) -> Response:
    """The events of `GET /v1/mcp-servers/connect/{mcp_server_id}`, for a server that need not be stored."""
    events = await by_name.connect_described(around(deps), request, deps.clock.now_us())
    return McpEvents(events, keepalive_s=deps.settings.keepalive_s)


@router.patch("/servers/{mcp_server_name}", responses={200: {"model": NamedServerView}}, response_model=None)
async def update_named_server(deps: Deps, mcp_server_name: str, request: NamedServerUpdate) -> Response:
    return json_response(await by_name.update_named(around(deps), mcp_server_name, request, deps.clock.now_us()))


@router.delete("/servers/{mcp_server_name}", responses={200: {"model": list[NamedServerView]}}, response_model=None)
async def delete_named_server(deps: Deps, mcp_server_name: str) -> Response:
    return json_response(await by_name.delete_named(around(deps), mcp_server_name))


@router.get("/servers/{mcp_server_name}/tools", responses={200: {"model": list[LiveTool]}}, response_model=None)
async def list_live_tools(deps: Deps, mcp_server_name: str) -> Response:
    return json_response(await by_name.live_tools(around(deps), mcp_server_name))


@router.post("/servers/{mcp_server_name}/resync", responses={200: {"model": Changed}}, response_model=None)
async def resync_named_server(deps: Deps, mcp_server_name: str, agent_id: ForAgent = None) -> Response:
    changed = await by_name.resync_named(around(deps), mcp_server_name, agent_id, deps.clock.now_us())
    return json_response(changed)


@router.post("/servers/{mcp_server_name}/tools/{tool_name}/execute", response_model=None)
async def execute_live_tool(
    deps: Deps, mcp_server_name: str, tool_name: str, request: McpToolRun | None = None
) -> Response:
    called = await by_name.execute(around(deps), mcp_server_name, tool_name, request.args if request else {})
    return json_response({"result": content_view(called.content), "success": called.status == "success"})


@router.post("/servers/{mcp_server_name}/{mcp_tool_name}", responses={200: {"model": ToolView}}, response_model=None)
async def add_live_tool(deps: Deps, mcp_server_name: str, mcp_tool_name: str) -> Response:
    """Stores this one of the server's tools, so that it can be attached."""
    tool = await by_name.add_tool(around(deps), mcp_server_name, mcp_tool_name, deps.clock.now_us())
    return json_response(tool_view(tool))


@router.get("/oauth/callback", response_model=None)
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
    login = await finish_login(around(deps), state, code, iss, refusal)
    done = "The login is done." if login.status == "authorized" else f"The login failed. {login.error or ''}"
    page = f"<!doctype html><title>Holdfast</title><p>{escape(done)} You can close this window.</p>"
    return HTMLResponse(page, status_code=200 if login.status == "authorized" else 400)

"""MCP servers, by id: keep them, refresh their tools, run these by hand, log in."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from holdfast.actions.assembled import Holdfast
from holdfast.actions.mcp import run, servers, sync
from holdfast.actions.mcp.connect import connect_to
from holdfast.api.deps import Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.mcp_events import McpEvents
from holdfast.wire.mcp import Changed, McpServerCreate, McpServerUpdate, McpServerView, McpToolRun
from holdfast.wire.tools import ToolExecutionResult, ToolView, tool_view

router = LazyRouter(prefix="/v1/mcp-servers", tags=["mcp-servers"])

# Not checked: clients of the old server rely on 404 for any unknown value.
McpServerId = Annotated[str, Path()]
McpToolId = Annotated[str, Path()]
ForAgent = Annotated[str | None, Query(description="The agent whose secrets fill in templates.")]


@router.get("/", responses={200: {"model": list[McpServerView]}}, response_model=None)
async def list_mcp_servers(deps: Deps) -> Response:
    return json_response(await servers.list_servers(around(deps)))


@router.post("/", responses={200: {"model": McpServerView}}, response_model=None)
async def create_mcp_server(deps: Deps, request: McpServerCreate) -> Response:
    """Also if the server cannot be reached: then `sync_error` says why, and a refresh tries again."""
    return json_response(await servers.create_server(around(deps), request, deps.clock.now_us()))


@router.get("/connect/{mcp_server_id}", response_model=None)
async def connect_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    """Server-sent events: `connection_attempt`, and at the end `success` or `error`. If a person has to log in,
    `oauth_required`, `authorization_url` and `waiting_for_auth` come between."""
    events = await connect_to(around(deps), mcp_server_id, deps.clock.now_us())
    return McpEvents(events, keepalive_s=deps.settings.keepalive_s)


@router.get("/{mcp_server_id}", responses={200: {"model": McpServerView}}, response_model=None)
async def retrieve_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    return json_response(await servers.read_server(around(deps), mcp_server_id))


@router.patch("/{mcp_server_id}", responses={200: {"model": McpServerView}}, response_model=None)
async def update_mcp_server(deps: Deps, mcp_server_id: McpServerId, request: McpServerUpdate) -> Response:
    """What is not sent stays, and so does a secret that is sent as its mask."""
    return json_response(await servers.update_server(around(deps), mcp_server_id, request, deps.clock.now_us()))


@router.delete("/{mcp_server_id}", status_code=204, response_model=None)
async def delete_mcp_server(deps: Deps, mcp_server_id: McpServerId) -> Response:
    """With its tools, which agents lose."""
    await servers.delete_server(around(deps), mcp_server_id)
    return Response(status_code=204)


@router.patch("/{mcp_server_id}/refresh", responses={200: {"model": Changed}}, response_model=None)
async def refresh_mcp_server(deps: Deps, mcp_server_id: McpServerId, agent_id: ForAgent = None) -> Response:
    changed = await sync.refresh_tools(around(deps), mcp_server_id, agent_id, deps.clock.now_us())
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


def around(deps: Holdfast) -> sync.Surroundings:
    return sync.Surroundings(deps.database, deps.mcp, deps.settings.mcp_trust_annotations)

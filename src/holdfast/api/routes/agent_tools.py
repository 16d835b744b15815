"""The tools of one agent: which it has, which need consent, and running one by hand."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions.queries import Page
from holdfast.actions.tools import attach
from holdfast.actions.tools.read import list_tools_of_agent
from holdfast.actions.tools.run import run_attached
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Asking, Before, Deps, Limit, Order, OrderBy, ToolId
from holdfast.errors import Unprocessable
from holdfast.wire.agents import AgentState
from holdfast.wire.tools import (
    ModifyApprovalRequest,
    ToolExecuteRequest,
    ToolExecutionResult,
    ToolView,
    tool_view,
)

router = LazyRouter(prefix="/v1/agents/{agent_id}/tools", tags=["agents"])


@router.get("", responses={200: {"model": list[ToolView]}}, response_model=None)
async def list_tools(
    deps: Deps,
    agent_id: AgentId,
    before: Before = None,
    after: After = None,
    limit: Limit = 10,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([tool_view(tool) for tool in await list_tools_of_agent(deps.database, agent_id, page)])


@router.patch("/attach/{tool_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def attach_tool(deps: Deps, asking: Asking, agent_id: AgentId, tool_id: ToolId) -> Response:
    show, now_us = asking.agent_after_change, deps.clock.now_us()
    return json_response(await attach.attach_tool(deps.database, agent_id, tool_id, now_us, show=show))


@router.patch("/detach/{tool_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def detach_tool(deps: Deps, asking: Asking, agent_id: AgentId, tool_id: ToolId) -> Response:
    show, now_us = asking.agent_after_change, deps.clock.now_us()
    return json_response(await attach.detach_tool(deps.database, agent_id, tool_id, now_us, show=show))


@router.patch("/approval/{tool_name}", responses={200: {"model": AgentState | None}}, response_model=None)
async def modify_approval(
    deps: Deps,
    asking: Asking,
    agent_id: AgentId,
    tool_name: str,
    request: ModifyApprovalRequest | None = None,
    requires_approval: bool | None = None,
) -> Response:
    """The body wins over the retired query parameter."""
    required = request.requires_approval if request else requires_approval
    if required is None:
        raise Unprocessable("Say whether the tool requires approval: send requires_approval in the body.")
    show, now_us = asking.agent_after_change, deps.clock.now_us()
    return json_response(await attach.set_approval(deps.database, agent_id, tool_name, required, now_us, show=show))


@router.post("/{tool_name}/run", responses={200: {"model": ToolExecutionResult}}, response_model=None)
async def run_attached_tool(
    deps: Deps, agent_id: AgentId, tool_name: str, request: ToolExecuteRequest | None = None
) -> Response:
    """Outside any run: no message is written."""
    result = await run_attached(
        agent_id,
        tool_name,
        request.args if request else {},
        database=deps.database,
        sandbox=deps.sandbox,
        secretbox=deps.secretbox,
        clock=deps.clock,
        archival=deps.archival,
        mcp=deps.mcp,
        timeout_s=deps.settings.tool_timeout_s,
    )
    return json_response(result)

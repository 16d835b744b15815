"""The tools of one agent: which it has, which need consent, and running one by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from holdfast.actions.agents.read import whole_state
from holdfast.actions.assembled import Holdfast
from holdfast.actions.tools import attach as actions
from holdfast.actions.tools import run as run_tool
from holdfast.api.deps import Asking, Deps
from holdfast.api.ids import AgentId, ToolId
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, Limit, Order, OrderBy
from holdfast.api.routing import LazyRouter
from holdfast.core.records import Tool
from holdfast.errors import Unprocessable
from holdfast.store import agents as agent_rows
from holdfast.store import tools as tool_rows
from holdfast.store.paging import Page
from holdfast.store.transaction import Transaction
from holdfast.wire.agents import AgentState
from holdfast.wire.clients import Client
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
    filters = tool_rows.ToolFilter(agent_id=agent_id)
    page = Page(limit=limit, before=before, after=after, order=order)

    async def read(tx: Transaction) -> list[Tool]:
        await agent_rows.require(tx, agent_id)
        return await tool_rows.list_tools(tx, filters, page)

    return json_response([tool_view(tool) for tool in await deps.database.read(read)])


@router.patch("/attach/{tool_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def attach_tool(deps: Deps, asking: Asking, agent_id: AgentId, tool_id: ToolId) -> Response:
    now_us = deps.clock.now_us()
    return await _change(deps, asking, agent_id, lambda tx: actions.attach_tool(tx, agent_id, tool_id, now_us))


@router.patch("/detach/{tool_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def detach_tool(deps: Deps, asking: Asking, agent_id: AgentId, tool_id: ToolId) -> Response:
    now_us = deps.clock.now_us()
    return await _change(deps, asking, agent_id, lambda tx: actions.detach_tool(tx, agent_id, tool_id, now_us))


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
    now_us = deps.clock.now_us()
    return await _change(
        deps, asking, agent_id, lambda tx: actions.set_approval(tx, agent_id, tool_name, required, now_us)
    )


@router.post("/{tool_name}/run", responses={200: {"model": ToolExecutionResult}}, response_model=None)
async def run_attached_tool(
    deps: Deps, agent_id: AgentId, tool_name: str, request: ToolExecuteRequest | None = None
) -> Response:
    """Outside any run: no message is written."""
    result = await run_tool.run_attached(
        agent_id,
        tool_name,
        request.args if request else {},
        database=deps.database,
        sandbox=deps.sandbox,
        secretbox=deps.secretbox,
        clock=deps.clock,
        archival=deps.archival,
        timeout_s=deps.settings.tool_timeout_s,
    )
    return json_response(result)


async def _change(
    deps: Holdfast, asking: Client, agent_id: str, change: Callable[[Transaction], Awaitable[None]]
) -> Response:
    """Answers with the agent, or with null to a client that does not look at it."""

    async def write(tx: Transaction) -> AgentState | None:
        await change(tx)
        return await whole_state(tx, agent_id) if asking.agent_after_change else None

    return json_response(await deps.database.write(write))

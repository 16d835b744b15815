"""The memory blocks of one agent, by their labels."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions import blocks as actions
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Before, BlockId, Deps, Limit, Order, OrderBy
from holdfast.wire.agents import AgentState
from holdfast.wire.blocks import BlockResponse, BlockUpdate, block_view

router = LazyRouter(prefix="/v1/agents/{agent_id}/core-memory/blocks", tags=["agents"])


@router.get("", responses={200: {"model": list[BlockResponse]}}, response_model=None)
async def list_blocks(
    deps: Deps,
    agent_id: AgentId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_blocks_of_agent(deps.database, agent_id, page)
    return json_response([block_view(block) for block in found])


@router.get("/{block_label}", responses={200: {"model": BlockResponse}}, response_model=None)
async def retrieve_block(deps: Deps, agent_id: AgentId, block_label: str) -> Response:
    block = await actions.read_labelled_block(deps.database, agent_id, block_label)
    return json_response(block_view(block))


@router.patch("/{block_label}", responses={200: {"model": BlockResponse}}, response_model=None)
async def update_block(deps: Deps, agent_id: AgentId, block_label: str, request: BlockUpdate) -> Response:
    now_us = deps.clock.now_us()
    block = await actions.update_labelled_block(deps.database, agent_id, block_label, request, now_us)
    return json_response(block_view(block))


@router.patch("/attach/{block_id}", responses={200: {"model": AgentState}}, response_model=None)
async def attach_block(deps: Deps, agent_id: AgentId, block_id: BlockId) -> Response:
    return json_response(await actions.attach_block(deps.database, agent_id, block_id))


@router.patch("/detach/{block_id}", responses={200: {"model": AgentState}}, response_model=None)
async def detach_block(deps: Deps, agent_id: AgentId, block_id: BlockId) -> Response:
    return json_response(await actions.detach_block(deps.database, agent_id, block_id))

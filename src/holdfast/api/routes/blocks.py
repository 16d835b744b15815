"""Memory blocks by themselves, whoever they are attached to."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions import blocks as actions
from holdfast.actions.agents import read as agents
from holdfast.actions.queries import BlockFilter, Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, BlockId, Deps, Int64, Limit, Opener, Order, OrderBy, SearchQuery
from holdfast.wire.agents import AgentState, Include, included
from holdfast.wire.blocks import BlockResponse, BlockUpdate, CreateBlock, block_view

router = LazyRouter(prefix="/v1/blocks", tags=["blocks"])

Tags = Annotated[list[str] | None, Query()]


@router.get("/", responses={200: {"model": list[BlockResponse]}}, response_model=None)
async def list_blocks(
    deps: Deps,
    label: str | None = None,
    templates_only: bool = False,
    name: str | None = None,
    identity_id: str | None = None,
    identifier_keys: Annotated[list[str] | None, Query()] = None,
    project_id: str | None = None,
    tags: Tags = None,
    match_all_tags: bool = False,
    limit: Limit = 50,
    before: Before = None,
    after: After = None,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
    label_search: SearchQuery = None,
    description_search: SearchQuery = None,
    value_search: SearchQuery = None,
    connected_to_agents_count_gt: Int64 | None = None,
    connected_to_agents_count_lt: Int64 | None = None,
    connected_to_agents_count_eq: Annotated[list[Int64] | None, Query(max_length=100)] = None,
    show_hidden_blocks: bool = False,
) -> Response:
    filters = BlockFilter(
        label=label,
        label_search=label_search,
        description_search=description_search,
        value_search=value_search,
        template_name=name,
        templates_only=templates_only,
        project_id=project_id,
        tags=tuple(tags or ()),
        match_all_tags=match_all_tags,
        agents_more_than=connected_to_agents_count_gt,
        agents_less_than=connected_to_agents_count_lt,
        agents_exactly=tuple(connected_to_agents_count_eq or ()),
        identity_id=identity_id,
        identifier_keys=tuple(identifier_keys or ()),
        show_hidden=show_hidden_blocks,
    )
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_blocks(deps.database, filters, page)
    return json_response([block_view(block) for block in found])


@router.post("/", responses={200: {"model": BlockResponse}}, response_model=None)
async def create_block(deps: Deps, request: CreateBlock) -> Response:
    return json_response(block_view(await actions.create_block(deps.database, request, deps.clock.now_us())))


@router.get("/count", response_model=int)
async def count_blocks(
    deps: Deps,
    label: str | None = None,
    templates_only: bool = False,
    name: str | None = None,
    tags: Tags = None,
    match_all_tags: bool = False,
    project_id: str | None = None,
) -> Response:
    filters = BlockFilter(
        label=label,
        template_name=name,
        templates_only=templates_only,
        project_id=project_id,
        tags=tuple(tags or ()),
        match_all_tags=match_all_tags,
    )
    return json_response(await actions.count_blocks(deps.database, filters))


@router.get("/{block_id}", responses={200: {"model": BlockResponse}}, response_model=None)
async def retrieve_block(deps: Deps, block_id: BlockId) -> Response:
    return json_response(block_view(await actions.read_block(deps.database, block_id)))


@router.patch("/{block_id}", responses={200: {"model": BlockResponse}}, response_model=None)
async def update_block(deps: Deps, block_id: BlockId, request: BlockUpdate) -> Response:
    block = await actions.update_block(deps.database, block_id, request, deps.clock.now_us())
    return json_response(block_view(block))


@router.delete("/{block_id}", response_model=None)
async def delete_block(deps: Deps, block_id: BlockId) -> Response:
    await actions.delete_block(deps.database, block_id)
    return json_response({"message": f"Block id={block_id} successfully deleted"})


@router.get("/{block_id}/agents", responses={200: {"model": list[AgentState]}}, response_model=None)
async def list_agents_of_block(
    deps: Deps,
    opener: Opener,
    block_id: BlockId,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    include: Annotated[list[Include], Query()] = [],  # noqa: B006 - FastAPI copies it
    # Accepted and without effect, as on the old server.
    include_relationships: Annotated[list[str] | None, Query(deprecated=True)] = None,
) -> Response:
    relations = included(include)
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await agents.list_agents_of_block(deps.database, block_id, page, relations, opener))

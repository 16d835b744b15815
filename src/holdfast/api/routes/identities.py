"""Identities, what belongs to them, and how agents and blocks come to belong to them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query
from starlette.responses import Response

from holdfast.actions import identities as actions
from holdfast.actions.agents import read as agents
from holdfast.actions.queries import IdentityFilter, Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, AgentId, Before, BlockId, Deps, IdentityId, Limit, Opener, Order, OrderBy
from holdfast.wire.agents import AgentState, Include, included
from holdfast.wire.blocks import BlockResponse, block_view
from holdfast.wire.bounds import Many
from holdfast.wire.identities import (
    IdentityCreate,
    IdentityProperty,
    IdentityType,
    IdentityUpdate,
    IdentityView,
    identity_view,
)

router = LazyRouter(prefix="/v1/identities", tags=["identities"])
attaching_router = LazyRouter(prefix="/v1", tags=["identities"])


@router.get("/", responses={200: {"model": list[IdentityView]}}, response_model=None)
async def list_identities(
    deps: Deps,
    name: str | None = None,
    project_id: str | None = None,
    identifier_key: str | None = None,
    identity_type: IdentityType | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    filters = IdentityFilter(
        name=name, project_id=project_id, identifier_key=identifier_key, identity_type=identity_type
    )
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([identity_view(each) for each in await actions.list_identities(deps.database, filters, page)])


@router.post("/", responses={200: {"model": IdentityView}}, response_model=None)
async def create_identity(deps: Deps, request: IdentityCreate) -> Response:
    return json_response(identity_view(await actions.create_identity(deps.database, request, deps.clock.now_us())))


@router.put("/", responses={200: {"model": IdentityView}}, response_model=None)
async def upsert_identity(deps: Deps, request: IdentityCreate) -> Response:
    return json_response(identity_view(await actions.upsert_identity(deps.database, request, deps.clock.now_us())))


@router.get("/count", response_model=int)
async def count_identities(deps: Deps) -> Response:
    return json_response(await actions.count_identities(deps.database))


@router.get("/{identity_id}", responses={200: {"model": IdentityView}}, response_model=None)
async def retrieve_identity(deps: Deps, identity_id: IdentityId) -> Response:
    return json_response(identity_view(await actions.read_identity(deps.database, identity_id)))


@router.patch("/{identity_id}", responses={200: {"model": IdentityView}}, response_model=None)
async def update_identity(deps: Deps, identity_id: IdentityId, request: IdentityUpdate) -> Response:
    changed = await actions.update_identity(deps.database, identity_id, request, deps.clock.now_us())
    return json_response(identity_view(changed))


@router.delete("/{identity_id}", response_model=None)
async def delete_identity(deps: Deps, identity_id: IdentityId) -> Response:
    await actions.delete_identity(deps.database, identity_id)
    return json_response(None)


@router.put("/{identity_id}/properties", responses={200: {"model": IdentityView}}, response_model=None)
async def replace_properties(
    deps: Deps, identity_id: IdentityId, properties: Annotated[Many[IdentityProperty], Body()]
) -> Response:
    changed = await actions.replace_properties(deps.database, identity_id, properties, deps.clock.now_us())
    return json_response(identity_view(changed))


@router.get("/{identity_id}/agents", responses={200: {"model": list[AgentState]}}, response_model=None)
async def list_agents_of_identity(
    deps: Deps,
    opener: Opener,
    identity_id: IdentityId,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    include: Annotated[list[Include], Query()] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await agents.list_agents_of_identity(deps.database, identity_id, page, included(include), opener)
    return json_response(found)


@router.get("/{identity_id}/blocks", responses={200: {"model": list[BlockResponse]}}, response_model=None)
async def list_blocks_of_identity(
    deps: Deps,
    identity_id: IdentityId,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_blocks_of_identity(deps.database, identity_id, page)
    return json_response([block_view(block) for block in found])


@attaching_router.patch("/agents/{agent_id}/identities/attach/{identity_id}", response_model=None)
async def attach_to_agent(deps: Deps, agent_id: AgentId, identity_id: str) -> Response:
    await actions.attach_to_agent(deps.database, agent_id, identity_id)
    return json_response(None)


@attaching_router.patch("/agents/{agent_id}/identities/detach/{identity_id}", response_model=None)
async def detach_from_agent(deps: Deps, agent_id: AgentId, identity_id: str) -> Response:
    await actions.detach_from_agent(deps.database, agent_id, identity_id)
    return json_response(None)


@attaching_router.patch(
    "/blocks/{block_id}/identities/attach/{identity_id}", responses={200: {"model": BlockResponse}}, response_model=None
)
async def attach_to_block(deps: Deps, block_id: BlockId, identity_id: str) -> Response:
    return json_response(block_view(await actions.attach_to_block(deps.database, block_id, identity_id)))


@attaching_router.patch(
    "/blocks/{block_id}/identities/detach/{identity_id}", responses={200: {"model": BlockResponse}}, response_model=None
)
async def detach_from_block(deps: Deps, block_id: BlockId, identity_id: str) -> Response:
    return json_response(block_view(await actions.detach_from_block(deps.database, block_id, identity_id)))

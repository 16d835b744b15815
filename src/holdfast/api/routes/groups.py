"""Groups of agents."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.groups import records as actions
from holdfast.actions.queries import GroupFilter, Page
from holdfast.api import discussing
from holdfast.api.deps import Asking, Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.params import After, AgentId, Before, GroupId, Limit, Order, OrderBy, SpeakingTool
from holdfast.api.sending import NO_STREAM_HERE
from holdfast.errors import Unprocessable
from holdfast.wire.groups import GroupCreate, GroupType, GroupUpdate, GroupView, group_view
from holdfast.wire.message_shapes import MessageType
from holdfast.wire.messages import messages_view
from holdfast.wire.requests import LettaMessageRequest, LettaStreamingRequest

router = LazyRouter(prefix="/v1/groups", tags=["groups"])
agent_router = LazyRouter(prefix="/v1/agents/{agent_id}/groups", tags=["agents"])


@router.get("/", responses={200: {"model": list[GroupView]}}, response_model=None)
async def list_groups(
    deps: Deps,
    manager_type: GroupType | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
    project_id: str | None = None,
    show_hidden_groups: bool = False,
) -> Response:
    filters = GroupFilter(manager_type=manager_type, project_id=project_id, show_hidden=show_hidden_groups)
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([group_view(group) for group in await actions.list_groups(deps.database, filters, page)])


@router.post("/", responses={200: {"model": GroupView}}, response_model=None)
async def create_group(deps: Deps, request: GroupCreate) -> Response:
    return json_response(group_view(await actions.create_group(deps.database, request, deps.clock.now_us())))


@router.get("/count", response_model=int)
async def count_groups(deps: Deps) -> Response:
    return json_response(await actions.count_groups(deps.database))


@router.get("/{group_id}", responses={200: {"model": GroupView}}, response_model=None)
async def retrieve_group(deps: Deps, group_id: GroupId) -> Response:
    return json_response(group_view(await actions.read_group(deps.database, group_id)))


@router.patch("/{group_id}", responses={200: {"model": GroupView}}, response_model=None)
async def update_group(deps: Deps, group_id: GroupId, request: GroupUpdate) -> Response:
    return json_response(group_view(await actions.update_group(deps.database, group_id, request, deps.clock.now_us())))


@router.delete("/{group_id}", response_model=None)
async def delete_group(deps: Deps, group_id: GroupId) -> Response:
    await actions.delete_group(deps.database, group_id)
    return json_response({"message": f"Group id={group_id} successfully deleted"})


@router.patch("/{group_id}/blocks/attach/{block_id}", response_model=None)
async def attach_block(deps: Deps, group_id: GroupId, block_id: str) -> Response:
    await actions.attach_block(deps.database, group_id, block_id)
    return json_response(None)


@router.patch("/{group_id}/blocks/detach/{block_id}", response_model=None)
async def detach_block(deps: Deps, group_id: GroupId, block_id: str) -> Response:
    await actions.detach_block(deps.database, group_id, block_id)
    return json_response(None)


@router.get("/{group_id}/messages")
async def list_messages(
    deps: Deps,
    group_id: GroupId,
    speaking: SpeakingTool,
    before: Before = None,
    after: After = None,
    limit: Limit = 10,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    include_return_message_types: Annotated[list[MessageType] | None, Query()] = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    rows = await actions.list_messages(deps.database, group_id, page)
    return json_response(messages_view(rows, speaking, include_return_message_types))


@router.post("/{group_id}/messages")
async def send_message(deps: Deps, group_id: GroupId, request: LettaMessageRequest, asking: Asking) -> Response:
    if not request.streaming:
        return await discussing.answer(deps, group_id, request)
    if not asking.streams_by_option:
        raise Unprocessable(NO_STREAM_HERE)
    return await discussing.stream(deps, group_id, request)


@router.post("/{group_id}/messages/stream")
async def stream_message(deps: Deps, group_id: GroupId, request: LettaStreamingRequest) -> Response:
    return await discussing.stream(deps, group_id, request)


@router.patch("/{group_id}/reset-messages", response_model=None)
async def reset_messages(deps: Deps, group_id: GroupId) -> Response:
    await actions.reset_messages(deps.database, group_id, deps.clock)
    return json_response(None)


@agent_router.get("", responses={200: {"model": list[GroupView]}}, response_model=None)
async def list_groups_of_agent(
    deps: Deps,
    agent_id: AgentId,
    manager_type: str | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_groups_of_agent(deps.database, agent_id, manager_type, page)
    return json_response([group_view(group) for group in found])

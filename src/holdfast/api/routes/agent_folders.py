"""The folders of one agent, and what it sees of their files. `sources` is the retired name of folders."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions.folders import attach, attached_files, records
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import MAX_LIMIT, After, AgentId, Asking, Before, Deps, FileId, FolderId, Limit, Order, OrderBy
from holdfast.wire.agents import AgentState
from holdfast.wire.folders import AgentFilesPage, SourceView, source_view

router = LazyRouter(prefix="/v1/agents/{agent_id}", tags=["agents"])


@router.get("/folders", responses={200: {"model": list[SourceView]}}, response_model=None)
async def list_folders(
    deps: Deps,
    agent_id: AgentId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await records.list_folders(deps.database, page, agent_id=agent_id)
    return json_response([source_view(folder) for folder in found])


@router.get("/sources", responses={200: {"model": list[SourceView]}}, response_model=None)
async def list_sources(deps: Deps, agent_id: AgentId, limit: Limit = MAX_LIMIT, after: After = None) -> Response:
    page = Page(limit=limit, after=after)
    found = await records.list_folders(deps.database, page, agent_id=agent_id)
    return json_response([source_view(folder) for folder in found])


@router.patch("/folders/attach/{folder_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def attach_folder(deps: Deps, asking: Asking, agent_id: AgentId, folder_id: FolderId) -> Response:
    show, now_us = asking.agent_after_change, deps.clock.now_us()
    return json_response(await attach.attach_folder(deps.database, agent_id, folder_id, now_us, show=show))


@router.patch("/folders/detach/{folder_id}", responses={200: {"model": AgentState | None}}, response_model=None)
async def detach_folder(deps: Deps, asking: Asking, agent_id: AgentId, folder_id: FolderId) -> Response:
    show, now_us = asking.agent_after_change, deps.clock.now_us()
    return json_response(await attach.detach_folder(deps.database, agent_id, folder_id, now_us, show=show))


@router.patch("/sources/attach/{folder_id}", responses={200: {"model": AgentState}}, response_model=None)
async def attach_source(deps: Deps, agent_id: AgentId, folder_id: FolderId) -> Response:
    """The retired spelling answers with the agent, whoever asks."""
    now_us = deps.clock.now_us()
    return json_response(await attach.attach_folder(deps.database, agent_id, folder_id, now_us, show=True))


@router.patch("/sources/detach/{folder_id}", responses={200: {"model": AgentState}}, response_model=None)
async def detach_source(deps: Deps, agent_id: AgentId, folder_id: FolderId) -> Response:
    now_us = deps.clock.now_us()
    return json_response(await attach.detach_folder(deps.database, agent_id, folder_id, now_us, show=True))


@router.get("/files", responses={200: {"model": AgentFilesPage}}, response_model=None)
async def list_files(
    deps: Deps,
    agent_id: AgentId,
    before: Before = None,
    after: After = None,
    cursor: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    is_open: bool | None = None,
) -> Response:
    """`cursor` is the retired name of `after`."""
    page = Page(limit=limit, before=before, after=after or cursor, order=order)
    return json_response(await attached_files.list_files(deps.database, agent_id, page, is_open))


@router.patch("/files", responses={200: {"model": AgentFilesPage}}, response_model=None)
async def list_files_as_patch(deps: Deps, agent_id: AgentId, limit: Limit = 100) -> Response:
    """How the last client of 0.x asks for the list."""
    return json_response(await attached_files.list_files(deps.database, agent_id, Page(limit=limit), None))


@router.patch("/files/close-all", responses={200: {"model": list[str]}}, response_model=None)
async def close_all_files(deps: Deps, agent_id: AgentId) -> Response:
    return json_response(await attached_files.close_all(deps.database, agent_id))


@router.patch("/files/{file_id}/open", responses={200: {"model": list[str]}}, response_model=None)
async def open_file(deps: Deps, agent_id: AgentId, file_id: FileId) -> Response:
    return json_response(await attached_files.open_file(deps.database, agent_id, file_id, deps.clock.now_us()))


@router.patch("/files/{file_id}/close", responses={200: {"model": dict[str, str]}}, response_model=None)
async def close_file(deps: Deps, agent_id: AgentId, file_id: FileId) -> Response:
    name = await attached_files.close_file(deps.database, agent_id, file_id)
    return json_response({"message": f"File {name} successfully closed"})

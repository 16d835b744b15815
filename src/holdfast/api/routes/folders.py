"""Folders and their files. `/v1/sources` is the retired name of the same, and differs in what its lists give by
default: all there is."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query, Request
from starlette.responses import Response

from holdfast.actions.folders import records
from holdfast.actions.folders.upload import Upload
from holdfast.actions.queries import Page
from holdfast.api.deps import Deps
from holdfast.api.form import read_file
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.params import MAX_LIMIT, After, Before, FileId, FolderId, Limit, Order, OrderBy
from holdfast.wire.archives import PassageView
from holdfast.wire.bounds import MAX_NAME
from holdfast.wire.folders import (
    AllStats,
    DuplicateHandling,
    FileView,
    FolderCreate,
    FolderUpdate,
    FolderView,
    SourceView,
    UploadBody,
    folder_view,
    source_view,
)

router = LazyRouter(prefix="/v1/folders", tags=["folders"])
sources_router = LazyRouter(prefix="/v1/sources", tags=["sources"])
_FORM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": UploadBody.model_json_schema()}},
    }
}


def _both(method: str, path: str, model: object = None, **options: Any) -> Any:
    """An operation under both names."""

    def register(endpoint: Any) -> Any:
        for each in (router, sources_router):
            given = {} if model is None else {"responses": {200: {"model": model}}}
            each.add_api_route(path, endpoint, methods=[method], response_model=None, **given, **options)
        return endpoint

    return register


@router.get("/", responses={200: {"model": list[FolderView]}}, response_model=None)
async def list_folders(
    deps: Deps,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
    name: str | None = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([folder_view(folder) for folder in await records.list_folders(deps.database, page, name)])


@sources_router.get("/", responses={200: {"model": list[SourceView]}}, response_model=None)
async def list_sources(deps: Deps, limit: Limit = MAX_LIMIT, after: After = None) -> Response:
    page = Page(limit=limit, after=after, order="asc")
    return json_response([source_view(folder) for folder in await records.list_folders(deps.database, page)])


@_both("POST", "/", SourceView)
async def create_folder(deps: Deps, request: FolderCreate) -> Response:
    default, now_us = deps.settings.default_embedding, deps.clock.now_us()
    folder = await records.create_folder(deps.database, deps.catalog, default, request, now_us)
    return json_response(source_view(folder))


@_both("GET", "/count", int)
async def count_folders(deps: Deps) -> Response:
    return json_response(await records.count_folders(deps.database))


@_both("GET", "/metadata", AllStats)
async def folder_stats(deps: Deps, include_detailed_per_source_metadata: bool = False) -> Response:
    return json_response(await records.folder_stats(deps.database, detailed=include_detailed_per_source_metadata))


@_both("GET", "/name/{folder_name}", str)
async def find_folder(deps: Deps, folder_name: str) -> Response:
    return json_response(await records.find_folder(deps.database, folder_name))


@_both("GET", "/{folder_id}", SourceView)
async def retrieve_folder(deps: Deps, folder_id: FolderId) -> Response:
    return json_response(source_view(await records.read_folder(deps.database, folder_id)))


@_both("PATCH", "/{folder_id}", SourceView)
async def update_folder(deps: Deps, folder_id: FolderId, request: FolderUpdate) -> Response:
    changed = await records.update_folder(deps.database, folder_id, request, deps.clock.now_us())
    return json_response(source_view(changed))


@_both("DELETE", "/{folder_id}", dict[str, Any])
async def delete_folder(deps: Deps, folder_id: FolderId) -> Response:
    await records.delete_folder(deps.database, deps.archival, folder_id, deps.clock.now_us())
    return json_response({"message": f"Folder id={folder_id} successfully deleted"})


@_both("POST", "/{folder_id}/upload", FileView, openapi_extra=_FORM)
async def upload_file(
    deps: Deps,
    request: Request,
    folder_id: FolderId,
    duplicate_handling: DuplicateHandling = "suffix",
    name: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
) -> Response:
    """Answers once the file is stored. It is read afterwards: `processing_status` tells how far that has come."""
    file = await read_file(request.headers.get("content-type", ""), request.stream())
    upload = Upload(name=file.name, content_type=file.content_type, content=file.content)
    uploaded = await deps.upload(folder_id, upload, duplicate_handling, name)
    return json_response(uploaded.view, headers={"x-upload-result": "skipped"} if uploaded.skipped else None)


@_both("GET", "/{folder_id}/files", list[FileView])
async def list_files(
    deps: Deps,
    folder_id: FolderId,
    before: Before = None,
    after: After = None,
    limit: Limit = MAX_LIMIT,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    include_content: bool = False,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await records.list_files(deps.database, folder_id, page, include_content=include_content))


@_both("GET", "/{folder_id}/files/{file_id}", FileView)
async def retrieve_file(deps: Deps, folder_id: FolderId, file_id: FileId, include_content: bool = False) -> Response:
    return json_response(await records.read_file(deps.database, folder_id, file_id, include_content=include_content))


@_both("DELETE", "/{folder_id}/{file_id}", status_code=204)
async def delete_file(deps: Deps, folder_id: FolderId, file_id: FileId) -> Response:
    await records.delete_file(deps.database, deps.archival, folder_id, file_id, deps.clock.now_us())
    return Response(status_code=204)


@_both("GET", "/{folder_id}/passages", list[PassageView])
async def list_passages(
    deps: Deps,
    folder_id: FolderId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await records.list_passages(deps.database, folder_id, page))


@router.get("/{folder_id}/agents", responses={200: {"model": list[str]}}, response_model=None)
async def list_agents_of_folder(
    deps: Deps,
    folder_id: FolderId,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await records.list_agents(deps.database, folder_id, page))


@sources_router.get("/{folder_id}/agents", responses={200: {"model": list[str]}}, response_model=None)
async def list_agents_of_source(deps: Deps, folder_id: FolderId, limit: Limit = MAX_LIMIT) -> Response:
    return json_response(await records.list_agents(deps.database, folder_id, Page(limit=limit)))

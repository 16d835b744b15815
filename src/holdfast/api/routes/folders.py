"""Folders and their files. `/v1/sources` is the retired name of the same, and differs in what its lists give by
default: all there is.

A file that is uploaded is handed on while it comes in: neither memory nor disk holds it here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from email.message import Message as Header
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query, Request
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from starlette.responses import Response

from holdfast.actions.folders import records
from holdfast.actions.folders.upload import Upload
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import MAX_LIMIT, After, Before, Deps, FileId, FolderId, Limit, Order, OrderBy
from holdfast.errors import Unprocessable
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
_LONGEST_HEADERS: Final = 16 * 1024  # of one part, in bytes
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


class FormFile(msgspec.Struct, frozen=True):
    name: str
    content_type: str | None
    content: AsyncIterator[bytes]


async def read_file(content_type: str, body: AsyncIterator[bytes], field: str = "file") -> FormFile:
    """Returns as soon as the file begins; its content is then to be read. Unprocessable when there is none."""
    parts = _Parts(content_type)
    events = parts.read(body)
    async for event in events:
        if isinstance(event, Header):
            disposition = dict(event.get_params([], "content-disposition"))
            if disposition.get("name") == field and (name := event.get_filename()) is not None:
                return FormFile(name, event.get("content-type"), _content(events))
    raise Unprocessable(f"The form holds no file: send one as the field {field!r}, with its name.")


async def _content(events: AsyncIterator[Header | bytes | None]) -> AsyncIterator[bytes]:
    async for event in events:
        if not isinstance(event, bytes):
            return
        yield event
    raise Unprocessable("The form ends in the middle of the file: send it again.")


class _Parts:
    """What the parser finds: the headers of a part, pieces of its content, and None at its end."""

    def __init__(self, content_type: str) -> None:
        kind = Header()
        kind["content-type"] = content_type
        boundary = kind.get_param("boundary")
        if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
            raise Unprocessable("Send the file as multipart/form-data, with a boundary: a form with the field 'file'.")
        self._found: deque[Header | bytes | None] = deque()
        self._headers, self._length = Header(), 0
        self._name, self._value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary.encode("latin-1", "replace"),
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._header(self._name, data[start:end]),
                "on_header_value": lambda data, start, end: self._header(self._value, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": lambda: self._found.append(self._headers),
                "on_part_data": lambda data, start, end: self._found.append(bytes(data[start:end])),
                "on_part_end": lambda: self._found.append(None),
            },
        )

    async def read(self, body: AsyncIterator[bytes]) -> AsyncGenerator[Header | bytes | None]:
        async for piece in body:
            try:
                self._parser.write(piece)
            except MultipartParseError as error:
                raise Unprocessable(f"The form cannot be read: {error}") from error
            while self._found:
                yield self._found.popleft()

    def _begin(self) -> None:
        self._headers, self._length = Header(), 0

    def _header(self, part: bytearray, piece: bytes) -> None:
        self._length += len(piece)
        if self._length > _LONGEST_HEADERS:
            raise Unprocessable("The headers of the form are too long.")
        part += piece

    def _header_end(self) -> None:
        name, value = self._name.decode("latin-1"), self._value.decode("utf-8", "replace")
        self._headers[name] = value.replace("\r", " ").replace("\n", " ")
        self._name.clear()
        self._value.clear()

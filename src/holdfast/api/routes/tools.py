"""Tools: write them, find them, try them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query
from starlette.responses import Response

from holdfast.actions.queries import Page, ToolFilter
from holdfast.actions.tools import read, write
from holdfast.actions.tools.base_tools import restore_base_tools
from holdfast.actions.tools.run import run_source
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Deps, Limit, Order, OrderBy, SearchQuery, ToolId
from holdfast.errors import Invalid
from holdfast.wire.tools import (
    SHIPPED_TYPES,
    TOOL_TYPES,
    CodeInput,
    ToolCreate,
    ToolRunFromSource,
    ToolRunResponse,
    ToolSearchRequest,
    ToolSearchResult,
    ToolUpdate,
    ToolView,
    search_view,
    tool_view,
)

router = LazyRouter(prefix="/v1/tools", tags=["tools"])

Texts = Annotated[list[str] | None, Query()]
ProjectId = Annotated[str | None, Header(alias="X-Project-Id")]


@router.get("/", responses={200: {"model": list[ToolView]}}, response_model=None)
async def list_tools(
    deps: Deps,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    name: str | None = None,
    names: Texts = None,
    tool_ids: Texts = None,
    search: SearchQuery = None,
    tool_types: Texts = None,
    exclude_tool_types: Texts = None,
    return_only_letta_tools: bool | None = False,
) -> Response:
    filters = _filters(name, names, tool_ids, search, tool_types, exclude_tool_types, return_only_letta_tools, False)
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await read.list_tools(deps.database, filters, page)
    return json_response([tool_view(tool) for tool in found])


@router.get("/count", response_model=int)
async def count_tools(
    deps: Deps,
    name: str | None = None,
    names: Texts = None,
    tool_ids: Texts = None,
    search: SearchQuery = None,
    tool_types: Texts = None,
    exclude_tool_types: Texts = None,
    return_only_letta_tools: bool | None = False,
    exclude_letta_tools: bool | None = False,
) -> Response:
    filters = _filters(
        name, names, tool_ids, search, tool_types, exclude_tool_types, return_only_letta_tools, exclude_letta_tools
    )
    return json_response(await read.count_tools(deps.database, filters))


@router.post("/", responses={200: {"model": ToolView}}, response_model=None)
async def create_tool(deps: Deps, request: ToolCreate, project_id: ProjectId = None) -> Response:
    return await _upsert(deps, request, project_id)


@router.put("/", responses={200: {"model": ToolView}}, response_model=None)
async def replace_tool(deps: Deps, request: ToolCreate, project_id: ProjectId = None) -> Response:
    return await _upsert(deps, request, project_id)


@router.post("/add-base-tools", responses={200: {"model": list[ToolView]}}, response_model=None)
async def add_base_tools(deps: Deps) -> Response:
    restored = await restore_base_tools(deps.database, deps.clock.now_us())
    return json_response([tool_view(tool) for tool in restored])


@router.post("/generate-schema", responses={200: {"model": dict[str, Any]}}, response_model=None)
async def generate_schema(deps: Deps, request: CodeInput) -> Response:
    return json_response(write.schema_of(request.code, request.source_type or "python", None, None))


@router.post("/run", responses={200: {"model": ToolRunResponse}}, response_model=None)
async def run_from_source(deps: Deps, request: ToolRunFromSource) -> Response:
    return json_response(
        await run_source(request, sandbox=deps.sandbox, clock=deps.clock, timeout_s=deps.settings.tool_timeout_s)
    )


@router.post("/search", responses={200: {"model": list[ToolSearchResult]}}, response_model=None)
async def find_tools(deps: Deps, request: ToolSearchRequest) -> Response:
    """By words only: tools with more of them come first, and those whose names hold them before the others."""
    types = _types(request.tool_types)
    found = await read.search_tools(deps.database, types, request.query, request.tags or ())
    return json_response([search_view(tool, rank) for rank, tool in enumerate(found[: request.limit], start=1)])


@router.get("/{tool_id}", responses={200: {"model": ToolView}}, response_model=None)
async def retrieve_tool(deps: Deps, tool_id: ToolId) -> Response:
    return json_response(tool_view(await read.read_tool(deps.database, tool_id)))


@router.patch("/{tool_id}", responses={200: {"model": ToolView}}, response_model=None)
async def update_tool(deps: Deps, tool_id: ToolId, request: ToolUpdate) -> Response:
    tool = await write.update_tool(deps.database, tool_id, request, deps.clock.now_us())
    return json_response(tool_view(tool))


@router.delete("/{tool_id}", response_model=None)
async def delete_tool(deps: Deps, tool_id: ToolId) -> Response:
    await write.delete_tool(deps.database, tool_id)
    return json_response(None)


async def _upsert(deps: Deps, request: ToolCreate, project_id: str | None) -> Response:
    tool = await write.upsert_tool(deps.database, request, project_id, deps.clock.now_us())
    return json_response(tool_view(tool))


def _filters(
    name: str | None,
    names: list[str] | None,
    tool_ids: list[str] | None,
    search: str | None,
    tool_types: list[str] | None,
    exclude_tool_types: list[str] | None,
    only_shipped: bool | None,
    without_shipped: bool | None,
) -> ToolFilter:
    types = _types(tool_types)
    if only_shipped:
        types = tuple(SHIPPED_TYPES.intersection(types) if types is not None else SHIPPED_TYPES)
    excluded = _types(exclude_tool_types) or ()
    return ToolFilter(
        name=name,
        names=tuple(names) if names else None,
        tool_ids=tuple(tool_ids) if tool_ids else None,
        search=search,
        types=types,
        exclude_types=(*excluded, *SHIPPED_TYPES) if without_shipped else excluded,
    )


def _types(sent: list[str] | None) -> tuple[str, ...] | None:
    """Repeated, or separated by commas."""
    if not sent:
        return None
    names = [name.strip() for entry in sent for name in entry.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TOOL_TYPES]:
        raise Invalid(f"Unknown tool types: {', '.join(unknown)}. Known are: {', '.join(sorted(TOOL_TYPES))}.")
    return tuple(names)

"""Archives, their passages, and the search over all of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query
from starlette.responses import Response

from holdfast.actions import archives as actions
from holdfast.actions.agents import read as agents
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, ArchiveId, Before, Deps, Limit, Opener, Order, OrderBy, PassageId
from holdfast.wire.agents import AgentState, Include, included
from holdfast.wire.archives import (
    ArchiveCreate,
    ArchiveUpdate,
    ArchiveView,
    FoundPassage,
    PassageBatchCreate,
    PassageCreate,
    PassageSearch,
    PassageView,
    StorageUnit,
    archive_view,
)

router = LazyRouter(prefix="/v1/archives", tags=["archives"])
embeddings_router = LazyRouter(prefix="/v1/embeddings", tags=["embeddings"])
passages_router = LazyRouter(prefix="/v1/passages", tags=["passages"])


@router.get("/", responses={200: {"model": list[ArchiveView]}}, response_model=None)
async def list_archives(
    deps: Deps,
    name: str | None = None,
    agent_id: str | None = None,
    limit: Limit = 50,
    before: Before = None,
    after: After = None,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_archives(deps.database, page, name, agent_id)
    return json_response([archive_view(archive) for archive in found])


@router.post("/", responses={200: {"model": ArchiveView}}, response_model=None)
async def create_archive(deps: Deps, request: ArchiveCreate) -> Response:
    default = deps.settings.default_embedding
    archive = await actions.create_archive(deps.database, deps.catalog, default, request, deps.clock.now_us())
    return json_response(archive_view(archive))


@router.get("/{archive_id}", responses={200: {"model": ArchiveView}}, response_model=None)
async def retrieve_archive(deps: Deps, archive_id: ArchiveId) -> Response:
    return json_response(archive_view(await actions.read_archive(deps.database, archive_id)))


@router.patch("/{archive_id}", responses={200: {"model": ArchiveView}}, response_model=None)
async def update_archive(deps: Deps, archive_id: ArchiveId, request: ArchiveUpdate) -> Response:
    changed = await actions.update_archive(deps.database, archive_id, request, deps.clock.now_us())
    return json_response(archive_view(changed))


@router.delete("/{archive_id}", status_code=204, response_model=None)
async def delete_archive(deps: Deps, archive_id: ArchiveId) -> Response:
    await actions.delete_archive(deps.database, deps.archival, archive_id, deps.clock.now_us())
    return Response(status_code=204)


@router.get("/{archive_id}/agents", responses={200: {"model": list[AgentState]}}, response_model=None)
async def list_agents_of_archive(
    deps: Deps,
    opener: Opener,
    archive_id: ArchiveId,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    include: Annotated[list[Include], Query()] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    relations = included(include, None)
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response(await agents.list_agents_of_archive(deps.database, archive_id, page, relations, opener))


@router.post("/{archive_id}/passages", responses={200: {"model": PassageView}}, response_model=None)
async def create_passage(deps: Deps, archive_id: ArchiveId, request: PassageCreate) -> Response:
    [added] = await actions.add_passages(deps.archival, archive_id, [request])
    return json_response(added)


@router.post("/{archive_id}/passages/batch", responses={200: {"model": list[PassageView]}}, response_model=None)
async def create_passages(deps: Deps, archive_id: ArchiveId, request: PassageBatchCreate) -> Response:
    return json_response(await actions.add_passages(deps.archival, archive_id, request.passages))


@router.delete("/{archive_id}/passages/{passage_id}", status_code=204, response_model=None)
async def delete_passage(deps: Deps, archive_id: ArchiveId, passage_id: PassageId) -> Response:
    await actions.delete_passage(deps.database, deps.archival, archive_id, passage_id)
    return Response(status_code=204)


@passages_router.post("/search", responses={200: {"model": list[FoundPassage]}}, response_model=None)
async def search_passages(deps: Deps, request: PassageSearch) -> Response:
    return json_response(await actions.search_passages(deps.database, deps.archival, request))


@embeddings_router.get("/total_storage_size", responses={200: {"model": float}}, response_model=None)
async def total_storage_size(
    deps: Deps,
    storage_unit: Annotated[StorageUnit, Header(alias="storage_unit", description="A KB has 1,024 bytes.")] = "GB",
) -> Response:
    """Of all vectors that archives and folders have."""
    return json_response(await actions.size_of_vectors(deps.database, storage_unit))

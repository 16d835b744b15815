"""Jobs: runs under their old name, for programs that look for their background messages there."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.queries import Page, RunFilter
from holdfast.actions.runs import records
from holdfast.api.deps import Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.json import json_response
from holdfast.api.params import After, Before, JobId, Limit, Order, OrderBy
from holdfast.wire.jobs import JobView, job_view

router = LazyRouter(prefix="/v1/jobs", tags=["jobs"])

SourceId = Annotated[str | None, Query(description="Runs belong to no folder: with one, the list is empty.")]


@router.get("/", responses={200: {"model": list[JobView]}}, response_model=None)
async def list_jobs(
    deps: Deps,
    source_id: SourceId = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    active: bool = False,
    ascending: Annotated[bool, Query(deprecated=True)] = True,
) -> Response:
    if source_id:
        return json_response([])
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await records.list_runs(deps.database, RunFilter(active=active), None, page, "created_at")
    return json_response([job_view(run) for run in found])


@router.get("/active", deprecated=True, responses={200: {"model": list[JobView]}}, response_model=None)
async def list_active_jobs(
    deps: Deps,
    source_id: SourceId = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    ascending: bool = True,
) -> Response:
    if source_id:
        return json_response([])
    page = Page(limit=limit, before=before, after=after, order="asc" if ascending else "desc")
    found = await records.list_runs(deps.database, RunFilter(active=True), None, page, "created_at")
    return json_response([job_view(run) for run in found])


@router.get("/{job_id}", responses={200: {"model": JobView}}, response_model=None)
async def retrieve_job(deps: Deps, job_id: JobId) -> Response:
    return json_response(job_view(await records.read_run(deps.database, job_id)))


@router.delete("/{job_id}", responses={200: {"model": JobView}}, response_model=None)
async def delete_job(deps: Deps, job_id: JobId) -> Response:
    return json_response(job_view(await records.delete_run(deps.database, job_id, deps.clock)))


@router.patch("/{job_id}/cancel", responses={200: {"model": JobView}}, response_model=None)
async def cancel_job(deps: Deps, job_id: JobId) -> Response:
    """A job that has ended stays as it is."""
    return json_response(job_view(await deps.cancel.by_id(job_id)))

"""Runs: what was asked of agents, how it went, and what they are doing now.

Jobs are runs under their old name, for programs that look for their background messages there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from holdfast.actions.messages.read import list_messages_of_run
from holdfast.actions.queries import Page, RunFilter
from holdfast.actions.runs import records
from holdfast.actions.threads.find import thread_of
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Count, Deps, JobId, Limit, Order, OrderBy, RunId
from holdfast.api.routes.messages import resumed_stream
from holdfast.core.records import StopReason
from holdfast.core.spec import speaking_in
from holdfast.wire.messages import WireMessage, filter_types, to_wire
from holdfast.wire.requests import RetrieveStreamRequest
from holdfast.wire.run_explanation import Why, why_view
from holdfast.wire.runs import JobView, RunMetricsView, RunUsageView, RunView, job_view, run_view
from holdfast.wire.steps import ProviderTraceView, StepView, provider_trace_view, step_view
from holdfast.wire.times import optional_microseconds

router = LazyRouter(prefix="/v1/runs", tags=["runs"])
jobs_router = LazyRouter(prefix="/v1/jobs", tags=["jobs"])

SourceId = Annotated[str | None, Query(description="Runs belong to no folder: with one, the list is empty.")]


class Measured:
    """Query parameters about what is measured of a run. Durations are in nanoseconds."""

    def __init__(
        self,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
        step_count: Count | None = None,
        step_count_operator: Literal["eq", "gte", "lte"] = "eq",
        tools_used: Annotated[
            list[str] | None, Query(description="Ids of tools; runs that called any of them.")
        ] = None,
        duration_ns: Count | None = None,
        duration_operator: Literal["gt", "lt", "eq"] = "gt",
        duration_percentile: Annotated[int | None, Query(ge=0, le=100)] = None,
    ) -> None:
        self.start_date = start_date
        self.end_date = end_date
        self.step_count = step_count
        self.step_count_operator: Literal["eq", "gte", "lte"] = step_count_operator
        self.tools_used = tools_used
        self.duration_ns = duration_ns
        self.duration_operator: Literal["gt", "lt", "eq"] = duration_operator
        self.duration_percentile = duration_percentile


@router.get("/", responses={200: {"model": list[RunView]}}, response_model=None)
async def list_runs(
    deps: Deps,
    measured: Annotated[Measured, Depends()],
    agent_id: str | None = None,
    agent_ids: Annotated[list[str] | None, Query(deprecated=True)] = None,
    statuses: Annotated[list[str] | None, Query()] = None,
    background: bool | None = None,
    stop_reason: StopReason | None = None,
    conversation_id: str | None = None,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: Annotated[Literal["created_at", "duration"], Query()] = "created_at",
    active: bool = False,
    ascending: Annotated[bool, Query(deprecated=True)] = False,
) -> Response:
    filters = RunFilter(
        agent_ids=(agent_id,) if agent_id else tuple(agent_ids) if agent_ids else None,
        thread_id=thread_of(conversation_id, agent_id) if conversation_id else None,
        statuses=tuple(statuses) if statuses else None,
        active=active,
        background=background,
        stop_reason=stop_reason,
        start_us=optional_microseconds(measured.start_date),
        end_us=optional_microseconds(measured.end_date),
        step_count=measured.step_count,
        step_count_is=measured.step_count_operator,
        duration_ns=measured.duration_ns,
        duration_is=measured.duration_operator,
        duration_percentile=measured.duration_percentile,
    )
    page = Page(limit=limit, before=before, after=after, order="asc" if ascending else order)
    found = await records.list_runs(deps.database, filters, measured.tools_used, page, order_by)
    return json_response([run_view(run) for run in found])


@router.get("/active", deprecated=True, responses={200: {"model": list[RunView]}}, response_model=None)
async def list_active(deps: Deps, agent_id: str | None = None, background: bool | None = None) -> Response:
    found = await records.list_active_runs(deps.database, agent_id, background)
    return json_response([run_view(run) for run in found])


@router.get("/{run_id}", responses={200: {"model": RunView}}, response_model=None)
async def retrieve(deps: Deps, run_id: RunId) -> Response:
    return json_response(run_view(await records.read_run(deps.database, run_id)))


@router.delete("/{run_id}", response_model=None)
async def delete(deps: Deps, run_id: RunId) -> Response:
    await records.delete_run(deps.database, run_id, deps.clock)
    return json_response(None)


@router.get("/{run_id}/messages", response_model=None)
async def list_messages(
    deps: Deps,
    run_id: RunId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
) -> Response:
    """Its input included; only the types that its request wanted to see."""
    page = Page(limit=limit, before=before, after=after, order=order)
    run, rows = await list_messages_of_run(deps.database, run_id, page)
    shown: list[WireMessage] = []
    speaking = speaking_in(run.request_config)
    for row in rows:
        wire = to_wire(row, speaking=speaking)
        shown.extend(wire if order == "asc" else reversed(wire))
    return json_response(filter_types(shown, run.request_config.get("include_return_message_types")))


@router.get("/{run_id}/usage", responses={200: {"model": RunUsageView}}, response_model=None)
async def usage(deps: Deps, run_id: RunId) -> Response:
    return json_response(await records.read_usage(deps.database, run_id))


@router.get("/{run_id}/metrics", responses={200: {"model": RunMetricsView}}, response_model=None)
async def metrics(deps: Deps, run_id: RunId) -> Response:
    return json_response(await records.read_metrics(deps.database, run_id))


@router.get("/{run_id}/steps", responses={200: {"model": list[StepView]}}, response_model=None)
async def list_steps(
    deps: Deps,
    run_id: RunId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    return json_response([step_view(step) for step in await records.list_steps_of_run(deps.database, run_id, page)])


@router.get("/{run_id}/trace", responses={200: {"model": list[ProviderTraceView]}}, response_model=None)
async def trace(deps: Deps, run_id: RunId, limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000) -> Response:
    """What was kept of the run's model calls, in their order; nothing unless tracing is on."""
    found = await records.list_traces_of_run(deps.database, run_id, limit)
    return json_response([provider_trace_view(trace) for trace in found])


@router.post("/{run_id}/stream", response_model=None)
async def stream(deps: Deps, run_id: RunId, request: RetrieveStreamRequest | None = None) -> Response:
    run = await records.read_begun_run(deps.database, run_id)
    return await resumed_stream(deps, run, request or RetrieveStreamRequest())


@router.get("/{run_id}/why", responses={200: {"model": Why}}, response_model=None)
async def why(deps: Deps, run_id: RunId) -> Response:
    """What the run does or waits for, since when, and who can move it on; or how it ended."""
    return json_response(why_view(await records.explain_run(deps.database, run_id, deps.clock.now_us())))


@jobs_router.get("/", responses={200: {"model": list[JobView]}}, response_model=None)
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


@jobs_router.get("/active", deprecated=True, responses={200: {"model": list[JobView]}}, response_model=None)
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


@jobs_router.get("/{job_id}", responses={200: {"model": JobView}}, response_model=None)
async def retrieve_job(deps: Deps, job_id: JobId) -> Response:
    return json_response(job_view(await records.read_run(deps.database, job_id)))


@jobs_router.delete("/{job_id}", responses={200: {"model": JobView}}, response_model=None)
async def delete_job(deps: Deps, job_id: JobId) -> Response:
    return json_response(job_view(await records.delete_run(deps.database, job_id, deps.clock)))


@jobs_router.patch("/{job_id}/cancel", responses={200: {"model": JobView}}, response_model=None)
async def cancel_job(deps: Deps, job_id: JobId) -> Response:
    """A job that has ended stays as it is."""
    return json_response(job_view(await deps.cancel.by_id(job_id)))

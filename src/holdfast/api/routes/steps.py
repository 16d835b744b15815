"""Steps: each model call of a run, what it cost, and what people thought of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query
from starlette.responses import Response

from holdfast.actions import steps as actions
from holdfast.actions.messages.read import list_messages_of_step
from holdfast.actions.queries import Page, StepFilter
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Deps, Limit, Order, OrderBy, StepId
from holdfast.core.spec import Speaking
from holdfast.wire.messages import messages_view
from holdfast.wire.steps import (
    ProviderTraceView,
    StepFeedback,
    StepMetricsView,
    StepView,
    provider_trace_view,
    step_metrics_view,
    step_view,
)
from holdfast.wire.times import optional_microseconds

router = LazyRouter(prefix="/v1/steps", tags=["steps"])
telemetry_router = LazyRouter(prefix="/v1/telemetry", tags=["telemetry"])


@router.get("/", responses={200: {"model": list[StepView]}}, response_model=None)
async def list_steps(
    deps: Deps,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    start_date: datetime | None = None,
    end_date: datetime | None = None,
    model: str | None = None,
    agent_id: str | None = None,
    trace_ids: Annotated[list[str] | None, Query()] = None,
    feedback: Literal["positive", "negative"] | None = None,
    has_feedback: bool | None = None,
    tags: Annotated[list[str] | None, Query()] = None,
    project_id: str | None = None,
) -> Response:
    filters = StepFilter(
        agent_id=agent_id,
        model=model,
        trace_ids=tuple(trace_ids) if trace_ids else None,
        feedback=feedback,
        has_feedback=has_feedback,
        start_us=optional_microseconds(start_date),
        end_us=optional_microseconds(end_date),
    )
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_steps(deps.database, filters, page)
    return json_response([step_view(step) for step in found])


@router.get("/{step_id}", responses={200: {"model": StepView}}, response_model=None)
async def retrieve(deps: Deps, step_id: StepId) -> Response:
    return json_response(step_view(await actions.read_step(deps.database, step_id)))


@router.get("/{step_id}/metrics", responses={200: {"model": StepMetricsView}}, response_model=None)
async def metrics(deps: Deps, step_id: StepId) -> Response:
    return json_response(step_metrics_view(await actions.read_step(deps.database, step_id)))


@router.get("/{step_id}/trace", responses={200: {"model": ProviderTraceView | None}}, response_model=None)
async def trace(deps: Deps, step_id: StepId) -> Response:
    """Null when nothing was kept: tracing is off by default, and a trace is kept for a while only."""
    found = await actions.find_trace(deps.database, step_id)
    return json_response(None if found is None else provider_trace_view(found))


@router.get("/{step_id}/messages", response_model=None)
async def list_messages(
    deps: Deps,
    step_id: StepId,
    before: Before = None,
    after: After = None,
    limit: Limit = 100,
    order: Order = "asc",
    order_by: OrderBy = "created_at",
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    rows = await list_messages_of_step(deps.database, step_id, page)
    return json_response(messages_view(rows, Speaking()))


@router.patch("/{step_id}/feedback", responses={200: {"model": StepView}}, response_model=None)
async def give_feedback(deps: Deps, step_id: StepId, request: StepFeedback) -> Response:
    tags = None if request.tags is None else tuple(request.tags)
    step = await actions.give_feedback(deps.database, step_id, request.feedback, tags)
    return json_response(step_view(step))


# The old address of a trace.
@telemetry_router.get(
    "/{step_id}",
    deprecated=True,
    name="retrieve",
    responses={200: {"model": ProviderTraceView | None}},
    response_model=None,
)
async def retrieve_trace(deps: Deps, step_id: StepId) -> Response:
    """As GET /v1/steps/{step_id}/trace."""
    return await trace(deps, step_id)

"""The old address of a step's trace."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.ids import StepId
from holdfast.api.json import json_response
from holdfast.api.routing import LazyRouter
from holdfast.store import traces
from holdfast.wire.traces import ProviderTraceView, provider_trace_view

router = LazyRouter(prefix="/v1/telemetry", tags=["telemetry"])


@router.get("/{step_id}", deprecated=True, responses={200: {"model": ProviderTraceView | None}}, response_model=None)
async def retrieve(deps: Deps, step_id: StepId) -> Response:
    """As GET /v1/steps/{step_id}/trace."""
    found = await deps.database.read(lambda tx: traces.find(tx, step_id))
    return json_response(None if found is None else provider_trace_view(found))

"""Is the server up, and can it serve? Both are open without a key, so they say nothing else."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.json import json_response
from holdfast.api.routing import LazyRouter
from holdfast.version import VERSION

router = LazyRouter(tags=["health"])

_HEALTHY = {"version": VERSION, "status": "ok"}
_DRAINING = {"version": VERSION, "status": "draining"}


@router.get("/v1/health/")
async def check_health() -> Response:
    return json_response(_HEALTHY)


@router.get("/v1/ready/")
async def check_readiness(deps: Deps) -> Response:
    """Unlike health it fails when the database does not answer or the server is stopping."""
    if deps.worker.draining:
        return json_response(_DRAINING, 503)
    await deps.database.now_us()
    return json_response(_HEALTHY)

"""Is the server up, can it serve, and figures for a monitor that speaks Prometheus.

The first two are open without a key, so they say little else.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from starlette.responses import Response

from holdfast.actions.monitoring import check_database
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.errors import DatabaseError, NotFound
from holdfast.version import API_VERSION, VERSION
from holdfast.wire.prometheus import CONTENT_TYPE

router = LazyRouter(tags=["health"])
metrics_router = LazyRouter(include_in_schema=False)

_log = logging.getLogger(__name__)
_ANSWER_WITHIN_S: Final = 0.8  # whoever asks gives up after a second
_VERSIONS = {"version": API_VERSION, "holdfast_version": VERSION}
_HEALTHY = {**_VERSIONS, "status": "ok"}
_DRAINING = {**_VERSIONS, "status": "draining"}
METRICS_PATH: Final = "/metrics"


@router.get("/v1/health/")
async def check_health() -> Response:
    return json_response(_HEALTHY)


@router.get("/v1/ready/")
async def check_readiness(deps: Deps) -> Response:
    """Unlike health it fails when the database cannot be read or written, or the server is stopping. The answer names a
    clock that is far off the database's, which does no harm to runs."""
    if deps.worker.leaving:
        return json_response(_DRAINING, 503)
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            skew_s = await check_database(deps.database, deps.clock)
    except TimeoutError:
        return _unready(f"The database did not answer within {_ANSWER_WITHIN_S:g} s.")
    except DatabaseError as error:
        return _unready("The database cannot be read or written now. The log of the server says why.", error.message)
    return json_response(_HEALTHY if skew_s is None else _HEALTHY | {"clock_skew_s": round(skew_s, 1)})


def _unready(detail: str, why: str | None = None) -> Response:
    """`why` may name the database's host or user, so only the log has it."""
    _log.warning("not ready: %s", why or detail)
    return json_response({**_VERSIONS, "status": "unavailable", "detail": detail}, 503)


@metrics_router.get(METRICS_PATH)
async def read_metrics(deps: Deps) -> Response:
    if deps.settings.metrics == "off":
        raise NotFound("Metrics are switched off: HOLDFAST_METRICS=off.")
    return Response(await deps.metrics.text(), headers={"content-type": CONTENT_TYPE})

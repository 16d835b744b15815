"""Figures for a monitor that speaks Prometheus."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.framework.routing import LazyRouter
from holdfast.errors import NotFound
from holdfast.wire.exposition import CONTENT_TYPE

PATH: Final = "/metrics"
router = LazyRouter(include_in_schema=False)


@router.get(PATH)
async def read_metrics(deps: Deps) -> Response:
    if deps.settings.metrics == "off":
        raise NotFound("Metrics are switched off: HOLDFAST_METRICS=off.")
    return Response(await deps.metrics.text(), headers={"content-type": CONTENT_TYPE})

"""What the server has been doing, in figures: for dashboards, and for whoever looks after it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions.monitoring import read_statistics
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.wire.statistics import StatisticsView, statistics_view
from holdfast.wire.times import optional_microseconds

router = LazyRouter(prefix="/v1/statistics", tags=["statistics"])


@router.get("/", responses={200: {"model": StatisticsView}}, response_model=None)
async def read(
    deps: Deps,
    since: Annotated[datetime | None, Query(description="A day before `until`, if it is not given.")] = None,
    until: Annotated[datetime | None, Query(description="Now, if it is not given.")] = None,
    bucket_s: Annotated[
        int | None, Query(ge=60, le=31 * 86_400, description="The width of a bucket; chosen, if it is not given.")
    ] = None,
) -> Response:
    """Runs accepted and model calls made since then, in buckets that begin at multiples of their width: `since` is
    moved back to the beginning of its bucket. Queue and workers are as they are now."""
    found = await read_statistics(
        deps.database,
        deps.worker,
        since_us=optional_microseconds(since),
        until_us=optional_microseconds(until),
        bucket_s=bucket_s,
    )
    return json_response(statistics_view(found))

"""`GET /v1/statistics/` of a month with 100,000 runs and as many model calls, on both databases, by the function of the
store. Its floor is one statement that counts the same runs and sums the same tokens by day."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import func, select, text
from tests.sqlite import new_database
from tests.store.many_runs import DAY, fill
from tests.store.world import NOW, add_agent

from bench.postgres import Kind, databases
from bench.sections import Row, at_most
from holdfast.core.statistics import Span
from holdfast.store import statistics
from holdfast.store.database import open_database
from holdfast.store.tables import runs, steps
from holdfast.store.transaction import Database, Job

RUNS: Final = 100_000
TIMES: Final = 7
MOST_MS: Final = 1_000
_UNTIL: Final = NOW - NOW % DAY
_DAY: Final = runs.c.created_us / DAY
_FLOOR: Final = (
    select(_DAY, runs.c.status, func.count(), func.sum(steps.c.prompt_tokens))
    .join(steps, steps.c.run_id == runs.c.id)
    .group_by(_DAY, runs.c.status)
)


async def run_statistics(data_dir: Path) -> list[Row]:
    kinds: tuple[Kind, ...] = ("sqlite", "postgresql")
    # In a thread, because PostgreSQL is started with an event loop of its own.
    return [row for kind in kinds for row in await asyncio.to_thread(_measured, kind, data_dir)]


def _measured(kind: Kind, data_dir: Path) -> list[Row]:
    with databases(kind, 1) as [environment]:
        url = environment.get("HOLDFAST_DATABASE_URL")
        if url is None:
            url = new_database(data_dir)
        return asyncio.run(_of(kind, url))


async def _of(kind: Kind, url: str) -> list[Row]:
    database = await open_database(url)
    try:
        await fill(database, await add_agent(database), RUNS, random.Random(7), _UNTIL)
        if kind == "postgresql":  # which does it by itself, within a minute
            await database.write(lambda tx: tx.execute(text("ANALYZE")))
        span = Span(_UNTIL - 30 * DAY, _UNTIL + DAY, DAY)
        took_ms = await _best_ms(database, lambda tx: statistics.read(tx, span, NOW))
        floor_ms = await _best_ms(database, lambda tx: tx.fetch_all(_FLOOR))
    finally:
        await database.aclose()
    what = f"statistics of a month with {RUNS:,} runs ({kind})"
    return [at_most(what, took_ms, "ms", MOST_MS), at_most("… against one statement", took_ms / floor_ms, "×", 2)]


async def _best_ms(database: Database, job: Job[Any]) -> float:
    took: list[float] = []
    for _ in range(TIMES):
        begun = time.perf_counter()
        await database.read_long(job)
        took.append(time.perf_counter() - begun)
    return min(took) * 1e3

"""The figures that a monitor reads, those of a time for whoever looks after the server, and whether it can work now.

Of the figures for a monitor, those of this process are at hand; those of the whole database are asked for. The database
is asked at most once in `CACHED_S`, whoever scrapes how often, and given `ANSWER_S` to answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.actions.runs.cancel import CancelRuns
from holdfast.core.records import STATUS_OF_STOP
from holdfast.core.statistics import Span, Statistics, WorkerFigures, span_of
from holdfast.engine.admission import REFUSED_FOR, Admission
from holdfast.engine.clock import Clock
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.streams import Streams
from holdfast.engine.worker import Worker, skew_of
from holdfast.store import runs, statistics
from holdfast.store.runs import Queue
from holdfast.store.transaction import Database, DatabaseError, DatabaseUsage, Transaction
from holdfast.version import VERSION
from holdfast.wire.prometheus import Family, Sample, histogram, render

CACHED_S: Final = 5.0
ANSWER_S: Final = 1.0
_log = logging.getLogger(__name__)


class Metrics:
    def __init__(
        self,
        database: Database,
        worker: Worker,
        streams: Streams,
        cancel: CancelRuns,
        admission: Admission,
        rate_limits: RateLimits,
        process: int = 0,
    ) -> None:
        self._database = database
        self._worker = worker
        self._streams = streams
        self._cancel = cancel
        self._admission = admission
        self._rate_limits = rate_limits
        self._process = str(process)
        self._started_at = time.time()
        self._queue: Queue | None = None
        self._ask_again_at = 0.0  # by the event loop's clock
        self._asking: asyncio.Task[None] | None = None

    async def text(self) -> str:
        found = await self._current_queue()
        families = [
            *self._of_process(),
            *self._of_runs(),
            *self._of_limits(),
            *_of_database(self._database.usage()),
            *_of_queue(found),
        ]
        return render(families, {"process": self._process})

    async def _current_queue(self) -> Queue | None:
        """None when the database does not answer."""
        if asyncio.get_running_loop().time() >= self._ask_again_at:
            # One for all who scrape at once; shielded, so that one who leaves does not end it for the others.
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask())
            await asyncio.shield(self._asking)
        return self._queue

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                now_us = await self._database.now_us()
                self._queue = await self._database.read_long(lambda tx: runs.read_queue(tx, now_us))
        except (TimeoutError, DatabaseError) as error:
            self._queue = None
            _log.warning("metrics lack the figures of the database: %s", str(error) or f"no answer in {ANSWER_S:g} s")
        self._ask_again_at = asyncio.get_running_loop().time() + CACHED_S

    def _of_process(self) -> list[Family]:
        return [
            _gauge("holdfast_info", "The version that serves.", [Sample(1, {"version": VERSION})]),
            _gauge(
                "holdfast_start_time_seconds", "When this process started, since the epoch.", [Sample(self._started_at)]
            ),
        ]

    def _of_runs(self) -> list[Family]:
        counts, (used, most) = self._worker.counts, self._worker.slots
        ended = [
            Sample(count, {"status": STATUS_OF_STOP.get(reason, "failed"), "stop_reason": reason})
            for reason, count in sorted(counts.ended.items())
        ]
        latency, connected = self._cancel.latency_s, self._worker.bus.connected
        signals = [] if connected is None else [Sample(int(connected))]
        return [
            _gauge("holdfast_slots_used", "Runs that this process drives now.", [Sample(used)]),
            _gauge("holdfast_slots", "Runs that it drives at most, if nobody waits for their answer.", [Sample(most)]),
            _counter("holdfast_runs_started_total", "Runs that it began to drive.", [Sample(counts.started)]),
            _counter(
                "holdfast_runs_taken_over_total", "Of these, after their worker died.", [Sample(counts.taken_over)]
            ),
            _counter("holdfast_runs_ended_total", "Runs that stopped here, for a decision too.", ended),
            _counter(
                "holdfast_lease_losses_total", "Runs that another worker took away.", [Sample(counts.lease_losses)]
            ),
            _counter("holdfast_frames_total", "Frames that runs have shown.", [Sample(self._streams.published)]),
            Family(
                "holdfast_cancel_seconds",
                "histogram",
                "From a cancel until its run has ended.",
                histogram(latency.bounds, latency.counts, latency.sum),
            ),
            _gauge("holdfast_signals_connected", "Whether signals of other processes are heard.", signals),
        ]

    def _of_limits(self) -> list[Family]:
        refused, limited = self._admission.refused, self._rate_limits.providers

        def samples(field: str) -> list[Sample]:
            return [Sample(getattr(limits, field), {"provider": limits.provider}) for limits in limited]

        return [
            _counter(
                "holdfast_requests_refused_total",
                "Messages that were answered 503, because there were too many runs.",
                [Sample(refused[reason], {"reason": reason}) for reason in REFUSED_FOR],
            ),
            _gauge("holdfast_rate_limit_waiting", "Model calls that wait for a limit.", samples("waiting")),
            _counter("holdfast_rate_limit_waits_total", "Model calls that waited for it.", samples("waits")),
            _counter("holdfast_rate_limit_wait_seconds_total", "How long they waited.", samples("waited_s")),
            _counter("holdfast_rate_limit_refused_total", "Those that failed of it.", samples("refused")),
        ]


async def check_database(database: Database, clock: Clock) -> float | None:
    """How far our clock is off the database's, in seconds, if it is far off. Raises DatabaseError when the database
    cannot be read or written now."""
    return skew_of(clock, await database.check())


async def read_statistics(
    database: Database, worker: Worker, *, since_us: int | None, until_us: int | None, bucket_s: int | None
) -> Statistics:
    """Times that are not given are counted back from now, by the database's clock."""
    now_us = await database.now_us()
    span: Span = span_of(since_us, until_us, bucket_s, now_us)

    async def read(tx: Transaction) -> Statistics:
        return await statistics.read(tx, span, now_us)

    found = await database.read_long(read)
    if any(known.id == worker.owner for known in found.workers):
        return found
    own = WorkerFigures(worker.owner, 0)  # a worker without a run leaves no trace in the database
    return msgspec.structs.replace(found, workers=[*found.workers, own])


def _of_database(usage: DatabaseUsage) -> list[Family]:
    kinds = {"read": usage.reads, "write": usage.writes}

    def samples(field: str) -> list[Sample]:
        return [Sample(getattr(timing, field), {"kind": kind}) for kind, timing in kinds.items()]

    pool, pools = usage.connections, "Connections of the pool."
    states = {"open": pool.open, "used": pool.used, "most": pool.most} if pool is not None else {}
    return [
        _counter("holdfast_database_transactions_total", "Transactions.", samples("count")),
        _counter("holdfast_database_seconds_total", "Time that they took.", samples("seconds")),
        _counter("holdfast_database_waits_total", "Those that waited more than 1 ms to begin.", samples("waits")),
        _counter("holdfast_database_wait_seconds_total", "Time that they waited to begin.", samples("waited_s")),
        _gauge("holdfast_database_connections", pools, [Sample(n, {"state": state}) for state, n in states.items()]),
    ]


def _of_queue(found: Queue | None) -> list[Family]:
    """The same from every process that shares the database."""
    up = _gauge("holdfast_database_up", "Whether the database answered in time.", [Sample(int(found is not None))])
    if found is None:
        return [up]
    states = {"waiting": found.waiting, "driven": found.driven, "held": found.held}
    ages = [Sample(found.age_s(quantile), {"quantile": f"{quantile:g}"}) for quantile in (0.5, 0.95, 1.0)]
    return [
        up,
        _gauge(
            "holdfast_runs",
            "Runs of the whole database by state.",
            [Sample(n, {"state": s}) for s, n in states.items()],
        ),
        _gauge("holdfast_queue_age_seconds", "How long waiting runs have waited for a worker.", ages),
    ]


def _gauge(name: str, meaning: str, samples: Sequence[Sample]) -> Family:
    return Family(name, "gauge", meaning, samples)


def _counter(name: str, meaning: str, samples: Sequence[Sample]) -> Family:
    return Family(name, "counter", meaning, samples)

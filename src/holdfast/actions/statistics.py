"""Figures about all runs of a time, for whoever looks after the server."""

from __future__ import annotations

import msgspec

from holdfast.core.statistics import Span, Statistics, WorkerFigures, span_of
from holdfast.engine.worker import Worker
from holdfast.store import statistics
from holdfast.store.transaction import Database, Transaction


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

"""Waits until a run has stopped, whoever drives it."""

from __future__ import annotations

from holdfast.core.records import Run
from holdfast.engine.worker import Worker
from holdfast.store import runs
from holdfast.store.transaction import Database


async def stopped_run(database: Database, worker: Worker, run_id: str) -> Run:
    """The run once it has stopped, or as it is when this server stops first.

    It may be driven elsewhere, or be on record and only about to be driven here: then only the record can tell.
    """
    with worker.bus.watch(run_id) as watch:
        while True:
            run = await database.read(lambda tx: runs.get(tx, run_id))
            if not run.is_active or (worker.draining and not worker.owns(run_id)):
                return run
            await worker.until_changed(watch)

"""Waits until a run has stopped, whoever drives it."""

from __future__ import annotations

import asyncio
from typing import Final

from holdfast.core.records import Run
from holdfast.engine.worker import Worker
from holdfast.store import runs
from holdfast.store.transaction import Database

_POLL_S: Final = 0.05


async def stopped_run(database: Database, worker: Worker, run_id: str) -> Run:
    """The run once it has stopped, or as it is when this server stops first.

    It may be driven elsewhere, or be on record and only about to be driven here: then only the record can tell.
    """
    while True:
        await worker.stopped(run_id)
        run = await database.read(lambda tx: runs.get(tx, run_id))
        if not run.is_active or worker.draining:
            return run
        await asyncio.sleep(_POLL_S)

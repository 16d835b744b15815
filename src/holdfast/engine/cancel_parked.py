"""Cancels a run that waits for a decision: in one transaction its calls are denied and its end changed."""

from __future__ import annotations

from holdfast.core.run import Settle, plan
from holdfast.engine.checkpoint import write_events, write_rows
from holdfast.engine.clock import Clock
from holdfast.engine.loading import read
from holdfast.engine.session import Session
from holdfast.engine.streams import RunStream
from holdfast.errors import BugError
from holdfast.store import holds, run_end, runs
from holdfast.store.transaction import Database, Transaction


async def cancel_parked(database: Database, clock: Clock, run_id: str) -> bool:
    """False when the hold is decided already."""
    return await database.write(lambda tx: cancel_parked_within(tx, clock, run_id))


async def cancel_parked_within(tx: Transaction, clock: Clock, run_id: str) -> bool:
    """As part of a larger change, such as a reset that must leave nothing pending."""
    run = await runs.get(tx, run_id)
    now_us = clock.now_us()
    if not await holds.decide(tx, run_id, now_us, None):
        return False
    stored = await read(tx, run)
    session = Session(
        run=run,
        agent=stored.agent,
        thread=stored.thread,
        state=stored.state,
        window=stored.window,
        blocks=stored.blocks,
        system_digest=stored.system_digest,
        journalled=len(stored.events),
        stream=RunStream(run_id),
        clock=clock,
    )
    session.cancel(None)
    intent = plan(session.state)
    if not isinstance(intent, Settle) or not await runs.end_parked(tx, run_id):
        raise BugError(f"run {run_id} has an open hold but is not parked")
    session.settle(intent.calls)
    await write_events(tx, session)
    await write_rows(tx, session)
    await run_end.record(tx, run, "cancelled", now_us)
    return True

"""Forgets a run: its journal, frames and steps. Its messages are history and stay."""

from __future__ import annotations

from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.errors import Conflict
from holdfast.store import holds, runs
from holdfast.store.transaction import Transaction


async def delete_run(tx: Transaction, run_id: str, clock: Clock) -> None:
    """With a pending approval goes its question: the calls are denied first, or they would stay open for good."""
    run = await runs.get(tx, run_id)
    if run.is_active:
        raise Conflict(f"CONFLICT: Run {run_id} is active and cannot be deleted. Wait for it to end, or cancel it.")
    hold = await holds.get(tx, run_id)
    if hold is not None and hold.decided_us is None:
        await cancel_parked(tx, clock, run_id)
    await runs.delete(tx, run_id)

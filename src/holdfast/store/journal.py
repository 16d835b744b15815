"""The journal of a run: what happened to it, in order. Events are text here; the engine knows what they say."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select

from holdfast.store.statements import insert_into
from holdfast.store.tables import run_events
from holdfast.store.transaction import Transaction

_APPEND = insert_into(run_events)
_LOAD = select(run_events.c.event).where(run_events.c.run_id == bindparam("run")).order_by(run_events.c.number)


async def append(tx: Transaction, run_id: str, first_number: int, events: Sequence[str], at_us: int) -> None:
    """A number that is taken raises IntegrityError: two writers have driven one run."""
    await tx.execute_many(
        _APPEND,
        [
            {"run_id": run_id, "number": number, "event": event, "at_us": at_us}
            for number, event in enumerate(events, first_number)
        ],
    )


async def load(tx: Transaction, run_id: str) -> list[str]:
    return [row["event"] for row in await tx.fetch_all(_LOAD, {"run": run_id})]

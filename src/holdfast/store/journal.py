"""The journal of a run: what happened to it, in order. Events are text here; the engine knows what they say.

A first event may be stored without the part of its spec that other runs share; `load` puts both together, so that no
caller knows of it (decision 19).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import bindparam, func, select

from holdfast.store.statements import insert_into
from holdfast.store.tables import run_events, specs
from holdfast.store.transaction import Transaction

START: Final = '{"event":"run_started","spec":{'  # how every first event begins that refers to a shared spec
_APPEND = insert_into(run_events)
_LOAD = (
    select(run_events.c.event, run_events.c.at_us, specs.c.spec)
    .outerjoin(specs, specs.c.hash == run_events.c.spec_hash)
    .where(run_events.c.run_id == bindparam("run"))
    .order_by(run_events.c.number)
)

_LAST = select(func.max(run_events.c.number).label("last")).where(run_events.c.run_id == bindparam("run"))


async def append(tx: Transaction, run_id: str, first_number: int, events: Sequence[str], at_us: int) -> None:
    """A number that is taken raises IntegrityError: two writers have driven one run, which the fence should prevent."""
    await tx.execute_many(
        _APPEND,
        [
            {"run_id": run_id, "number": number, "event": event, "at_us": at_us}
            for number, event in enumerate(events, first_number)
        ],
    )


async def append_start(tx: Transaction, run_id: str, event: str, spec_hash: str, at_us: int) -> None:
    """The first event; its spec lacks the fields of the shared spec. If that one is not stored, IntegrityError."""
    row = {"run_id": run_id, "number": 1, "event": event, "at_us": at_us, "spec_hash": spec_hash}
    await tx.execute_many(_APPEND, [row])


async def append_next(tx: Transaction, run_id: str, events: Sequence[str], at_us: int) -> None:
    """After whatever is there: for a run that nobody drives."""
    row = await tx.fetch_one(_LAST, {"run": run_id})
    await append(tx, run_id, (row["last"] or 0) + 1 if row else 1, events, at_us)


async def load_timed(tx: Transaction, run_id: str) -> list[tuple[int, str]]:
    """With the time at which each was recorded."""
    return [
        (row["at_us"], with_shared_spec(row["event"], row["spec"]))
        for row in await tx.fetch_all(_LOAD, {"run": run_id})
    ]


async def load(tx: Transaction, run_id: str) -> list[str]:
    return [event for _, event in await load_timed(tx, run_id)]


def with_shared_spec(event: str, shared_spec: str | None) -> str:
    """The fields of the shared spec go before the event's own. Neither object is ever empty."""
    if shared_spec is None or not event.startswith(START):
        return event
    return f"{START}{shared_spec[1:-1]},{event[len(START) :]}"

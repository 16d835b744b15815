"""Deletes what ended runs have left behind, in small transactions, so that other writes are not delayed.

Runs are walked in the order in which they ended. A step looks at so many runs and deletes so many rows at most, and
says where the next one goes on; a walk that is done says so, and a later one begins where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import BigInteger, Table, Text, and_, bindparam, delete, or_, select, tuple_

from holdfast.store.statements import in_array
from holdfast.store.tables import frames, holds, run_events, run_otids, runs
from holdfast.store.transaction import Transaction

RUNS_AT_ONCE: Final = 200
ROWS_AT_ONCE: Final = 1_000

_after_us, _after_id = bindparam("after_us", type_=BigInteger()), bindparam("after_id", type_=Text())
_ENDED = (
    select(runs.c.id, runs.c.completed_us)
    .where(
        runs.c.completed_us < bindparam("before_us", type_=BigInteger()),
        or_(runs.c.completed_us > _after_us, and_(runs.c.completed_us == _after_us, runs.c.id > _after_id)),
        runs.c.completed_us >= _after_us,
    )
    .order_by(runs.c.completed_us, runs.c.id)
    .limit(RUNS_AT_ONCE)
)
_UNDECIDED = select(holds.c.run_id).where(in_array(holds.c.run_id, "ids"), holds.c.decided_us.is_(None))

_DELETES: Final = {
    table.name: delete(table).where(
        tuple_(table.c.run_id, table.columns[key]).in_(
            select(some.c.run_id, some.columns[key]).where(in_array(some.c.run_id, "ids")).limit(bindparam("at_most"))
        )
    )
    for table, some, key in (
        (frames, frames.alias("some"), "first_seq"),
        (run_events, run_events.alias("some"), "number"),
        (run_otids, run_otids.alias("some"), "otid"),
    )
}


class Place(msgspec.Struct, frozen=True):
    """Everything of runs that ended before it is gone."""

    us: int = 0
    run_id: str = ""


class Swept(msgspec.Struct, frozen=True):
    place: Place
    rows: int
    done: bool


async def sweep_frames(tx: Transaction, ended_before_us: int, place: Place) -> Swept:
    """Streams of runs that ended before then cannot be replayed any more."""
    return await _sweep(tx, (frames,), ended_before_us, place)


async def sweep_journals(tx: Transaction, ended_before_us: int, place: Place) -> Swept:
    """The run itself stays, with its messages, steps and usage, and so does its request key: a message that is sent
    again is still known. Its otids go with its journal. A run that waits for a decision keeps both."""
    return await _sweep(tx, (run_events, run_otids), ended_before_us, place)


async def _sweep(tx: Transaction, tables: Sequence[Table], before_us: int, place: Place) -> Swept:
    given = {"before_us": before_us, "after_us": place.us, "after_id": place.run_id}
    ended = [(row["id"], row["completed_us"]) for row in await tx.fetch_all(_ENDED, given)]
    if not ended:
        return Swept(place, 0, done=True)
    ids = [run_id for run_id, _ in ended]
    if run_events in tables:
        waiting = {row["run_id"] for row in await tx.fetch_all(_UNDECIDED, {"ids": ids})}
        ids = [run_id for run_id in ids if run_id not in waiting]
    deleted = 0
    for table in tables:
        deleted += await tx.execute(_DELETES[table.name], {"ids": ids, "at_most": ROWS_AT_ONCE - deleted})
        if deleted == ROWS_AT_ONCE:  # there may be more of the same runs
            return Swept(place, deleted, done=False)
    last_id, last_us = ended[-1]
    return Swept(Place(last_us, last_id), deleted, done=len(ended) < RUNS_AT_ONCE)

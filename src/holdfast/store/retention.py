"""Deletes what ended runs have left behind, in small transactions, so that other writes are not delayed.

Runs are walked in the order in which they ended. A step looks at so many runs and deletes so many rows at most, and
says where the next one goes on; a walk that is done says so, and a later one begins where it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    BigInteger,
    Delete,
    Executable,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    func,
    or_,
    select,
    tuple_,
)

from holdfast.store import traces
from holdfast.store.statements import byte_length, in_array
from holdfast.store.tables import frames, holds, provider_traces, run_events, run_otids, runs, steps
from holdfast.store.transaction import Transaction

RUNS_AT_ONCE: Final = 200
ROWS_AT_ONCE: Final = 1_000
Remains = Literal["frames", "journals", "traces"]  # what an ended run has left behind

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

_TRACES_OF_RUNS = (
    select(provider_traces.c.step_id)
    .join(steps, steps.c.id == provider_traces.c.step_id)
    .where(in_array(steps.c.run_id, "ids"))
)
# Of a stream the end goes first: one that has its end is whole.
_some_frames = frames.alias("some")
_DELETES: Final[dict[str, Delete]] = {
    table.name: delete(table).where(
        tuple_(table.c.run_id, table.columns[key]).in_(
            select(some.c.run_id, some.columns[key])
            .where(in_array(some.c.run_id, "ids"))
            .order_by(*order)
            .limit(bindparam("at_most"))
        )
    )
    for table, some, key, order in (
        (frames, _some_frames, "first_seq", (_some_frames.c.first_seq.desc(),)),
        (run_events, run_events.alias("some"), "number", ()),
        (run_otids, run_otids.alias("some"), "otid", ()),
    )
} | {
    provider_traces.name: delete(provider_traces).where(
        provider_traces.c.step_id.in_(_TRACES_OF_RUNS.limit(bindparam("at_most")))
    )
}
_TABLES: Final[dict[Remains, tuple[Table, ...]]] = {
    "frames": (frames,),
    "journals": (run_events, run_otids),
    "traces": (provider_traces,),
}


def _summed(*sizes: Any) -> Any:
    return cast(func.sum(sum(sizes)), BigInteger).label("bytes")


_SIZES: Final[dict[Remains, Executable]] = {
    "frames": select(frames.c.run_id, _summed(byte_length(frames.c.frames)))
    .where(in_array(frames.c.run_id, "ids"))
    .group_by(frames.c.run_id),
    "journals": select(run_events.c.run_id, _summed(byte_length(run_events.c.event)))
    .where(in_array(run_events.c.run_id, "ids"))
    .group_by(run_events.c.run_id),
    "traces": select(
        steps.c.run_id, _summed(byte_length(provider_traces.c.request), byte_length(provider_traces.c.response))
    )
    .join(provider_traces, steps.c.id == provider_traces.c.step_id)
    .where(in_array(steps.c.run_id, "ids"))
    .group_by(steps.c.run_id),
}


class Place(msgspec.Struct, frozen=True):
    """Everything of runs that ended before it is gone."""

    us: int = 0
    run_id: str = ""


class Swept(msgspec.Struct, frozen=True):
    place: Place
    rows: int
    done: bool


class Sizes(msgspec.Struct, frozen=True):
    runs: list[tuple[Place, int]]  # how many bytes each has left behind, in the order in which they ended
    done: bool


async def sizes(tx: Transaction, remains: Remains, ended_before_us: int, place: Place) -> Sizes:
    """Of the next runs after the place. Reads what they have left behind, so each run should be asked about once."""
    ended = await _ended(tx, ended_before_us, place)
    ids = [each.run_id for each in ended]
    found = {row["run_id"]: row["bytes"] for row in await tx.fetch_all(_SIZES[remains], {"ids": ids})} if ids else {}
    return Sizes([(each, found.get(each.run_id, 0)) for each in ended], done=len(ended) < RUNS_AT_ONCE)


async def sweep_for_room(tx: Transaction, remains: Remains, ended_before_us: int, place: Place) -> Swept:
    """As by age. What waits for a decision keeps everything."""
    return await _sweep(tx, _TABLES[remains], ended_before_us, place, spare_waiting=True)


async def sweep_frames(tx: Transaction, ended_before_us: int, place: Place) -> Swept:
    """Streams of runs that ended before then cannot be replayed any more."""
    return await _sweep(tx, _TABLES["frames"], ended_before_us, place, spare_waiting=False)


async def sweep_journals(tx: Transaction, ended_before_us: int, place: Place) -> Swept:
    """The run itself stays, with its messages, steps and usage, and so does its request key: a message that is sent
    again is still known. Its otids go with its journal. A run that waits for a decision keeps both."""
    return await _sweep(tx, _TABLES["journals"], ended_before_us, place, spare_waiting=True)


async def _sweep(
    tx: Transaction, tables: Sequence[Table], before_us: int, place: Place, *, spare_waiting: bool
) -> Swept:
    ended = await _ended(tx, before_us, place)
    if not ended:
        return Swept(place, 0, done=True)
    ids = [each.run_id for each in ended]
    if spare_waiting:
        waiting = {row["run_id"] for row in await tx.fetch_all(_UNDECIDED, {"ids": ids})}
        ids = [run_id for run_id in ids if run_id not in waiting]
    # A trace can be as long as a request to a model.
    most = traces.ROWS_AT_ONCE if provider_traces in tables else ROWS_AT_ONCE
    deleted = 0
    for table in tables:
        deleted += await tx.execute(_DELETES[table.name], {"ids": ids, "at_most": most - deleted})
        if deleted == most:  # there may be more of the same runs
            return Swept(place, deleted, done=False)
    return Swept(ended[-1], deleted, done=len(ended) < RUNS_AT_ONCE)


async def _ended(tx: Transaction, before_us: int, place: Place) -> list[Place]:
    given = {"before_us": before_us, "after_us": place.us, "after_id": place.run_id}
    return [Place(row["completed_us"], row["id"]) for row in await tx.fetch_all(_ENDED, given)]

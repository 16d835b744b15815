"""Frame batches: replayed from any point, forgotten only after their run has ended."""

from __future__ import annotations

from holdfast.store import frames, retention
from holdfast.store.retention import Place
from holdfast.store.transaction import Database

from .world import NOW, add_agent, add_run, call, end_run, look


async def test_a_replay_begins_with_the_batch_that_holds_the_next_frame(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    batches = [(1, 4, b"\x00one"), (5, 5, b"two"), (6, 90, b"three")]
    for first, last, blob in batches:
        await call(database, frames.append, run.id, first, last, blob)
    assert await look(database, frames.load, run.id, 0) == batches
    assert await look(database, frames.load, run.id, 3) == batches
    assert await look(database, frames.load, run.id, 4) == batches[1:]
    assert await look(database, frames.load, run.id, 90) == []
    assert await look(database, frames.last_seq, run.id) == 90


async def test_nothing_stored_means_number_zero(database: Database) -> None:
    assert await look(database, frames.last_seq, "run-none") == 0


async def test_a_batch_that_is_written_again_with_what_has_come_since_takes_the_place_of_the_first(
    database: Database,
) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, frames.append, run.id, 1, 2, b"ab")
    await call(database, frames.append, run.id, 1, 3, b"abc")
    assert await look(database, frames.load, run.id, 0) == [(1, 3, b"abc")]


async def test_only_frames_of_runs_that_ended_long_ago_are_forgotten(database: Database) -> None:
    old, fresh, live = [await add_run(database, await add_agent(database)) for _ in range(3)]
    for run in (old, fresh, live):
        await call(database, frames.append, run.id, 1, 2, b"a")
        await call(database, frames.append, run.id, 3, 4, b"b")
    await end_run(database, old, completed_us=NOW)
    await end_run(database, fresh, completed_us=NOW + 10)
    assert (await call(database, retention.sweep_frames, NOW + 10, Place())).rows == 2
    assert [await look(database, frames.last_seq, run.id) for run in (old, fresh, live)] == [0, 4, 4]

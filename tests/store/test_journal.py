"""A journal is read back in order, and two writers of one number cannot both succeed."""

from __future__ import annotations

import pytest

from holdfast.store import journal
from holdfast.store.transaction import Database, IntegrityError

from .world import NOW, add_agent, add_run, call, look


async def test_events_are_read_back_in_order(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    other = await add_run(database, await add_agent(database))
    await call(database, journal.append, run.id, 1, ["a", "b"], NOW)
    await call(database, journal.append, other.id, 1, ["x"], NOW)
    await call(database, journal.append, run.id, 3, [f"n{number}" for number in range(12)], NOW)
    assert await look(database, journal.load, run.id) == ["a", "b", *(f"n{number}" for number in range(12))]
    assert await look(database, journal.load, other.id) == ["x"]


async def test_appending_nothing_changes_nothing(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, journal.append, run.id, 1, [], NOW)
    assert await look(database, journal.load, run.id) == []


async def test_a_number_is_written_once(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    await call(database, journal.append, run.id, 1, ["a"], NOW)
    with pytest.raises(IntegrityError):
        await call(database, journal.append, run.id, 1, ["b"], NOW)
    assert await look(database, journal.load, run.id) == ["a"]

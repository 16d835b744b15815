"""What ended runs have left behind goes in small steps; what waits for a decision stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.hold import Hold
from holdfast.core.records import Run
from holdfast.store import frames, holds, journal, retention, runs, traces
from holdfast.store.retention import Place, Swept
from holdfast.store.transaction import Database

from .test_traces import a_trace
from .world import NOW, add_agent, add_conversation, add_run, add_step, call, end_run, look

BEGIN = Place()


async def swept(database: Database, what: str, before_us: int, place: Place = BEGIN) -> list[Swept]:
    steps: list[Swept] = []
    while not steps or not steps[-1].done:
        steps.append(await call(database, getattr(retention, what), before_us, steps[-1].place if steps else place))
    return steps


async def test_a_burst_of_old_frames_goes_in_steps_of_bounded_size(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 10)
    agent_id = await add_agent(database)
    for number in range(3):
        run = await add_run(database, agent_id)
        for batch in range(15):
            await call(database, frames.append, run.id, batch + 1, batch + 1, b"x")
        await end_run(database, run, completed_us=NOW + number)
    young = await add_run(database, agent_id)
    await call(database, frames.append, young.id, 1, 1, b"x")

    steps = await swept(database, "sweep_frames", NOW + 10)

    assert max(step.rows for step in steps) <= 10
    assert sum(step.rows for step in steps) == 45
    assert len(await look(database, frames.load, young.id, 0)) == 1
    later = await swept(database, "sweep_frames", NOW + 10, steps[-1].place)
    assert [step.rows for step in later] == [0]


async def test_a_later_walk_begins_where_the_last_one_ended(database: Database) -> None:
    agent_id = await add_agent(database)
    first = await add_run(database, agent_id)
    await end_run(database, first, completed_us=NOW)
    place = (await swept(database, "sweep_frames", NOW + 1))[-1].place
    assert place == Place(NOW, first.id)


async def test_old_journals_go_and_the_run_stays(database: Database) -> None:
    agent_id = await add_agent(database)
    old, young = await add_run(database, agent_id), await add_run(database, await add_agent(database))
    for run in (old, young):
        await call(database, journal.append, run.id, 1, ["a", "b"], NOW)
    await end_run(database, old, completed_us=NOW)

    await swept(database, "sweep_journals", NOW + 1)

    assert await look(database, journal.load, old.id) == []
    assert await look(database, journal.load, young.id) == ["a", "b"]
    assert (await look(database, runs.get, old.id)).status == "completed"


@pytest.mark.parametrize("decided", [False, True])
async def test_the_journal_of_a_run_that_waits_for_a_decision_is_kept(database: Database, decided: bool) -> None:
    agent_id = await add_agent(database)
    run = await add_run(database, agent_id, await add_conversation(database, agent_id))
    await call(database, journal.append, run.id, 1, ["a"], NOW)
    assert await call(database, holds.insert, run, Hold("message-1", "step-1", ()), NOW)
    await end_run(database, run, stop_reason="requires_approval", completed_us=NOW)
    if decided:
        assert await call(database, holds.decide, run.id, NOW, None)

    await swept(database, "sweep_journals", NOW + 1)

    assert await look(database, journal.load, run.id) == ([] if decided else ["a"])


async def test_the_otids_of_a_run_go_with_its_journal_and_those_of_a_young_run_stay(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "ROWS_AT_ONCE", 4)
    agent_id = await add_agent(database)
    old, young = await add_run(database, agent_id), await add_run(database, await add_agent(database))
    for run in (old, young):
        await call(database, journal.append, run.id, 1, ["a", "b", "c"], NOW)
        await call(database, runs.add_otids, run.thread_id, run.id, ["one", "two", "three"])
    await end_run(database, old, completed_us=NOW)

    steps = await swept(database, "sweep_journals", NOW + 1)

    assert [step.rows for step in steps] == [4, 2]
    assert await look(database, journal.load, old.id) == []
    assert await look(database, runs.by_otid, old.thread_id, "two") is None
    found = await look(database, runs.by_otid, young.thread_id, "two")
    assert found.id == young.id


async def test_what_each_run_has_left_behind_is_measured_in_bytes(database: Database) -> None:
    agent_id = await add_agent(database)
    first, second, active = [
        await add_run(database, agent_id, await add_conversation(database, agent_id)) for _ in "abc"
    ]
    for run in (first, active):
        await call(database, frames.append, run.id, 1, 1, b"12345")
        await call(database, frames.append, run.id, 2, 2, b"678")
        await call(database, journal.append, run.id, 1, ["é", "b"], NOW)
        step = await add_step(database, run)
        await call(database, traces.save, a_trace(step, request={"a": "é"}, response={}))
    await end_run(database, first, completed_us=NOW)
    await end_run(database, second, completed_us=NOW + 1)

    for remains, size in (("frames", 8), ("journals", 3), ("traces", len('{"a":"é"}'.encode()) + 2)):
        found = await look(database, retention.sizes, remains, NOW + 10, BEGIN)
        assert found.runs == [(Place(NOW, first.id), size), (Place(NOW + 1, second.id), 0)]
        assert found.done
    later = await look(database, retention.sizes, "frames", NOW + 10, Place(NOW, first.id))
    assert [place.run_id for place, _ in later.runs] == [second.id]


@pytest.mark.parametrize("remains", ["frames", "journals", "traces"])
async def test_only_what_ended_and_waits_for_nobody_makes_room(database: Database, remains: str) -> None:
    agent_id = await add_agent(database)
    ended, parked, active = [
        await add_run(database, agent_id, await add_conversation(database, agent_id)) for _ in "abc"
    ]
    for run in (ended, parked, active):
        await call(database, frames.append, run.id, 1, 1, b"x")
        await call(database, journal.append, run.id, 1, ["a"], NOW)
        await call(database, traces.save, a_trace(await add_step(database, run)))
    assert await call(database, holds.insert, parked, Hold("message-1", "step-1", ()), NOW)
    await end_run(database, parked, stop_reason="requires_approval", completed_us=NOW)
    await end_run(database, ended, completed_us=NOW)

    swept = await call(database, retention.sweep_for_room, remains, NOW + 1, BEGIN)

    assert swept.rows == 1
    kept: dict[str, Callable[[Run], Awaitable[Any]]] = {
        "frames": lambda run: look(database, frames.load, run.id, 0),
        "journals": lambda run: look(database, journal.load, run.id),
        "traces": lambda run: look(database, traces.list_of_run, run.id),
    }
    for kind, load in kept.items():
        assert [len(await load(run)) for run in (ended, parked, active)] == [kind != remains, 1, 1]

"""What ended runs have left behind goes in small steps; what waits for a decision stays."""

from __future__ import annotations

import pytest

from holdfast.core.hold import Hold
from holdfast.store import frames, holds, journal, retention, runs
from holdfast.store.database import Database
from holdfast.store.retention import Place, Swept

from .world import NOW, add_agent, add_conversation, add_run, call, end_run, look

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

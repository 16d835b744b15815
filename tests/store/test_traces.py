"""What vendors were sent and said, kept beside the steps for a while."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.records import ProviderTrace, Step
from holdfast.store import runs, traces
from holdfast.store.transaction import Database, IntegrityError

from .world import NOW, a_step, add_agent, add_run, add_step, call, look


def a_trace(step: Step, **fields: Any) -> ProviderTrace:
    known: dict[str, Any] = {
        "step_id": step.id,
        "run_id": step.run_id,
        "agent_id": step.agent_id,
        "request": {"model": "gpt-5", "messages": [{"content": "é\x00"}]},
        "response": {"parts": [], "usage": None},
        "created_us": NOW,
    }
    return ProviderTrace(**known | fields)


async def test_a_trace_is_kept_as_it_was_given_and_a_later_try_replaces_it(database: Database) -> None:
    step = await add_step(database, await add_run(database, await add_agent(database)))
    assert await look(database, traces.find, step.id) is None
    await call(database, traces.save, a_trace(step))
    assert await look(database, traces.find, step.id) == a_trace(step)
    later = a_trace(step, response={"error": {"type": "RateLimited"}}, created_us=NOW + 1)
    await call(database, traces.save, later)
    assert await look(database, traces.find, step.id) == later


async def test_a_trace_needs_its_step(database: Database) -> None:
    stranger = a_step(await add_run(database, await add_agent(database)))
    with pytest.raises(IntegrityError):
        await call(database, traces.save, a_trace(stranger))


async def test_the_traces_of_a_run_are_in_the_order_of_its_steps(database: Database) -> None:
    first_run = await add_run(database, await add_agent(database))
    second_run = await add_run(database, await add_agent(database))
    steps = [await add_step(database, first_run, number) for number in (1, 2, 3)]
    foreign = await add_step(database, second_run, 1)
    for step in (steps[2], foreign, steps[0]):
        await call(database, traces.save, a_trace(step))
    found = await look(database, traces.list_of_run, first_run.id)
    assert [trace.step_id for trace in found] == [steps[0].id, steps[2].id]
    assert [trace.step_id for trace in await look(database, traces.list_of_run, first_run.id, 1)] == [steps[0].id]


async def test_old_traces_are_deleted_and_a_run_takes_its_own_along(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    old, new = await add_step(database, run, 1), await add_step(database, run, 2)
    await call(database, traces.save, a_trace(old, created_us=NOW - 1))
    await call(database, traces.save, a_trace(new))
    assert await call(database, traces.delete_older, NOW) == 1
    assert [trace.step_id for trace in await look(database, traces.list_of_run, run.id)] == [new.id]
    await call(database, runs.delete, run.id)
    assert await look(database, traces.find, new.id) is None


async def test_a_burst_of_old_traces_goes_in_steps_of_bounded_size(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    for number in range(1, 6):
        step = await add_step(database, run, number)
        await call(database, traces.save, a_trace(step, created_us=NOW + number))
    assert await call(database, traces.delete_older, NOW + 5, 3) == 3
    assert len(await look(database, traces.list_of_run, run.id)) == 2
    assert await call(database, traces.delete_older, NOW + 5, 3) == 1
    assert [trace.created_us for trace in await look(database, traces.list_of_run, run.id)] == [NOW + 5]

"""Steps: written before the model call, finished after it, rated by people."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.records import Step
from holdfast.core.usage import Usage
from holdfast.errors import NotFound
from holdfast.store import steps
from holdfast.store.paging import Page
from holdfast.store.steps import StepFilter
from holdfast.store.transaction import Database

from .world import NOW, a_step, add_agent, add_run, add_step, call, look, walk


def finished(step: Step) -> Step:
    return msgspec.structs.replace(
        step,
        status="failed",
        usage=Usage(10, 20, 0, None, 5, True),
        stop_reason="llm_api_error",
        error_type="RateLimited",
        error_data={"message": "slow down", "details": {"code": 429}},
        step_start_ns=1,
        llm_request_start_ns=2,
        llm_request_ns=3,
        tool_execution_ns=4,
        step_ns=5,
        ttft_ns=6,
        cost_usd=0.25,
    )


async def test_saving_inserts_or_overwrites(database: Database) -> None:
    step = a_step(await add_run(database, await add_agent(database)), tags=("a",))
    await call(database, steps.save, step)
    assert await look(database, steps.get, step.id) == step
    await call(database, steps.save, finished(step))
    assert await look(database, steps.get, step.id) == finished(step)


async def test_tools_that_ran_after_an_approval_make_the_parked_step_longer(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    parked = await add_step(database, run, 1, step_ns=10)
    other = await add_step(database, run, 2, step_ns=10, tool_execution_ns=1)
    await call(database, steps.add_tool_time, parked.id, 7)
    await call(database, steps.add_tool_time, parked.id, 2)
    kept = await look(database, steps.get, parked.id)
    assert (kept.tool_execution_ns, kept.step_ns) == (9, 19)
    assert await look(database, steps.get, other.id) == other


async def test_feedback_survives_a_late_save_by_the_run(database: Database) -> None:
    step = await add_step(database, await add_run(database, await add_agent(database)))
    rated = await call(database, steps.feedback, step.id, "positive", ("good", "fast"))
    assert (rated.feedback, rated.tags) == ("positive", ("good", "fast"))
    await call(database, steps.save, finished(step))
    kept = await look(database, steps.get, step.id)
    assert (kept.status, kept.feedback, kept.tags) == ("failed", "positive", ("good", "fast"))
    withdrawn = await call(database, steps.feedback, step.id, None, None)
    assert (withdrawn.feedback, withdrawn.tags) == (None, ("good", "fast"))


async def test_an_unknown_step_is_not_found(database: Database) -> None:
    with pytest.raises(NotFound, match="Step not found"):
        await look(database, steps.get, "step-none")
    with pytest.raises(NotFound):
        await call(database, steps.feedback, "step-none", "positive", None)


async def test_every_filter_of_the_step_list_narrows_it(database: Database) -> None:
    ada, bob = await add_run(database, await add_agent(database)), await add_run(database, await add_agent(database))
    first = await add_step(database, ada, 1, trace_id="t1", feedback="positive")
    second = await add_step(database, ada, 2, trace_id="t2", model_handle="anthropic/gpt-5", feedback="negative")
    third = await add_step(database, bob, 3, model_handle="openai/gpt-5-mini")
    names = {first.id: 1, second.id: 2, third.id: 3}

    async def shown(**filters: Any) -> list[int]:
        found = await look(database, steps.list_steps, StepFilter(**filters), Page(order="asc"))
        return [names[step.id] for step in found]

    assert await shown() == [1, 2, 3]
    assert await shown(agent_id=ada.agent_id) == [1, 2]
    assert await shown(run_id=bob.id) == [3]
    assert await shown(model="gpt-5") == [1, 2]
    assert await shown(model="openai/gpt-5") == [1]
    assert await shown(model="5") == []
    assert await shown(trace_ids=("t2", "t9")) == [2]
    assert await shown(feedback="negative") == [2]
    assert await shown(has_feedback=True) == [1, 2]
    assert await shown(has_feedback=False) == [3]
    assert await shown(start_us=NOW + 2) == [2, 3]
    assert await shown(end_us=NOW + 2) == [1, 2]


async def test_the_steps_of_a_run_are_in_order_and_can_be_walked_backwards(database: Database) -> None:
    run = await add_run(database, await add_agent(database))
    other = await add_run(database, await add_agent(database))
    made = [await add_step(database, run, number) for number in range(1, 13)]
    foreign = await add_step(database, other, 1)
    assert await look(database, steps.list_of_run, run.id) == made

    async def fetch(**cursors: Any) -> list[Step]:
        return await look(database, steps.list_of_run, run.id, Page(limit=5, **cursors))

    assert await walk(fetch) == [step.id for step in reversed(made)]
    with pytest.raises(NotFound):
        await fetch(after=foreign.id)

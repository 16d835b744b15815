"""Figures are the same as those that one gets by reading every row, on both databases."""

from __future__ import annotations

import random
from typing import Any

from holdfast import ids
from holdfast.core.messages import Message, Text, ToolReturn
from holdfast.core.statistics import Span, Statistics
from holdfast.core.usage import Usage
from holdfast.store import messages, statistics, steps
from holdfast.store.transaction import Database

from .many_runs import DAY, fill
from .world import NOW, a_step, add_agent, add_run, call

HOUR = 3_600_000_000
BEGIN = NOW - NOW % DAY
SPAN = Span(BEGIN, BEGIN + DAY, HOUR)


async def read(database: Database, span: Span = SPAN, now_us: int = NOW) -> Statistics:
    return await database.read_long(lambda tx: statistics.read(tx, span, now_us))


async def test_an_empty_database_has_figures_too(database: Database) -> None:
    found = await read(database)
    assert (len(found.runs), len(found.used), found.days, found.errors) == (24, 24, {}, [])
    assert (found.tools, found.slowest, found.providers, found.workers) == ([], [], [], [])
    assert (found.queue.waiting, found.queue.oldest_s, found.queue.active, found.queue.held) == (0, 0.0, 0, 0)


async def test_runs_are_counted_by_state_in_the_bucket_in_which_they_were_accepted(database: Database) -> None:
    agent = await add_agent(database)
    times: list[tuple[int, Any]] = [
        (BEGIN - 1, "completed"),
        (BEGIN, "completed"),
        (BEGIN + HOUR - 1, "failed"),
        (BEGIN + HOUR, "completed"),
        (BEGIN + DAY - 1, "cancelled"),
        (BEGIN + DAY, "completed"),
    ]
    for created_us, status in times:
        await add_run(database, agent, status=status, created_us=created_us)
    found = await read(database)
    assert {place: states for place, states in enumerate(found.runs) if states} == {
        0: {"completed": 1, "failed": 1},
        1: {"completed": 1},
        23: {"cancelled": 1},
    }


async def test_tokens_and_cost_are_summed_by_bucket_and_by_day(database: Database) -> None:
    agent = await add_agent(database)
    run = await add_run(database, agent, status="completed", created_us=BEGIN)
    made = [
        a_step(run, 1, created_us=BEGIN, usage=Usage(100, 10, 50), cost_usd=0.25),
        a_step(run, 2, created_us=BEGIN + 1, usage=Usage(200, 20, None), cost_usd=None),
        a_step(run, 3, created_us=BEGIN + DAY, usage=Usage(1, 2, 0), cost_usd=0.5),
    ]
    for step in made:
        await call(database, steps.save, step)
    found = await read(database, Span(BEGIN, BEGIN + 2 * DAY, 2 * DAY))
    [whole] = found.used
    assert (whole.steps, whole.prompt_tokens, whole.completion_tokens) == (3, 301, 32)
    assert (whole.cached_input_tokens, whole.cost_usd, whole.unpriced_steps) == (50, 0.75, 1)
    assert {day * DAY: used.prompt_tokens for day, used in found.days.items()} == {BEGIN: 300, BEGIN + DAY: 1}


async def test_failed_runs_are_counted_by_the_error_of_their_last_step_or_else_their_stop_reason(
    database: Database,
) -> None:
    agent = await add_agent(database)
    for place, error_type in enumerate(["RateLimited", "RateLimited", None]):
        created_us = BEGIN + place
        run = await add_run(database, agent, status="failed", stop_reason="error", created_us=created_us)
        if error_type:
            for number, named in enumerate(["Overloaded", error_type], 1):
                step = a_step(run, number, status="failed", error_type=named, created_us=created_us)
                await call(database, steps.save, step)
    errors = (await read(database)).errors
    assert [(one.error_type, one.runs, one.last_us) for one in errors] == [
        ("RateLimited", 2, BEGIN + 1),
        ("error", 1, BEGIN + 2),
    ]


async def test_tools_are_timed_by_steps_that_called_one_alone(database: Database) -> None:
    agent = await add_agent(database)
    run = await add_run(database, agent, status="completed", created_us=BEGIN)
    called: list[list[tuple[str, Any]]] = [
        [("search", "success")],
        [("search", "error")],
        [("search", "success"), ("send", "success")],
        [],
    ]
    for number, returns in enumerate(called, 1):
        took = number * 1_000_000 if returns else None
        step = a_step(run, number, created_us=BEGIN + number, tool_execution_ns=took)
        await call(database, steps.save, step)
        parts = tuple(
            ToolReturn(f"call-{place}", name, status, "a\x00b") for place, (name, status) in enumerate(returns)
        )
        rows = [
            Message(id=ids.new("message"), role="tool", parts=parts, created_us=BEGIN, run_id=run.id, step_id=step.id),
            Message(
                id=ids.new("message"),
                role="assistant",
                parts=(Text("tool_return"),),
                created_us=BEGIN,
                run_id=run.id,
                step_id=step.id,
            ),
        ]
        await call(database, messages.insert_many, agent, rows)
    found = await read(database)
    search, send = found.tools
    assert (search.name, search.calls, search.failures, search.timed) == ("search", 3, 1, 2)
    assert (search.p50_ns, search.p95_ns, search.max_ns) == (1_000_000, 2_000_000, 2_000_000)
    assert (send.name, send.calls, send.timed, send.p95_ns) == ("send", 1, 0, None)
    assert found.tool_steps == 3


async def test_the_slowest_runs_of_the_time_come_first(database: Database) -> None:
    agent = await add_agent(database)
    for place in range(12):
        await add_run(database, agent, status="completed", created_us=BEGIN + place, total_duration_ns=place)
    await add_run(database, agent, status="completed", created_us=BEGIN - 1, total_duration_ns=99)
    slowest = (await read(database)).slowest
    assert [run.total_duration_ns for run in slowest] == list(range(11, 1, -1))


async def test_the_queue_and_the_workers_are_as_they_are_now(database: Database) -> None:
    now_us = await database.now_us()
    agents = [await add_agent(database) for _ in range(4)]
    until = now_us + 10_000_000
    for agent, owner in zip(agents, ["worker-a", "worker-a", "worker-b", None], strict=True):
        leased: dict[str, Any] = {"lease_owner": owner, "lease_expires_us": until if owner else None}
        await add_run(database, agent, created_us=now_us - 5_000_000, **leased)
    found = await read(database, now_us=now_us)
    assert [(worker.id, worker.runs) for worker in found.workers] == [("worker-a", 2), ("worker-b", 1)]
    assert (found.queue.waiting, found.queue.oldest_s, found.queue.active) == (1, 5.0, 3)


async def test_runs_of_a_month_are_all_summed(database: Database) -> None:
    """How long many take, `python -m bench --only statistics` measures."""
    agent, count = await add_agent(database), 3_000
    await fill(database, agent, count, random.Random(7), BEGIN)
    found = await read(database, Span(BEGIN - 30 * DAY, BEGIN + DAY, DAY))
    assert sum(sum(states.values()) for states in found.runs) == count
    assert sum(used.prompt_tokens for used in found.used) == 100 * count
    assert found.errors[0].error_type == "Overloaded"

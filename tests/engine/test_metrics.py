"""How long the parts of a step took and what it cost, however the step ended. Time is moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from holdfast.core.failures import RetryPolicy
from holdfast.core.messages import Approve, ToolReturn
from holdfast.core.records import Step
from holdfast.core.run import OpenCall
from holdfast.core.usage import Usage, cost
from holdfast.store import agents, runs, steps
from holdfast.store.transaction import Transaction

from ..scenario import Node, World, eventually
from .timed import PRICE, SECOND, HandClock, TimedCatalog

TOOL_S = 3


class Timed:
    """One server whose time stands still between what is told of below."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = HandClock()
        world.clock = self.clock
        self.catalog = TimedCatalog(self.clock)
        self.node = Node(world, catalog=self.catalog)
        for name in ("note", "guarded", "lookup"):
            world.tools.answers[name] = self._take_time

    async def _take_time(self, call: OpenCall) -> ToolReturn:
        self.clock.advance(TOOL_S)
        return ToolReturn(call.call.id, call.call.name, "success", "done")

    async def steps_of(self, run_id: str) -> list[Step]:
        return await self.world.database.read(lambda tx: steps.list_of_run(tx, run_id))

    async def streaming(self, text: str) -> str:
        """A run whose model has begun to answer, and waits."""
        accepted = await self.node.send(text, stream_tokens=True)
        assert accepted.stream is not None
        await eventually(lambda: self.catalog.offline.model.open_streams == 1)
        if "stall_after" in text:
            await eventually(lambda: len(accepted.stream.frames) >= 2 if accepted.stream else False)
        return accepted.run.id

    async def cancel(self, run_id: str) -> None:
        await self.node.cancel.one(run_id)
        await self.node.worker.stopped(run_id)


def seconds(step: Step) -> dict[str, Any]:
    names = ("llm_request_ns", "ttft_ns", "tool_execution_ns", "step_ns")
    taken = {name.removesuffix("_ns"): getattr(step, name) for name in names}
    return {name: None if value is None else value / SECOND for name, value in taken.items()}


def took(llm_request: float | None, ttft: float | None, tool_execution: float | None, step: float) -> dict[str, Any]:
    return {"llm_request": llm_request, "ttft": ttft, "tool_execution": tool_execution, "step": step}


@pytest.fixture
async def timed(world: World) -> AsyncIterator[Timed]:
    made = Timed(world)
    yield made
    await made.node.die()


@pytest.mark.parametrize("stream_tokens", [False, True], ids=["whole", "tokens"])
@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("hello", "success", [took(30, 10, None, 30)]),
        ("call the note tool", "success", [took(30, 10, 3, 33), took(30, 10, None, 30)]),
        (
            "call the note tool, then call the lookup tool",
            "success",
            [took(30, 10, 3, 33)] * 2 + [took(30, 10, None, 30)],
        ),
        (
            "[[call:note {}]] [[call:lookup {}]] [[no_reasoning]]",
            "success",
            [took(30, 10, 6, 36), took(30, 10, None, 30)],
        ),
        ("[[error:bad_request]]", "failed", [took(10, None, None, 10)]),
        ("[[error:bad_request]] [[error_after:2]]", "failed", [took(10, 10, None, 10)]),
        ("[[error:runtime]]", "failed", [took(10, None, None, 10)]),
        ("call the guarded tool", "success", [took(30, 10, None, 30)]),
    ],
    ids=["said", "tool", "tools in turn", "tools of one reply", "refused", "broke off", "our own bug", "parked"],
)
async def test_every_part_of_a_step_is_measured(
    timed: Timed, text: str, status: str, expected: list[dict[str, Any]], stream_tokens: bool
) -> None:
    run = await timed.node.ask(text, stream_tokens=stream_tokens)
    made = await timed.steps_of(run.id)
    assert [seconds(step) for step in made] == expected
    assert made[-1].status == status
    assert run.total_duration_ns == sum(step.step_ns or 0 for step in made)
    began = [step.llm_request_start_ns for step in made]
    assert began == [step.step_start_ns for step in made]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[[stall]]", took(17, None, None, 17)), ("[[stall_after:2]]", took(17, 10, None, 17))],
    ids=["before content", "after content"],
)
async def test_a_cancelled_model_call_took_until_it_was_cancelled(
    timed: Timed, text: str, expected: dict[str, Any]
) -> None:
    run_id = await timed.streaming(text)
    timed.clock.advance(7)
    await timed.cancel(run_id)
    (step,) = await timed.steps_of(run_id)
    assert (step.status, seconds(step)) == ("cancelled", expected)


async def test_tools_that_were_killed_took_until_they_were_dead(timed: Timed) -> None:
    run_id = (await timed.node.send("call the slow tool")).run.id
    await timed.world.tools.waiting.wait()
    timed.clock.advance(5)
    await timed.cancel(run_id)
    (step,) = await timed.steps_of(run_id)
    assert (step.status, seconds(step)) == ("cancelled", took(30, 10, 5, 35))


async def test_tools_that_ran_together_took_as_long_as_the_longest(timed: Timed) -> None:
    run_id = (await timed.node.send("[[call:slow {}]] [[call:slow_lookup {}]]")).run.id
    await eventually(lambda: len(timed.world.tools.in_flight) == 2)
    timed.clock.advance(5)
    timed.world.tools.let_go.set()
    await timed.node.worker.stopped(run_id)
    first, _ = await timed.steps_of(run_id)
    assert seconds(first) == took(30, 10, 5, 35)


async def test_a_tool_that_breaks_the_run_took_its_time_too(timed: Timed) -> None:
    async def breaks(call: OpenCall) -> ToolReturn:
        timed.clock.advance(TOOL_S)
        raise RuntimeError("the sandbox is gone")

    timed.world.tools.answers["note"] = breaks
    run = await timed.node.ask("call the note tool")
    (step,) = await timed.steps_of(run.id)
    assert (step.status, seconds(step)) == ("failed", took(30, 10, 3, 33))


async def test_a_reply_that_a_cancel_overtook_was_paid_for_and_took_its_time(timed: Timed) -> None:
    """The cancel is on record before the reply can be; the push that makes it quick is lost."""
    accepted_ids: list[str] = []

    async def cancel_on_record() -> None:
        await timed.world.database.write(lambda tx: runs.ask_cancel(tx, accepted_ids[0], timed.clock.now_us()))

    timed.catalog.before_finish = cancel_on_record
    accepted_ids.append((await timed.node.send("hello [[usage:1000,500]]")).run.id)
    await timed.node.worker.stopped(accepted_ids[0])
    (step,) = await timed.steps_of(accepted_ids[0])
    assert (step.status, seconds(step)) == ("cancelled", took(30, 10, None, 30))
    assert (step.usage.prompt_tokens, step.usage.completion_tokens, step.cost_usd) == (1000, 500, 2.0)


async def test_waiting_for_a_person_is_nobodys_time_and_the_tools_after_it_are_the_parked_steps(timed: Timed) -> None:
    run = await timed.node.ask("call the guarded tool")
    hold = await timed.world.pending()
    assert hold is not None
    timed.clock.advance(3600)
    after = await timed.node.ask(decisions=[Approve(hold.hold.asked_ids[0])])
    (parked,) = await timed.steps_of(run.id)
    (next_step,) = await timed.steps_of(after.id)
    assert (parked.stop_reason, seconds(parked)) == ("requires_approval", took(30, 10, 3, 33))
    assert seconds(next_step) == took(30, 10, None, 30)
    assert (run.total_duration_ns, after.total_duration_ns) == (30 * SECOND, 33 * SECOND)


@pytest.mark.parametrize("correction_s", [-3600.0, 3600.0], ids=["set back", "set forward"])
async def test_durations_do_not_jump_when_the_time_of_day_is_corrected_during_a_run(
    timed: Timed, correction_s: float
) -> None:
    async def correct() -> None:
        timed.clock.set_wall(correction_s)
        timed.catalog.before_finish = None

    timed.catalog.before_finish = correct
    run = await timed.node.ask("call the note tool", stream_tokens=True)
    made = await timed.steps_of(run.id)
    assert [seconds(step) for step in made] == [took(30, 10, 3, 33), took(30, 10, None, 30)]
    assert (run.total_duration_ns, run.ttft_ns) == (63 * SECOND, 10 * SECOND)
    agent = await timed.world.database.read(lambda tx: agents.get(tx, timed.world.agent_id))
    assert agent.last_run_duration_ns == 63 * SECOND
    # Each start is the time of day at which it was made: the second one by the corrected clock.
    first, second = (step.step_start_ns or 0 for step in made)
    assert (second - first) / SECOND == 33 + correction_s
    assert [step.llm_request_start_ns for step in made] == [first, second]


async def test_a_run_that_is_resumed_by_a_machine_with_an_earlier_time_of_day_has_no_negative_durations(
    timed: Timed,
) -> None:
    run_id = (await timed.node.send("call the slow tool")).run.id
    await timed.world.tools.waiting.wait()
    await timed.node.die()
    timed.clock.set_wall(-3600)
    after = Node(timed.world, catalog=timed.catalog)
    await after.take_over_all()
    await after.worker.stopped(run_id)

    run, made = await timed.world.run(run_id), await timed.steps_of(run_id)
    assert run.status == "completed"
    assert run.total_duration_ns == 30 * SECOND  # of its second model call: what came before cannot be known
    assert [seconds(step) for step in made] == [took(30, 10, None, 30)] * 2
    await after.die()


async def test_withdrawing_a_parked_call_leaves_the_times_as_they_were(timed: Timed) -> None:
    run = await timed.node.ask("call the guarded tool")
    timed.clock.advance(3600)
    await timed.node.cancel.one(run.id)
    (parked,) = await timed.steps_of(run.id)
    assert seconds(parked) == took(30, 10, None, 30)
    assert (await timed.world.run(run.id)).total_duration_ns == 30 * SECOND


async def test_a_step_that_was_tried_again_adds_its_tries_and_not_the_pause_between_them(timed: Timed) -> None:
    timed.world.retry_policy = RetryPolicy(retries=2, first_pause_s=0.001)
    node = Node(timed.world, catalog=timed.catalog)
    run = await node.ask("[[error:rate_limit]] [[error_times:1]] [[usage:1000,500]]")
    (step,) = await timed.steps_of(run.id)
    assert (step.status, seconds(step)) == ("success", took(40, 10, None, 40))
    await node.die()


async def test_what_a_step_cost_is_kept_where_the_price_is_known(timed: Timed) -> None:
    run = await timed.node.ask("call the note tool [[usage:1000,500,400,0]]")
    made = await timed.steps_of(run.id)
    assert [step.cost_usd for step in made] == pytest.approx([0.6 + 0.04 + 1.0] * 2)
    assert [step.model_endpoint for step in made] == ["http://model.example"] * 2
    spent = await timed.world.database.read(lambda tx: runs.totals(tx, run.id))
    assert spent.cost_usd == pytest.approx(3.28)
    assert spent.usage == Usage(2000, 1000, 800, None, 0)


async def test_without_a_price_or_without_a_call_there_is_no_cost(timed: Timed) -> None:
    free = Node(timed.world, catalog=TimedCatalog(timed.clock, price=None))
    unpriced = await free.ask("hello")
    timed.catalog.counts_first = False
    refused = await timed.node.ask("[[error:auth]]")
    for run_id in (unpriced.id, refused.id):
        assert [step.cost_usd for step in await timed.steps_of(run_id)] == [None]
        spent = await timed.world.database.read(partial(_spent, run_id))
        assert spent.cost_usd is None
    await free.die()


async def test_a_call_that_was_cut_off_before_the_vendor_counted_is_estimated_with_its_prompt(timed: Timed) -> None:
    timed.catalog.counts_first = False
    run_id = await timed.streaming("[[stall_after:2]]")
    await timed.cancel(run_id)
    (step,) = await timed.steps_of(run_id)
    assert step.usage.estimated
    assert step.usage.prompt_tokens > 0
    assert step.cost_usd == cost(step.usage, PRICE)


async def _spent(run_id: str, tx: Transaction) -> runs.RunTotals:
    return await runs.totals(tx, run_id)

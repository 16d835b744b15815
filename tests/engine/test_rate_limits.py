"""No provider is asked for more than its limits allow, and whoever waits for one can be told why, and stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.actions.runs.records import explain_run
from holdfast.core.rate_limits import parse_limits
from holdfast.engine.rate_limits import ProviderLimits
from holdfast.wire.run_explanation import why_view

from ..invariants import assert_invariants
from ..scenario import LONG, Node, World, eventually

HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"
LONG_S = 30.0  # that nothing here really waits for


def limited(world: World, limits: str, **options: Any) -> Node:
    return Node(world, LONG, limits=parse_limits(limits), **options)


def of_provider(node: Node) -> ProviderLimits:
    found = node.rate_limits.of("holdfast")
    assert found is not None
    return found


async def ask_many(node: Node, count: int) -> list[str]:
    threads = [await node.world.add_thread() for _ in range(count)]
    return [(await node.send(HELLO, thread=thread)).run.id for thread in threads]


async def doing(world: World, run_id: str) -> tuple[str, str | None]:
    why = why_view(await explain_run(world.database, run_id, world.clock.now_us()))
    return why["doing"], why["waiting_for"]


async def made(node: Node, count: int) -> list[float]:
    """When each of so many calls, all wanted at once, may be made."""
    limits, now = of_provider(node), asyncio.get_running_loop().time

    async def call() -> float:
        await limits.admit(1, None)
        return now()

    return sorted(await asyncio.gather(*(call() for _ in range(count))))


@pytest.mark.slow
async def test_calls_beyond_the_limit_wait_for_their_turn(world: World) -> None:
    node = limited(world, "holdfast=10/s")
    moments = await made(node, 14)
    assert moments[13] - moments[0] >= 0.39, "ten at once, and one more each tenth of a second"
    limits = of_provider(node)
    assert (limits.waiting, limits.refused, limits.waits) == (0, 0, 4)
    assert limits.waited_s >= 0.9


@pytest.mark.slow
async def test_processes_share_a_limit(world: World) -> None:
    one, two = limited(world, "holdfast=10/s"), limited(world, "holdfast=10/s")
    moments = sorted([moment for some in await asyncio.gather(made(one, 10), made(two, 10)) for moment in some])
    # Each may have taken two for calls that did not come.
    assert moments[19] - moments[0] >= 0.9


@pytest.mark.slow
async def test_runs_wait_for_their_calls_too(world: World) -> None:
    node = limited(world, "holdfast=2/s")
    begun = await ask_many(node, 4)
    await node.settled()
    assert [(await world.run(run_id)).stop_reason for run_id in begun] == ["end_turn"] * 4
    await assert_invariants(world.database, idle=True)


async def test_not_every_call_asks_the_database(world: World) -> None:
    node = limited(world, "holdfast=500/s")
    limits = of_provider(node)
    before = node.database.writes
    for _ in range(200):
        await limits.admit(1, None)
    assert node.database.writes - before <= 3


async def test_a_provider_without_a_limit_costs_nothing(world: World) -> None:
    node = limited(world, "acme=1/day")
    assert node.rate_limits.of("holdfast") is None
    before = node.database.writes
    assert (await node.ask(HELLO)).stop_reason == "end_turn"
    unlimited = world.node()
    writes = node.database.writes - before
    assert (await unlimited.ask(HELLO)).stop_reason == "end_turn"
    assert unlimited.database.writes == writes


async def test_whoever_waits_is_told_what_for_by_any_process(world: World) -> None:
    node = limited(world, "holdfast=2/min")
    waiting = await who_waits(world, await ask_many(node, 3))
    says, waits_for = await doing(world, waiting)
    assert says.startswith("Waits for the rate limit of provider holdfast, about ")
    assert 20 < float(says.split()[-2]) <= 30
    assert waits_for == "the rate limit of provider holdfast"
    await node.die()


async def who_waits(world: World, run_ids: list[str]) -> str:
    """The one of these runs that is the first to be held back."""
    for _ in range(3_000):
        for run_id in run_ids:
            if "rate limit" in (await doing(world, run_id))[0]:
                return run_id
        await asyncio.sleep(0.01)  # a record, of which no event tells
    raise AssertionError("none of them waits")


async def test_a_cancel_ends_the_wait_at_once_and_the_next_has_its_turn(world: World) -> None:
    node = limited(world, "holdfast=2/min")
    limits = of_provider(node)
    waiting = await who_waits(world, await ask_many(node, 3))
    await eventually(lambda: limits.waiting == 1)
    async with asyncio.timeout(LONG_S / 2):
        assert await node.cancel.one(waiting) == "cancelled"
    assert limits.waiting == 0
    next_one = await who_waits(world, await ask_many(node, 1))
    says, _ = await doing(world, next_one)
    assert float(says.split()[-2]) <= 30, "and not a minute: the turn that was left is used"
    await node.cancel.one(next_one)
    await node.settled()
    await assert_invariants(world.database, idle=True)


async def test_a_call_that_would_wait_too_long_fails_and_says_which_limit_it_was(world: World) -> None:
    node = limited(world, "holdfast=1/hour", longest_wait_s=1.0)
    assert (await node.ask(HELLO)).stop_reason == "end_turn"
    run = await node.ask(HELLO)
    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    error = run.metadata["error"]
    assert (error["error_type"], error["http_status"]) == ("llm_rate_limit", 429)
    assert "HOLDFAST_PROVIDER_LIMITS" in error["detail"]
    assert "The provider asks" not in error["detail"]
    assert 3_500 < error["retry_after"] <= 3_600
    limits = of_provider(node)
    assert limits.refused == 1


async def test_tokens_are_counted_as_the_vendor_counts_them(world: World) -> None:
    node = limited(world, "holdfast=100000 tokens/hour", longest_wait_s=0.0)
    assert (await node.ask(f"{HELLO} [[usage:99000,1000]]")).stop_reason == "end_turn"
    run = await node.ask(HELLO)
    assert run.status == "failed", "the bucket is empty, although a guess would have left much of it"
    assert "100000 tokens" in run.metadata["error"]["detail"]


async def test_a_call_larger_than_the_bucket_is_made_when_it_is_full(world: World) -> None:
    node = limited(world, "holdfast=10 tokens/hour", longest_wait_s=0.0)
    assert (await node.ask(HELLO)).stop_reason == "end_turn"
    assert (await node.ask(HELLO)).status == "failed"


@pytest.mark.slow
async def test_what_a_dead_process_had_taken_is_not_missed_for_long(world: World) -> None:
    first = limited(world, "holdfast=4/s")
    await ask_many(first, 8)
    await first.die()
    second = limited(world, "holdfast=4/s")
    async with asyncio.timeout(LONG_S):
        assert (await second.ask(HELLO, thread=await world.add_thread())).stop_reason == "end_turn"


@pytest.mark.slow
async def test_a_run_that_waits_while_the_database_is_away_goes_on_when_it_is_back(world: World) -> None:
    node = limited(world, "holdfast=100/s")
    node.database.lose_write(2, "before")  # the acceptance is the first
    run = await node.ask(HELLO)
    assert node.database.lost == 1
    assert run.stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)

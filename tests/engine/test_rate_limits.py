"""No provider is asked for more than its limits allow, and whoever waits for one can be told why, and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from holdfast.actions.runs.records import explain_run
from holdfast.core.deltas import Delta
from holdfast.core.rate_limits import Limit, parse_limits
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.wire.run_explanation import why_view

from ..invariants import assert_invariants
from ..scenario import LONG, Node, World, eventually

HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"
PROVIDER = "holdfast"
LONG_S = 30.0  # that nothing here really waits for


class NotingCatalog(ModelCatalog):
    """Notes when the model is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def open(self, info: ModelInfo) -> Model:
        return _Noting(super().open(info), self.asked)


class _Noting:
    def __init__(self, inner: Model, asked: list[float]) -> None:
        self._inner = inner
        self._asked = asked

    def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        self._asked.append(asyncio.get_running_loop().time())
        return self._inner.stream(request)

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)


def limited(world: World, limits: str | Sequence[Limit], **options: Any) -> Node:
    parsed = parse_limits(limits) if isinstance(limits, str) else limits
    return Node(world, LONG, limits=parsed, **options)


async def ask_many(node: Node, count: int) -> list[str]:
    threads = [await node.world.add_thread() for _ in range(count)]
    return [(await node.send(HELLO, thread=thread)).run.id for thread in threads]


async def doing(world: World, run_id: str) -> tuple[str, str | None]:
    why = why_view(await explain_run(world.database, run_id, world.clock.now_us()))
    return why["doing"], why["waiting_for"]


async def test_calls_beyond_the_limit_wait_for_their_turn(world: World) -> None:
    catalog = NotingCatalog()
    node = limited(world, "holdfast=10/s", catalog=catalog)
    await ask_many(node, 14)
    await node.settled()
    asked = sorted(catalog.asked)
    assert len(asked) == 14
    assert asked[10] - asked[0] >= 0.09, "the bucket held ten"
    assert asked[13] - asked[0] >= 0.39, "and was refilled by one each tenth of a second"
    limits = node.rate_limits.of(PROVIDER)
    assert limits is not None
    assert (limits.waiting, limits.refused) == (0, 0)
    assert limits.waits >= 4
    assert limits.waited_s > 0
    await assert_invariants(world.database, idle=True)


async def test_processes_share_a_limit(world: World) -> None:
    catalogs = [NotingCatalog(), NotingCatalog()]
    nodes = [limited(world, "holdfast=10/s", catalog=catalog) for catalog in catalogs]
    for node in nodes:
        await ask_many(node, 7)
    for node in nodes:
        await node.settled()
    asked = sorted(moment for catalog in catalogs for moment in catalog.asked)
    assert len(asked) == 14
    # Each may have taken two for calls that did not come.
    assert asked[13] - asked[0] >= 0.19


async def test_not_every_call_asks_the_database(world: World) -> None:
    node = limited(world, "holdfast=500/s")
    limits = node.rate_limits.of(PROVIDER)
    assert limits is not None
    before = node.database.writes
    for _ in range(200):
        await limits.admit(1, None)
    assert node.database.writes - before <= 3


async def test_a_provider_without_a_limit_costs_nothing(world: World) -> None:
    node = limited(world, "acme=1/day")
    assert node.rate_limits.of(PROVIDER) is None
    before = node.database.writes
    assert (await node.ask(HELLO)).stop_reason == "end_turn"
    unlimited = world.node()
    writes = node.database.writes - before
    assert (await unlimited.ask(HELLO)).stop_reason == "end_turn"
    assert unlimited.database.writes == writes


async def test_whoever_waits_is_told_what_for_by_any_process(world: World) -> None:
    node = limited(world, "holdfast=2/min")
    *_, waiting = await ask_many(node, 3)
    await eventually_says(world, waiting, "rate limit")
    says, waits_for = await doing(world, waiting)
    assert says.startswith("Waits for the rate limit of provider holdfast, about ")
    assert 20 < float(says.split()[-2]) <= 30
    assert waits_for == "the rate limit of provider holdfast"
    await node.die()


async def eventually_says(world: World, run_id: str, text: str) -> None:
    for _ in range(3_000):
        if text in (await doing(world, run_id))[0]:
            return
        await asyncio.sleep(0.01)  # a record, of which no event tells
    raise AssertionError(f"it never said {text}")


async def test_a_cancel_ends_the_wait_at_once_and_the_next_has_its_turn(world: World) -> None:
    node = limited(world, "holdfast=2/min")
    *_, waiting = await ask_many(node, 3)
    limits = node.rate_limits.of(PROVIDER)
    assert limits is not None
    await eventually(lambda: limits.waiting == 1)
    await eventually_says(world, waiting, "rate limit")
    async with asyncio.timeout(LONG_S / 2):
        assert await node.cancel.one(waiting) == "cancelled"
    assert limits.waiting == 0
    (next_one,) = await ask_many(node, 1)
    await eventually_says(world, next_one, "rate limit")
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
    limits = node.rate_limits.of(PROVIDER)
    assert limits is not None
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


async def test_what_a_dead_process_had_taken_is_not_missed_for_long(world: World) -> None:
    first = limited(world, "holdfast=4/s")
    await ask_many(first, 8)
    await first.die()
    second = limited(world, "holdfast=4/s")
    async with asyncio.timeout(LONG_S):
        assert (await second.ask(HELLO, thread=await world.add_thread())).stop_reason == "end_turn"


async def test_a_run_that_waits_while_the_database_is_away_goes_on_when_it_is_back(world: World) -> None:
    node = limited(world, "holdfast=100/s")
    node.database.lose_write(2, "before")  # the acceptance is the first
    run = await node.ask(HELLO)
    assert node.database.lost == 1
    assert run.stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)

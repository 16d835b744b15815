"""A model call that fails in passing: tried again, in sight of everybody, and never in anybody's way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from holdfast.actions.messages.send import Accepted
from holdfast.core.events import ModelFailed
from holdfast.core.failures import RetryPolicy
from holdfast.core.frames import AbandonedFrame, ErrorFrame, Frame, RetryFrame, TextFrame, UsageFrame
from holdfast.core.messages import text_of
from holdfast.core.usage import Usage

from ..invariants import Snapshot, assert_invariants
from ..scenario import HASTY, RULES, Node, World, stop_of
from .timed import HandClock

CANCEL_S = 30.0  # half of what would be waited for
ONCE = "[[error_times:1]]"
LEFT_S = 0.2


@pytest.fixture
async def node(world: World) -> AsyncIterator[Node]:
    world.retry_policy = HASTY
    made = world.node()
    yield made
    await made.die()


def failures(snapshot: Snapshot, run_id: str) -> list[ModelFailed]:
    return [event for event in snapshot.journals[run_id] if isinstance(event, ModelFailed)]


def retries(frames: list[Frame]) -> list[RetryFrame]:
    return [frame for frame in frames if isinstance(frame, RetryFrame)]


async def first_retry(accepted: Accepted) -> RetryFrame:
    """What listeners are told once it is on record that there will be another try."""
    assert accepted.stream is not None
    async with asyncio.timeout(CANCEL_S):
        async for batch in accepted.stream.follow():
            for frame in retries([frame for _, frame in batch]):
                return frame
    raise AssertionError("the run ended without another try")


async def die_waiting(world: World, node: Node, text: str) -> str:
    """The run, whose worker did not outlive the write that says when there will be another try."""
    node.database.crash_at(3, "after")  # accepted, begun, failed
    accepted = await node.send(text, background=True)
    await node.settled()
    assert node.database.dead
    snapshot = await assert_invariants(world.database)
    assert [failed.retry_in_ms for failed in failures(snapshot, accepted.run.id)] == [20]
    return accepted.run.id


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("trouble", ["[[error:rate_limit]]", "[[error:overloaded]]", "[[error:server]]", "[[cut:3]]"])
async def test_a_failure_in_passing_leaves_nothing_but_its_trace(
    world: World, node: Node, trouble: str, tokens: bool, background: bool
) -> None:
    accepted = await node.send(f"hello {trouble}{ONCE}", stream_tokens=tokens, background=background)
    frames = await node.told(accepted)
    snapshot = await assert_invariants(world.database, idle=True)
    run = snapshot.runs[accepted.run.id]
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    assert [row.role for row in await world.window()] == ["system", "user", "assistant"]
    assert [failed.retry_in_ms is not None for failed in failures(snapshot, run.id)] == [True]
    (step,) = snapshot.steps.values()
    assert (step.status, step.number, step.error_type) == ("success", 1, None)
    (told,) = retries(frames)
    assert (told.attempt, told.max_attempts, told.step_id) == (2, 4, step.id)
    assert isinstance(frames[-1], UsageFrame)
    assert frames[-1].step_count == 1


async def test_what_a_failed_try_had_shown_is_disowned_and_never_repeated_under_its_id(
    world: World, node: Node
) -> None:
    text = f"[[no_reasoning]][[say:one two three]][[cut:2]]{ONCE}"
    accepted = await node.send(text, stream_tokens=True, background=True)
    told = await first_retry(accepted)
    await node.worker.stopped(accepted.run.id)
    snapshot = await assert_invariants(world.database, idle=True)
    (answer,) = [row for row in await world.window() if row.role == "assistant"]
    assert text_of(answer.parts) == "one two three"
    stored = [frame for _, frame in snapshot.frames[accepted.run.id]]
    (abandoned,) = [frame.message_id for frame in stored if isinstance(frame, AbandonedFrame)]
    assert told.abandoned_ids == (abandoned,)
    assert abandoned != answer.id
    shown = [frame for _, frame in await node.replay(accepted.run.id)]
    assert {frame.message_id for frame in shown if isinstance(frame, TextFrame)} == {answer.id}
    assert len(retries(shown)) == 1, "a replay tells that there was another try"


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_model_that_keeps_failing_fails_the_run_after_the_last_try(
    world: World, node: Node, tokens: bool
) -> None:
    accepted = await node.send("hello [[error:rate_limit]]", stream_tokens=tokens)
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason) == ("failed", "llm_api_error")
    assert run.metadata["error"]["error_type"] == "llm_rate_limit"
    snapshot = await assert_invariants(world.database, idle=True)
    assert [failed.retry_in_ms is None for failed in failures(snapshot, run.id)] == [False, False, False, True]
    assert [frame.attempt for frame in retries(frames)] == [2, 3, 4]
    assert isinstance(frames[-1], ErrorFrame)
    (step,) = snapshot.steps.values()
    assert (step.status, step.error_type) == ("failed", "RateLimited")


@pytest.mark.parametrize("kind", ["auth", "quota", "bad_request", "timeout", "malformed", "empty", "runtime"])
async def test_what_another_try_would_not_mend_is_not_tried_again(world: World, node: Node, kind: str) -> None:
    accepted = await node.send(f"hello [[error:{kind}]]{ONCE}")
    frames = await node.told(accepted)
    assert retries(frames) == []
    assert (await world.run(accepted.run.id)).status == "failed"


async def test_the_second_model_call_has_tries_of_its_own(world: World, node: Node) -> None:
    run = await node.ask("call the note tool [[error:server@2]][[error_times:3]]")
    assert run.stop_reason == "end_turn"
    snapshot = await assert_invariants(world.database, idle=True)
    assert [(step.number, step.status) for step in snapshot.steps.values()] == [(1, "success"), (2, "success")]
    assert sum(world.tools.begun.values()) == 1


async def test_a_vendor_that_names_a_time_is_waited_for(world: World, node: Node) -> None:
    accepted = await node.send(f"hello [[error:overloaded]][[retry_after:0.02]]{ONCE}")
    (told,) = retries(await node.told(accepted))
    assert told.retry_in_ms == 20
    assert "OVERLOADED" in told.message


async def test_a_vendor_that_names_a_long_time_is_told_of_instead(world: World, node: Node) -> None:
    run = await node.ask("hello [[error:rate_limit]][[message:slow down]][[retry_after:3600]]")
    assert run.status == "failed"
    assert run.metadata["error"]["detail"].endswith(". The provider asks to wait 3600 s before another try.")
    snapshot = await assert_invariants(world.database, idle=True)
    assert len(failures(snapshot, run.id)) == 1


@pytest.mark.parametrize("tokens", [False, True])
async def test_a_cancel_ends_the_wait_at_once(world: World, node: Node, tokens: bool) -> None:
    text = "[[no_reasoning]][[tokens:8]][[error:server]][[error_after:4]][[retry_after:60]]"
    accepted = await node.send(text, background=True, stream_tokens=tokens)
    assert (await first_retry(accepted)).retry_in_ms == 60_000
    async with asyncio.timeout(CANCEL_S):
        assert await node.cancel.one(accepted.run.id) == "cancelled"
        await node.worker.stopped(accepted.run.id)
    snapshot = await assert_invariants(world.database, idle=True)
    (step,) = snapshot.steps.values()
    assert (step.status, step.stop_reason) == ("cancelled", "cancelled")
    assert [row.role for row in await world.window()] == ["system", "user"]


async def test_a_server_that_stops_hands_a_waiting_run_over(world: World, node: Node) -> None:
    accepted = await node.send("hello [[error:server]][[retry_after:60]]", background=True)
    await first_retry(accepted)
    async with asyncio.timeout(CANCEL_S):
        await node.worker.drain()
    run = await world.run(accepted.run.id)
    assert (run.status, run.lease_owner) == ("running", None)
    after = world.node()
    assert await after.cancel.one(accepted.run.id) == "cancelled"
    await after.die()


async def test_a_run_whose_worker_died_while_it_waited_goes_on_with_the_same_try(world: World, node: Node) -> None:
    run_id = await die_waiting(world, node, f"hello [[error:server]][[retry_after:0.02]]{ONCE}")
    after = world.node()
    await after.take_over_all()
    await after.worker.stopped(run_id)
    snapshot = await assert_invariants(world.database, idle=True)
    assert snapshot.runs[run_id].stop_reason == "end_turn"
    stored = [frame for _, frame in snapshot.frames[run_id]]
    assert [frame.attempt for frame in retries(stored)] == [2, 3], "this worker's model fails once as well"
    assert len(snapshot.steps) == 1


async def test_whoever_takes_a_waiting_run_over_waits_only_for_what_is_left(world: World) -> None:
    world.retry_policy, world.clock = HASTY, (clock := HandClock())
    before = world.node()
    accepted = await before.send(f"hello [[error:server]][[retry_after:60]]{ONCE}", background=True)
    await first_retry(accepted)
    await before.die()
    clock.advance(60 - LEFT_S)
    after = Node(world, catalog=before.catalog)  # the same model, which has failed already
    started = time.monotonic()
    await after.take_over_all()
    async with asyncio.timeout(CANCEL_S):
        await after.worker.stopped(accepted.run.id)
    assert time.monotonic() - started >= LEFT_S
    snapshot = await assert_invariants(world.database, idle=True)
    assert snapshot.runs[accepted.run.id].stop_reason == "end_turn"
    assert len(failures(snapshot, accepted.run.id)) == 1


async def test_a_pause_that_is_over_when_the_run_is_taken_over_is_not_waited_for(world: World) -> None:
    world.retry_policy, world.clock = HASTY, (clock := HandClock())
    before = world.node()
    accepted = await before.send(f"hello [[error:server]][[retry_after:60]]{ONCE}", background=True)
    await first_retry(accepted)
    await before.worker.drain()
    clock.advance(3600)
    after = Node(world, catalog=before.catalog)
    await after.take_over_all()
    async with asyncio.timeout(CANCEL_S):
        await after.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"


async def test_a_run_keeps_the_number_of_tries_it_was_told_whatever_the_settings_say_later(
    world: World, node: Node
) -> None:
    run_id = await die_waiting(world, node, "hello [[error:server]][[retry_after:0.02]]")
    world.retry_policy = RetryPolicy(retries=0)
    after = world.node()
    await after.take_over_all()
    await after.worker.stopped(run_id)
    snapshot = await assert_invariants(world.database, idle=True)
    assert len(failures(snapshot, run_id)) == 4


async def test_what_a_failed_try_cost_is_paid_for_with_its_step(world: World, node: Node) -> None:
    accepted = await node.send(f"hello [[error:server]][[usage:100,10]]{ONCE}")
    frames = await node.told(accepted)
    snapshot = await assert_invariants(world.database, idle=True)
    (step,) = snapshot.steps.values()
    assert (step.usage.prompt_tokens, step.usage.completion_tokens) == (200, 20)
    last = frames[-1]
    assert isinstance(last, UsageFrame)
    assert (last.usage.total_tokens, last.context_tokens) == (220, 110)


async def test_a_failed_try_that_did_not_say_what_it_cost_counts_for_nothing(world: World, node: Node) -> None:
    run = await node.ask(f"hello [[error:server]][[error_after:2]]{ONCE}")
    snapshot = await assert_invariants(world.database, idle=True)
    (failed,) = failures(snapshot, run.id)
    assert failed.usage == Usage()


async def test_a_model_that_is_gone_fails_the_step_as_the_vendor_would(world: World, node: Node) -> None:
    await world.change_rules(RULES, handle="holdfast/gone")
    accepted = await node.send("hello")
    frames = await node.told(accepted)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason, stop_of(frames)) == ("failed", "llm_api_error", "llm_api_error")
    assert run.metadata["error"]["error_type"] == "llm_error"
    assert "holdfast/gone" in run.metadata["error"]["detail"]
    snapshot = await assert_invariants(world.database, idle=True)
    (step,) = snapshot.steps.values()
    assert (step.status, step.error_type) == ("failed", "Rejected")


async def test_a_reply_of_nothing_that_nobody_counted_is_a_failure(world: World, node: Node) -> None:
    run = await node.ask("[[empty]][[usage:9,0]]")
    assert (run.status, run.stop_reason) == ("failed", "invalid_llm_response")
    assert run.metadata["error"]["error_type"] == "llm_empty_response"
    assert run.metadata["error"]["message"] == "LLM returned an empty response."

"""A model's reply without bounds ends its run, not the server; and many calls in one reply are carried out."""

from __future__ import annotations

import pytest

from holdfast.core.deltas import MAX_CALLS

from ..scenario import Node, World


@pytest.mark.parametrize("stream_tokens", [False, True])
async def test_a_reply_of_too_many_calls_runs_none_of_them_and_stores_none(
    world: World, node: Node, stream_tokens: bool
) -> None:
    calls = "[[call:slow_lookup {}]]" * (MAX_CALLS + 1)
    run = await node.ask(f"[[parallel]]{calls}", stream_tokens=stream_tokens)
    assert (run.status, run.stop_reason) == ("failed", "invalid_llm_response")
    assert "more than 256 tool calls" in str(run.metadata)
    assert not world.tools.begun
    assert [row.role for row in await world.window()] == ["system", "user"]
    after = await node.ask("hello")
    assert after.stop_reason == "end_turn"


async def test_as_many_calls_as_a_reply_may_make_all_return_in_their_order(world: World, node: Node) -> None:
    world.tools.let_go.set()
    run = await node.ask("[[parallel]]" + "[[call:slow_lookup {}]]" * MAX_CALLS, max_steps=1)
    assert run.stop_reason == "max_steps"
    window = await world.window()
    called, answered = next(row for row in window if row.calls), next(row for row in window if row.returns)
    assert len(called.calls) == MAX_CALLS
    assert [each.call_id for each in answered.returns] == [each.id for each in called.calls]

"""When the model fails in passing: tried again where everybody can see it, and the answer is the same."""

from __future__ import annotations

import time

import pytest
from letta_client import AsyncLetta

from tests.conformance.checks import check_at_rest, check_told_is_stored, read_run, rows, steps_of
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import STREAMS, Json, Mode, Outcome, begin, in_modes, is_retry, newest_run, send

ONCE = "[[error_times:1]]"
LONGER = "[[retry_after:45]]"


def retries(outcome: Outcome) -> list[Json]:
    return [event for event in outcome.events if is_retry(event)]


@in_modes("BSTGA", adapters="T")
@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server"])
async def test_a_failure_in_passing_is_told_in_streams_and_nowhere_else(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, kind: str
) -> None:
    agent = await make_agent("print_tool")

    said = f"{mode} {kind}: call print_tool with 'x' [[error:{kind}@2]] {ONCE} [[message:TEST: in passing]]"
    told = await send(client, mode, agent, said)

    assert told.stop_reason == "end_turn"
    assert "event_message" not in told.types
    assert [step["status"] for step in await steps_of(client, told.run_id)] == ["success", "success"]
    assert "event_message" not in await rows(client, agent)
    assert len(retries(told)) == (mode in STREAMS)
    for event in retries(told):
        data = event["event_data"]
        assert (data["attempt"], data["max_attempts"], data["abandoned_message_ids"]) == (2, 4, [])
        assert "TEST: in passing" in data["message"]
        assert data["error_type"] == ("llm_rate_limit" if kind == "rate_limit" else "llm_error")
        assert 0 < data["retry_in_ms"] <= 10
        assert event["run_id"] == told.run_id
        assert event["step_id"] == (await steps_of(client, told.run_id))[1]["id"]
    await check_told_is_stored(client, agent, told)
    await check_at_rest(client, agent)


@in_modes("TG", adapters="T")
async def test_what_a_try_had_said_before_it_broke_off_is_taken_back(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    said = f"{mode} [[no_reasoning]] [[say:one two three four]] [[delay:0.02]] [[cut:2]] {ONCE}"
    told = await send(client, mode, agent, said)

    assert told.text == "one two three four"
    (event,) = retries(told)
    spoken = [each for each in told.events if each["message_type"] == "assistant_message"]
    before = [each for each in spoken if each["id"] in event["event_data"]["abandoned_message_ids"]]
    assert "".join(each["content"] for each in before) == "one two"
    assert {each["id"] for each in spoken if each not in before} == {told.last["id"]}
    assert await rows(client, agent) == ["user_message", "assistant_message"]
    await check_told_is_stored(client, agent, told)


@in_modes("STG")
async def test_a_reader_of_few_types_is_told_of_retries_all_the_same(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    said = f"{mode} hello [[error:server]] {ONCE}"
    told = await send(client, mode, agent, said, include_return_message_types=["assistant_message"])

    assert told.types == ["assistant_message"]
    assert len(retries(told)) == 1


@in_modes("BSTGA", adapters="T")
async def test_a_cancel_does_not_wait_for_the_next_try(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make_agent()
    turn = begin(client, mode, agent, f"Hello [[error:overloaded]] {LONGER}")
    if mode in STREAMS:
        await turn.until(is_retry)
    else:
        await newest_run(client, agent, active=True)

    began = time.monotonic()
    run_id = (await newest_run(client, agent))["id"]
    assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}
    cancelled = await turn.outcome()

    assert time.monotonic() - began < 30
    assert cancelled.stop_reason == "cancelled"
    assert (await read_run(client, run_id))["status"] == "cancelled"
    assert [step["status"] for step in await steps_of(client, run_id)] == ["cancelled"]
    await check_at_rest(client, agent)


@in_modes("BSTGA", adapters="T")
async def test_a_vendor_that_asks_for_an_hour_is_not_waited_for(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    failed = await send(client, mode, await make_agent(), "Hello [[error:rate_limit]] [[retry_after:3600]]")

    assert failed.stop_reason == "llm_api_error"
    assert "The provider asks to wait 3600 s before another try." in failed.error_text
    assert retries(failed) == []

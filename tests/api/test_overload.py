"""A server with too much to do says so and when to come again, and clients that come again are served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.rate_limits import parse_limits

from ..exposition import parsed
from ..scenario import eventually
from ..served import ServedClient, served

HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"
BUSY = "[[stall]]"


def in_background(client: ServedClient, agent_id: str, text: str) -> Any:
    return client.agents.messages.create_async(agent_id, messages=[{"role": "user", "content": text}])


async def refused(client: ServedClient, reason: str) -> int:
    found = parsed((await client.http.get("/metrics")).text)
    return int(found[f'holdfast_requests_refused_total{{process="0",reason="{reason}"}}'])


@pytest.mark.slow
async def test_a_full_queue_is_a_503_until_there_is_room_and_the_client_waits_for_it(tmp_path: Path) -> None:
    async with served(tmp_path, max_runs=1, max_waiting_runs=1) as client:
        driven, waiting, late = [await client.agent() for _ in range(3)]
        run = await in_background(client, driven.id, BUSY)
        await in_background(client, waiting.id, HELLO)
        body = {"messages": [{"role": "user", "content": HELLO}]}
        answer = await client.http.post(f"/v1/agents/{late.id}/messages/async", json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert "x-should-retry" not in answer.headers
        assert "1 background runs wait" in answer.json()["detail"]
        kept = await client.ask("GET", f"/v1/agents/{late.id}/messages")
        assert [message["message_type"] for message in kept] == ["system_message"]
        patient = client.with_options(max_retries=2)
        sending = asyncio.create_task(in_background(patient, late.id, HELLO))
        await eventually(lambda: client.deps.metrics._admission.refused["queue"] == 2)
        await client.agents.messages.cancel(driven.id, run_ids=[run.id])
        accepted = await sending
        assert (await client.deps.reader.until_stopped(accepted.id)).stop_reason == "end_turn"
        assert await refused(client, "queue") >= 2


@pytest.mark.slow
async def test_too_many_who_wait_are_a_503_until_one_has_its_answer(tmp_path: Path) -> None:
    async with served(tmp_path, max_foreground_runs=1) as client:
        busy, other = await client.agent(), await client.agent()
        stalling = asyncio.create_task(client.say(busy.id, BUSY))
        await client.model_asked()
        answer = await client.http.post(f"/v1/agents/{other.id}/messages", json={"input": HELLO})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["detail"].startswith("The server answers 1 requests at once")
        answer = await client.http.post(f"/v1/agents/{other.id}/messages/stream", json={"input": HELLO})
        assert answer.status_code == 503, "not a stream that begins and breaks off"
        patient = client.with_options(max_retries=2)
        sending = asyncio.create_task(patient.agents.messages.create(other.id, input=HELLO))
        await eventually(lambda: client.deps.metrics._admission.refused["foreground"] == 3)
        await client.agents.messages.cancel(busy.id)
        await stalling
        assert (await sending).stop_reason.stop_reason == "end_turn"
        assert await refused(client, "foreground") >= 3


async def test_a_run_that_another_run_waits_for_is_not_refused(tmp_path: Path) -> None:
    ask = "send_message_to_agent_and_wait_for_reply"
    async with served(tmp_path, max_foreground_runs=1) as client:
        asked = await client.agent()
        asking = await client.agent(tools=[ask])
        arguments = f'{{"message": "What is it?", "other_agent_id": "{asked.id}"}}'
        answer = await client.say(asking.id, f"Call {ask} with {arguments}")
        returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
        assert returned.status == "success", returned.tool_return
        assert await refused(client, "foreground") == 0


async def test_a_limit_of_a_provider_that_is_used_up_is_a_429_that_says_when_to_come_again(tmp_path: Path) -> None:
    limits = parse_limits("holdfast=1/hour")
    async with served(tmp_path, provider_limits=limits, provider_wait_s=0.0) as client:
        agent = await client.agent()
        await client.say(agent.id, HELLO)
        answer = await client.http.post(f"/v1/agents/{agent.id}/messages", json={"input": HELLO})
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "llm_rate_limit"
        assert 3_500 < int(answer.headers["retry-after"]) <= 3_600
        found = parsed((await client.http.get("/metrics")).text)
        assert found['holdfast_rate_limit_refused_total{process="0",provider="holdfast"}'] == 1
        assert found['holdfast_rate_limit_waiting{process="0",provider="holdfast"}'] == 0

"""A callback tells that an asynchronous run is over: once, whatever ended it."""

from __future__ import annotations

from typing import Any

import pytest
from letta_client import AsyncLetta, BadRequestError

from tests.conformance.checks import check_at_rest, check_next_message_works, read_run
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, ended_run, eventually
from tests.conformance.receiver import Receiver


async def begin_async(client: AsyncLetta, agent: str, said: str, url: str) -> str:
    messages: Any = [{"role": "user", "content": said}]
    run = await client.agents.messages.create_async(agent_id=agent, messages=messages, callback_url=url)
    assert run.background
    assert run.callback_url == url
    return run.id


async def told_run(client: AsyncLetta, run_id: str, **wanted: Any) -> Json:
    """The run, once its callback has gone the way that is wanted."""

    async def look() -> Json | None:
        run = await read_run(client, run_id)
        if run["callback_sent_at"] is None:
            return None
        return run if all(run[name] == value for name, value in wanted.items()) else None

    return await eventually(look, f"the callback of {run_id} did not come to {wanted}")


async def test_a22_the_callback_comes_once_and_brings_the_result(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent("print_tool")

    run_id = await begin_async(client, agent, "Call print_tool with 'x'", receiver.url)

    told = await receiver.one_json()
    assert told["run_id"] == run_id
    assert told["status"] == "completed"
    assert told["completed_at"].count(":") == 2
    assert not told["completed_at"].endswith("Z")
    assert told["metadata"]["run_type"] == "send_message_async"
    result = told["metadata"]["result"]
    assert result["stop_reason"]["stop_reason"] == "end_turn"
    assert result["usage"]["step_count"] == 2
    listed = await client.runs.messages.list(run_id=run_id)
    assert [message["id"] for message in result["messages"]] == [message.id for message in listed.items]
    assert result["messages"][0]["message_type"] == "user_message"
    run = await told_run(client, run_id, callback_status_code=200)
    assert run["callback_error"] is None
    assert run["callback_sent_at"] >= run["completed_at"]
    await check_next_message_works(client, agent)
    assert len(receiver.received) == 1


async def test_a22_there_is_no_callback_before_the_end_and_a_cancel_is_one(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent()
    run_id = await begin_async(client, agent, "Wait [[stall]]", receiver.url)
    assert (await read_run(client, run_id))["callback_sent_at"] is None
    assert receiver.received == []

    assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}

    told = await receiver.one_json()
    assert told["status"] == "cancelled"
    assert told["metadata"]["result"]["stop_reason"]["stop_reason"] == "cancelled"
    await told_run(client, run_id, callback_status_code=200)
    await check_next_message_works(client, agent)
    assert len(receiver.received) == 1


async def test_a22_a_failed_run_calls_back_with_its_error(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent()

    await begin_async(client, agent, "Hello [[error:rate_limit]]", receiver.url)

    told = await receiver.one_json()
    assert told["status"] == "failed"
    assert told["metadata"]["error"]["error_type"] == "llm_rate_limit"
    assert told["metadata"]["result"]["stop_reason"]["stop_reason"] == "llm_api_error"
    await check_at_rest(client, agent)


async def test_a22_a_pause_calls_back_and_cancelling_it_does_not_call_again(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent("bash_tool")
    run_id = await begin_async(client, agent, "Call bash_tool with 'ls'", receiver.url)
    told = await receiver.one_json()
    assert told["metadata"]["result"]["stop_reason"]["stop_reason"] == "requires_approval"
    assert told["metadata"]["result"]["messages"][-1]["message_type"] == "approval_request_message"
    await told_run(client, run_id, callback_status_code=200)

    assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}

    await check_next_message_works(client, agent)
    assert (await read_run(client, run_id))["status"] == "cancelled"
    assert len(receiver.received) == 1


async def test_a22_a_refusal_is_recorded_does_not_touch_the_run_and_is_tried_again(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent()
    receiver.status = 503

    run_id = await begin_async(client, agent, "Hello", receiver.url)

    run = await told_run(client, run_id, callback_status_code=503)
    assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
    receiver.status = 204
    again = await told_run(client, run_id, callback_status_code=204)
    assert again["callback_sent_at"] > run["callback_sent_at"]
    first, second = await receiver.until(2)
    assert first == second
    await check_next_message_works(client, agent)


async def test_a22_a_receiver_that_never_answers_is_given_up_on(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent()
    receiver.deaf = True

    run_id = await begin_async(client, agent, "Hello", receiver.url)
    await receiver.until(1)
    assert (await ended_run(client, run_id))["status"] == "completed"
    await check_next_message_works(client, agent)

    run = await told_run(client, run_id)
    assert run["callback_status_code"] is None
    assert "No answer within 5 seconds" in run["callback_error"]
    receiver.deaf = False


async def test_a22_a_callback_may_not_reach_into_a_private_network(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()

    with pytest.raises(BadRequestError, match="HOLDFAST_ALLOWED_HOSTS"):
        await begin_async(client, agent, "Hello", "http://10.11.12.13/hook")

    assert (await client.runs.list(agent_id=agent)).items == []


async def test_a22_only_the_wanted_message_types_are_brought(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent()
    messages: Any = [{"role": "user", "content": "Hello"}]

    await client.agents.messages.create_async(
        agent_id=agent,
        messages=messages,
        callback_url=receiver.url,
        include_return_message_types=["assistant_message"],
    )

    told = await receiver.one_json()
    assert [each["message_type"] for each in told["metadata"]["result"]["messages"]] == ["assistant_message"]

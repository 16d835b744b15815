"""Streams as a log: read again, asked for twice, shared by readers, left by readers."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.clients import AS_1X
from tests.conformance.checks import check_at_rest, check_next_message_works, read_run, rows
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import (
    Json,
    Mode,
    as_json,
    begin,
    check_tail,
    ended_run,
    in_modes,
    newest_run,
    replay,
    send,
    told,
)
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import with_every_vendor
from tests.serving import ServerProcess

SLOWLY = "[[no_reasoning]] [[tokens:30]] [[delay:0.02]]"


def numbers(events: list[Json]) -> list[int]:
    return [event["seq_id"] for event in events]


@with_every_vendor
async def test_a15_a_stream_can_be_read_again_while_it_is_under_way(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    turn = begin(client, "background", agent, SLOWLY)
    run_id = await turn.run_id()
    await turn.until(lambda event: event["message_type"] == "assistant_message")

    again, late = await asyncio.gather(replay(client, run_id), replay(client, run_id, 5))
    first = await turn.outcome()

    assert again == first.events
    assert late == first.events[5:]
    assert numbers(again) == list(range(1, len(again) + 1))


async def test_a15_a_stream_can_be_read_again_from_anywhere_when_it_is_over(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("print_tool")
    first = await send(client, "background", agent, "Call print_tool with 'x'")
    assert first.run_id is not None

    assert numbers(first.events) == list(range(1, len(first.events) + 1))
    for position in range(len(first.events) + 3):
        assert await replay(client, first.run_id, position) == first.events[position:]


@with_every_vendor
async def test_a15_a_cancelled_stream_reads_the_same_again(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    turn = begin(client, "background", agent, "[[tokens:50]] [[stall_after:12]]")
    run_id = await turn.run_id()
    reader = asyncio.create_task(replay(client, run_id))
    await turn.until(lambda event: event["message_type"] == "assistant_message")
    await client.agents.messages.cancel(agent_id=agent)

    stopped = await turn.outcome()

    assert [event.get("stop_reason") for event in stopped.events[-2:]] == ["cancelled", None]
    assert await reader == stopped.events
    assert await replay(client, run_id) == stopped.events
    await check_next_message_works(client, agent)


async def test_a15_a_replay_ends_with_the_terminal_bytes_and_nothing_after(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    first = await send(client, "background", agent, "Hello")
    assert first.run_id is not None

    stream = await client.runs.messages.stream(first.run_id)
    heard = [event.to_dict() async for event in stream]

    assert heard[0]["message_type"] == "ping"
    assert heard[0]["run_id"] == first.run_id
    check_tail(told(stream.response), failed=False)


async def test_a15_an_asynchronous_run_has_a_log_too(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    begun = await client.agents.messages.create_async(agent_id=agent, messages=[{"role": "user", "content": "Hello"}])

    heard = await replay(client, begun.id)

    assert heard[-2]["stop_reason"] == "end_turn"
    assert numbers(heard) == list(range(1, len(heard) + 1))
    assert (await ended_run(client, begun.id))["status"] == "completed"


async def test_a15_a_run_in_the_foreground_cannot_be_read_again(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    first = await send(client, "token", agent, "Hello")
    assert first.run_id is not None

    with pytest.raises(Exception, match="Run was not created in background mode"):
        await replay(client, first.run_id)


@pytest.mark.parametrize("where", ["agent", "conversation"])
async def test_a16_the_same_request_again_is_the_same_run(
    client: AsyncLetta, make_agent: MakeAgent, where: str
) -> None:
    agent = await make_agent()
    thread = agent if where == "agent" else (await client.conversations.create(agent_id=agent)).id
    said = [{"role": "user", "content": SLOWLY, "otid": str(uuid.uuid4())}]
    first = begin(client, "background", thread, said)
    await first.until(lambda event: event["message_type"] == "assistant_message")

    during = await send(client, "background", thread, said)
    original = await first.outcome()
    after = await send(client, "background", thread, said)

    assert during.events == original.events == after.events
    assert len((await client.runs.list(agent_id=agent)).items) == 1


async def test_a16_another_request_while_busy_is_refused_and_told_by_whom(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id
    otids = [str(uuid.uuid4()) for _ in range(2)]
    first = begin(client, "background", conversation, [{"role": "user", "content": "Wait [[stall]]", "otid": otids[0]}])
    run_id = await first.run_id()

    refused = await send(client, "background", conversation, [{"role": "user", "content": "Me too", "otid": otids[1]}])

    assert refused.status == 409
    assert refused.error["run_id"] == run_id
    assert f"Another request (run_id={run_id}) is currently being processed" in refused.error["detail"]
    assert await client.conversations.cancel(conversation_id=conversation) == {run_id: "cancelled"}
    assert (await first.outcome()).stop_reason == "cancelled"
    again = await send(client, "background", conversation, [{"role": "user", "content": "Me too", "otid": otids[1]}])
    assert again.text == "You said: Me too"


async def test_a16_a_stream_can_be_found_by_the_otid_of_its_message(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent, otid = await make_agent(), str(uuid.uuid4())
    conversation = (await client.conversations.create(agent_id=agent)).id
    first = await send(client, "background", conversation, [{"role": "user", "content": "Hello", "otid": otid}])

    stream = await client.conversations.messages.stream(conversation_id=conversation, otid=otid, include_pings=False)
    found = [event.to_dict() async for event in stream]

    assert found == first.events


@in_modes("BTA")
async def test_a16_every_way_of_sending_knows_a_repeated_request(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    said = [{"role": "user", "content": "Call print_tool with 'once'", "otid": str(uuid.uuid4())}]

    first = await send(client, mode, agent, said)
    again = await send(client, mode, agent, said)

    assert again.run_id == first.run_id
    assert again.stop_reason == first.stop_reason
    assert [message["id"] for message in again.messages] == [message["id"] for message in first.messages]
    assert (await rows(client, agent)).count("tool_return_message") == 1
    await check_next_message_works(client, agent)


@in_modes("BSTGA")
async def test_a17_of_two_requests_at_once_only_one_runs_at_a_time(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver, mode: Mode
) -> None:
    """The one that runs waits in its tool until the other has been refused, or stands in line."""
    agent = await make_agent("ring_bell")
    arguments = json.dumps({"url": receiver.url, "seconds": 0})
    receiver.may_answer.clear()

    turns = [begin(client, mode, agent, f"[[call:ring_bell {arguments}]] number {number}") for number in range(2)]
    ends = [asyncio.create_task(turn.outcome()) for turn in turns]
    await receiver.until(1)
    assert len((await client.runs.list(agent_id=agent, active=True)).items) == 1
    if mode != "blocking":
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    receiver.may_answer.set()
    outcomes = [await end for end in ends]

    runs = [as_json(run) for run in (await client.runs.list(agent_id=agent, order="asc")).items]
    if mode == "blocking":
        assert [outcome.stop_reason for outcome in outcomes] == ["end_turn"] * 2
        assert runs[0]["completed_at"] <= runs[1]["created_at"], "the second stood in line"
    else:
        assert sorted(outcome.status for outcome in outcomes) == [200, 409]
        assert len(runs) == 1
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a17_conversations_of_one_agent_run_side_by_side(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    threads = [agent, *[(await client.conversations.create(agent_id=agent)).id for _ in range(2)]]

    turns = [begin(client, "token", thread, "Wait [[stall]]") for thread in threads]
    run_ids = {await turn.run_id() for turn in turns}

    active = (await client.runs.list(agent_id=agent, active=True)).items
    assert {run.id for run in active} == run_ids
    assert set(await client.agents.messages.cancel(agent_id=agent)) == run_ids
    assert [(await turn.outcome()).stop_reason for turn in turns] == ["cancelled"] * 3
    await check_at_rest(client, agent)


@in_modes("ST", adapters="T")
async def test_a20_a_client_that_hangs_up_does_not_stop_the_run(
    server: ServerProcess, client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Call print_tool with 'x' [[ttft:0.2]]"}],
        "streaming": True,
        "stream_tokens": mode == "token",
    }
    async with (
        httpx.AsyncClient(base_url=server.url, headers=AS_1X, timeout=60) as http,
        http.stream("POST", f"/v1/agents/{agent}/messages", json=body) as answer,
    ):
        first = await anext(answer.aiter_bytes())
        assert b'"message_type":"ping"' in first

    run = await newest_run(client, agent)
    assert (await ended_run(client, run["id"]))["stop_reason"] == "end_turn"
    assert (await rows(client, agent))[-1] == "assistant_message"
    assert (await read_run(client, run["id"]))["status"] == "completed"
    await check_next_message_works(client, agent)


@in_modes("TG", adapters="T")
async def test_the_thread_is_free_before_the_stream_says_that_it_is_done(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    for number in range(10):
        outcome = await send(client, mode, agent, f"Message {number}")
        assert outcome.text == f"You said: Message {number}"


@in_modes("STG")
async def test_only_the_wanted_message_types_are_shown(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make_agent("print_tool")

    told_only = await send(
        client, mode, agent, "Call print_tool with 'x'", include_return_message_types=["tool_return_message"]
    )

    assert told_only.types == ["tool_return_message"]
    assert told_only.stop_reason == "end_turn"
    assert told_only.usage is not None
    assert told_only.run_id is not None
    listed = (await client.runs.messages.list(run_id=told_only.run_id)).items
    assert [message.message_type for message in listed] == ["tool_return_message"]

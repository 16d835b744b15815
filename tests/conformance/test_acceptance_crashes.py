"""kill -9 of the server, and what those who were waiting find when it is back."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.conformance import tools
from tests.conformance.answers import approve, asked_ids
from tests.conformance.checks import check_at_rest, check_next_message_works, history, read_agent, rows
from tests.conformance.conftest import MakeAgent, connected, create_agent
from tests.conformance.modes import Json, accumulated, as_json, ended_run, eventually, replay, send
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import Site, Standing, VendorProcess, with_native_adapters
from tests.serving import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("mortal"), HOLDFAST_LEASE_TTL_S="2") as process:
        yield process


@pytest.fixture(scope="module")
def mortal_tools(mortal: ServerProcess) -> dict[str, str]:
    with mortal.client() as client:
        return tools.install(client)


async def begin_both(client: AsyncLetta, agents: list[str], messages: list[list[Json]]) -> list[str]:
    """A background stream to the first agent and an asynchronous request to the second; the ids of their runs."""
    messaging: Any = client.agents.messages
    stream = await messaging.create(agent_id=agents[0], messages=messages[0], streaming=True, background=True)
    first = await anext(aiter(stream))
    await stream.close()
    begun = await messaging.create_async(agent_id=agents[1], messages=messages[1])
    return [first.run_id, begun.id]


async def check_ended_once(client: AsyncLetta, run_id: str) -> Json:
    """The run has an end, and so has its stream: the same one, and one only."""
    run = await ended_run(client, run_id)
    told = await replay(client, run_id)
    stops = [event["stop_reason"] for event in told if event["message_type"] == "stop_reason"]
    assert stops == [run["stop_reason"]]
    assert told[-2]["message_type"] == "stop_reason"
    numbers = [event["seq_id"] for event in told]
    assert numbers == sorted(set(numbers))
    return run


def crash(server: ServerProcess) -> None:
    server.kill()
    server.start()


async def are_asked(fake: VendorProcess | None, before: Standing | None, times: int) -> None:
    """The vendor has been asked so often by now, and has still to answer. The offline model dies with the server."""
    if fake is None or before is None:
        return

    async def look() -> bool | None:
        return True if fake.standing().asked == before.asked + times else None

    await eventually(look, "the vendor was not asked")
    assert fake.standing().open == before.open + times


def check_asked_again(fake: VendorProcess | None, before: Standing | None, times: int) -> None:
    """Each request that the crash cut off was made once more: its vendor has heard the line go dead, and was not told
    to stop in any other way."""
    if fake is not None and before is not None:
        after = fake.check_none_open()
        assert (after.asked, after.left) == (before.asked + 2 * times, before.left + times)


@with_native_adapters
async def test_a19_a_crash_during_a_model_call_is_survived(
    client: AsyncLetta, make_agent: MakeAgent, site: Site
) -> None:
    agents = [await make_agent() for _ in range(2)]
    before = site.fake.standing() if site.fake else None
    run_ids = await begin_both(client, agents, [[user("Hello [[ttft:4]]")]] * 2)
    await are_asked(site.fake, before, 2)
    crash(site.server)

    runs = [await check_ended_once(client, run_id) for run_id in run_ids]
    check_asked_again(site.fake, before, 2)
    assert [run["stop_reason"] for run in runs] == ["end_turn"] * 2
    for agent in agents:
        assert await rows(client, agent) == ["user_message", "reasoning_message", "assistant_message"]
        await check_next_message_works(client, agent)


@with_native_adapters
async def test_a19_a_crash_amid_the_words_of_a_reply_leaves_only_those_of_the_next_one(
    client: AsyncLetta, make_agent: MakeAgent, site: Site
) -> None:
    agent = await make_agent()
    before = site.fake.standing() if site.fake else None
    messaging: Any = client.agents.messages
    said = [user("[[no_reasoning]] [[tokens:40]] [[delay:0.1]]")]
    stream = await messaging.create(agent_id=agent, messages=said, streaming=True, background=True, stream_tokens=True)
    heard: list[Json] = []
    with pytest.raises(httpx.RemoteProtocolError):
        async for event in stream:
            heard.append(as_json(event))
            if [each["message_type"] for each in heard[-3:]] == ["assistant_message"] * 3:
                site.server.kill()
    site.server.start()

    run_id, cut_off = heard[-1]["run_id"], heard[-1]["id"]
    assert (await check_ended_once(client, run_id))["stop_reason"] == "end_turn"
    check_asked_again(site.fake, before, 1)
    (answer,) = [each for each in await history(client, agent) if each["message_type"] == "assistant_message"]
    (whole,) = [
        each for each in accumulated(await replay(client, run_id)) if each["message_type"] == "assistant_message"
    ]
    assert answer["id"] == whole["id"] != cut_off
    assert answer["content"] == whole["content"]
    assert len(answer["content"].split()) == 40
    await check_next_message_works(client, agent)


async def test_a19_a_crash_during_a_tool_does_not_run_it_again(
    mortal: ServerProcess, mortal_tools: dict[str, str], receiver: Receiver
) -> None:
    async with connected(mortal) as client:
        agents = [await create_agent(client, [mortal_tools["ring_bell"]]) for _ in range(2)]
        run_ids = await begin_both(client, agents, [[user(f"[[call:ring_bell {ringing(receiver)}]]")]] * 2)
        await receiver.until(2)
        crash(mortal)

        for agent, run_id in zip(agents, run_ids, strict=True):
            run = await check_ended_once(client, run_id)
            assert run["stop_reason"] == "end_turn"
            (back,) = [each for each in await history(client, agent) if each["message_type"] == "tool_return_message"]
            assert back["status"] == "error"
            assert "outcome is unknown" in back["tool_return"]
            await check_next_message_works(client, agent)
        assert len(receiver.received) == 2


async def test_a19_a_crash_while_an_approved_tool_runs_answers_the_approval_once(
    mortal: ServerProcess, mortal_tools: dict[str, str], receiver: Receiver
) -> None:
    async with connected(mortal) as client:
        agents = [await create_agent(client, [mortal_tools["ring_gate"]]) for _ in range(2)]
        asked = f"[[call:ring_gate {ringing(receiver)}]]"
        calls = [asked_ids((await send(client, "blocking", agent, asked)).last) for agent in agents]
        run_ids = await begin_both(client, agents, [approve(*call) for call in calls])
        await receiver.until(2)
        crash(mortal)

        for agent, run_id, call in zip(agents, run_ids, calls, strict=True):
            assert (await check_ended_once(client, run_id))["stop_reason"] == "end_turn"
            assert (await read_agent(client, agent))["pending_approval"] is None
            again = await send(client, "blocking", agent, approve(*call))
            assert "tool_return_message" not in again.types
            await check_next_message_works(client, agent)
        assert len(receiver.received) == 2


async def test_a19_a_pause_outlives_a_crash(mortal: ServerProcess, mortal_tools: dict[str, str]) -> None:
    async with connected(mortal) as client:
        agent = await create_agent(client, [mortal_tools["bash_tool"]])
        paused = await send(client, "blocking", agent, "Call bash_tool with 'ls'")
        crash(mortal)

        assert (await read_agent(client, agent))["pending_approval"]["id"] == paused.last["id"]
        approved = await send(client, "token", agent, approve(*asked_ids(paused.last)))
        assert approved.messages[0]["tool_return"] == "ran ls"
        await check_next_message_works(client, agent)


async def test_a19_a_cancel_reaches_a_run_that_was_taken_over(
    mortal: ServerProcess, mortal_tools: dict[str, str]
) -> None:
    async with connected(mortal) as client:
        agents = [await create_agent(client, []) for _ in range(2)]
        run_ids = await begin_both(client, agents, [[user("Hello [[stall]]")]] * 2)
        crash(mortal)

        for agent, run_id in zip(agents, run_ids, strict=True):
            assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}
            assert (await check_ended_once(client, run_id))["status"] == "cancelled"
            await check_at_rest(client, agent)
            await check_next_message_works(client, agent)


async def test_a19_a_reader_whose_connection_broke_goes_on_after_what_it_has(
    mortal: ServerProcess, mortal_tools: dict[str, str]
) -> None:
    async with connected(mortal) as client:
        agent = await create_agent(client, [mortal_tools["print_tool"]])
        said = [user("Call print_tool with 'x' [[ttft:4@2]]")]
        messaging: Any = client.agents.messages
        stream = await messaging.create(agent_id=agent, messages=said, streaming=True, background=True)
        heard: list[Json] = []
        with pytest.raises(httpx.RemoteProtocolError):
            async for event in stream:
                heard.append(as_json(event))
                if heard[-1]["message_type"] == "tool_return_message":
                    mortal.kill()
        mortal.start()

        last, run_id = heard[-1]["seq_id"], heard[0]["run_id"]
        rest = await replay(client, run_id, last)
        assert [event["message_type"] for event in rest] == [
            "reasoning_message",
            "assistant_message",
            "stop_reason",
            "usage_statistics",
        ]
        numbers = [event["seq_id"] for event in rest]
        assert numbers[0] > last, "no number that may have been shown before the crash is given again"
        assert numbers == list(range(numbers[0], numbers[0] + 4))
        assert (await ended_run(client, run_id))["status"] == "completed"
        await check_next_message_works(client, agent)


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def ringing(receiver: Receiver) -> str:
    return json.dumps({"url": receiver.url, "seconds": 60})

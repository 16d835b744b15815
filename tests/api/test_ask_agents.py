"""Agents that send messages to each other with the tools that ship with the server, on both databases."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.actions.runs.cancel import CancelRuns
from holdfast.core.records import Run
from holdfast.errors import ShuttingDown
from holdfast.store import runs
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from tests.scenario import eventually

from ..served import ServedClient, served

ASK = "send_message_to_agent_and_wait_for_reply"
TELL = "send_message_to_agent_async"
TAGGED = "send_message_to_agents_matching_tags"
STRANGER = "agent-123e4567-e89b-42d3-8456-426614174000"


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, queue_wait_s=1) as client:
        yield client


def instruction(tool: str, **arguments: Any) -> str:
    """What makes the offline model call a tool. Directives and quotes within the arguments are hidden from it."""
    hidden = json.dumps(arguments).replace("[[", r"\u005b\u005b").replace(r"\"", r"\u0022")
    return f"Call {tool} with {hidden}"


async def talker(client: ServedClient, **fields: Any) -> str:
    return (await client.agent(tools=[ASK, TELL, TAGGED], **fields)).id


async def told(client: ServedClient, agent_id: str, text: str) -> tuple[str, str]:
    """The status and the text of what the first tool returned."""
    answer = await client.say(agent_id, text)
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    return returned.status, returned.tool_return


async def heard(client: ServedClient, agent_id: str) -> list[Any]:
    rows = [each async for each in client.agents.messages.list(agent_id, order="asc")]
    return [each for each in rows if each.message_type != "reasoning_message"][1:]


async def runs_of(client: ServedClient, agent_id: str) -> list[Run]:
    every = Page(limit=None, order="asc")
    return await client.deps.database.read(lambda tx: runs.list_runs(tx, RunFilter(agent_ids=(agent_id,)), every))


async def test_an_agent_asks_another_and_gets_its_answer(client: ServedClient) -> None:
    one, other = await talker(client), await talker(client)
    status, text = await told(client, one, instruction(ASK, message="[[say:forty-two]]", other_agent_id=other))
    assert (status, ast.literal_eval(text)) == ("success", {"agent_id": other, "response": ["forty-two"]})
    message, answer = await heard(client, other)
    assert message.message_type == "system_message"
    assert message.content.startswith(f"[Incoming message from agent with ID '{one}'")
    assert message.sender_id == one
    assert answer.content == "forty-two"
    [run], [parent] = await runs_of(client, other), await runs_of(client, one)
    assert (run.status, run.metadata["parent_run_id"]) == ("completed", parent.id)


async def test_a_message_that_nobody_waits_for_goes_on_by_itself(client: ServedClient) -> None:
    one, other = await talker(client), await talker(client)
    text = instruction(TELL, message="[[stall]]", other_agent_id=other)
    assert await told(client, one, text) == ("success", "Successfully sent message")
    [run] = await runs_of(client, other)
    assert run.is_active
    assert run.background
    assert await client.agents.messages.cancel(agent_id=other) == {run.id: "cancelled"}


async def test_agents_with_matching_tags_answer_together_and_who_cannot_is_named(client: ServedClient) -> None:
    one = await talker(client, tags=["team", "red"])
    red = await talker(client, tags=["team", "red"])
    blue = await talker(client, tags=["team", "blue"], model="holdfast/offline")
    await talker(client, tags=["team"])
    await talker(client, tags=["red"])

    async def asked(message: str, **tags: list[str]) -> Any:
        status, text = await told(client, one, instruction(TAGGED, message=message, **tags))
        assert status == "success", text
        return ast.literal_eval(text)

    replies = await asked("[[say:here]]", match_all=["team"], match_some=["red", "blue"])
    assert replies == [{"agent_id": agent_id, "response": ["here"]} for agent_id in (red, blue)]
    assert await asked("hello", match_all=["nobody"], match_some=[]) == []
    [failed] = await asked("[[error:bad_request]]", match_all=["blue"], match_some=[])
    assert failed["agent_id"] == blue
    assert failed["response"][0].startswith("<error: ")
    status, text = await told(client, one, instruction(TAGGED, message="hello", match_all=[], match_some=[]))
    assert (status, "at least one tag" in text) == ("error", True)


@pytest.mark.parametrize("tool", [ASK, TELL])
async def test_an_agent_that_waits_for_an_answer_is_not_asked_for_one(client: ServedClient, tool: str) -> None:
    first, second, third = await talker(client), await talker(client), await talker(client)
    back = instruction(tool, message="and you?", other_agent_id=first)
    on = instruction(ASK, message=back, other_agent_id=third)
    status, text = await told(client, first, instruction(ASK, message=on, other_agent_id=second))
    assert status == "success", text
    refused = [each for each in await heard(client, third) if each.message_type == "tool_return_message"]
    assert [each.status for each in refused] == ["error"]
    assert "waits for this answer" in refused[0].tool_return
    assert len(await runs_of(client, first)) == 1


async def test_a_message_to_oneself_to_nobody_or_to_one_that_fails_is_an_error_for_the_model(
    client: ServedClient,
) -> None:
    one, other = await talker(client), await talker(client)
    for target, why in ((one, "the one that acts"), (STRANGER, STRANGER)):
        status, text = await told(client, one, instruction(ASK, message="hi", other_agent_id=target))
        assert (status, why in text) == ("error", True), text
    failing = instruction(ASK, message="[[error:bad_request]] [[message:TEST: no]]", other_agent_id=other)
    status, text = await told(client, one, failing)
    assert (status, "TEST: no" in text) == ("error", True), text


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        (ASK, {"other_agent_id": STRANGER}, "missing required field `message`"),
        (TELL, {"message": "hi"}, "missing required field `other_agent_id`"),
        (ASK, {"message": {"a": 1}, "other_agent_id": STRANGER}, "Expected `str`, got `object` - at `$.message`"),
        (TELL, {"message": "hi", "other_agent_id": 5}, "Expected `str`, got `int` - at `$.other_agent_id`"),
        (ASK, {"message": "hi", "other_agent_id": "a\0b"}, "There is no agent with the id 'ab'."),
        (TELL, {"message": "hi", "other_agent_id": "conv" + STRANGER[5:]}, "There is no agent with the id 'conv-"),
        (TAGGED, {"match_all": ["x"]}, "missing required field `message`"),
        (TAGGED, {"message": "hi", "match_all": "x"}, "Expected `array | null`, got `str` - at `$.match_all`"),
        (TAGGED, {"message": "hi", "match_some": [1]}, "Expected `str`, got `int` - at `$.match_some[0]`"),
        (TAGGED, {"message": "hi", "match_all": 5}, "Expected `array | null`, got `int` - at `$.match_all`"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_for_the_model(
    client: ServedClient, tool: str, arguments: dict[str, Any], why: str
) -> None:
    one = await talker(client)
    await talker(client, tags=["x"])
    status, text = await told(client, one, instruction(tool, **arguments))
    assert (status, why in text) == ("error", True), text
    assert text.startswith(f"Error executing function {tool}: ValueError: ")


async def test_a_message_with_nul_arrives_without_it(client: ServedClient) -> None:
    one, other = await talker(client), await talker(client)
    status, text = await told(client, one, instruction(ASK, message="a\0b", other_agent_id=other))
    assert status == "success", text
    assert (await heard(client, other))[0].content.endswith("] ab")


@pytest.mark.slow
async def test_a_busy_agent_is_waited_for_and_not_for_ever(client: ServedClient) -> None:
    one, other = await talker(client), await talker(client)
    busy = await client.ask("POST", f"/v1/agents/{other}/messages/async", {"input": "[[stall]]"})
    status, text = await told(client, one, instruction(ASK, message="[[say:now]]", other_agent_id=other))
    assert (status, busy["id"] in text) == ("error", True), text
    assert "Busy" not in text
    asking = await client.ask(
        "POST",
        f"/v1/agents/{one}/messages/async",
        {"input": instruction(ASK, message="[[say:now]]", other_agent_id=other)},
    )
    await client.agents.messages.cancel(agent_id=other)
    await client.deps.reader.until_stopped(asking["id"])
    assert "now" in str((await heard(client, other))[-1].content)


@pytest.mark.slow
@pytest.mark.parametrize("tool", [ASK, TELL])
async def test_of_two_agents_that_send_each_other_messages_at_once_one_is_refused_at_once(
    database_url: str, tmp_path: Path, tool: str
) -> None:
    async with served(tmp_path, database_url=database_url, queue_wait_s=600) as client:
        agents = [await talker(client), await talker(client)]

        async def ask(own: str, other: str) -> tuple[str, str]:
            return await told(client, own, "[[ttft:1.5]] " + instruction(tool, message="hi", other_agent_id=other))

        asked = asyncio.gather(ask(*agents), ask(*reversed(agents)))
        await eventually(lambda: client.open_model_streams == 2)
        refused, answered = sorted(await asyncio.wait_for(asked, 60))
        assert (refused[0], answered[0]) == ("error", "success")
        assert "it waits for this agent" in refused[1]


@pytest.mark.slow
async def test_a_ring_of_three_that_wait_is_noticed_by_the_one_that_closes_it(
    database_url: str, tmp_path: Path
) -> None:
    async with served(tmp_path, database_url=database_url, queue_wait_s=600) as client:
        agents = [await talker(client) for _ in range(3)]
        asked = [
            told(client, own, "[[ttft:2]] " + instruction(ASK, message="hi", other_agent_id=agents[at - 1]))
            for at, own in enumerate(agents)
        ]
        waiting = asyncio.gather(*asked)
        await eventually(lambda: client.open_model_streams == 3)
        outcomes = sorted(await asyncio.wait_for(waiting, 60))
        assert [status for status, _ in outcomes] == ["error", "success", "success"]
        assert "it waits for this agent" in outcomes[0][1]


async def test_a_cancel_reaches_the_runs_that_the_run_has_started(client: ServedClient) -> None:
    one, two, three = await talker(client), await talker(client), await talker(client)
    told_too = await talker(client)
    last = instruction(ASK, message="[[stall]]", other_agent_id=three)
    text = instruction(TELL, message="[[stall]]", other_agent_id=told_too)
    text += " and then " + instruction(ASK, message=last, other_agent_id=two)
    run = await client.ask("POST", f"/v1/agents/{one}/messages/async", {"input": text})
    await eventually(lambda: client.open_model_streams == 2)
    assert await client.agents.messages.cancel(agent_id=one) == {run["id"]: "cancelled"}
    for agent_id in (one, two, three, told_too):
        [ended] = await runs_of(client, agent_id)
        assert (agent_id, ended.status) == (agent_id, "cancelled")
    assert client.open_model_streams == 0
    assert (await client.say(three, "[[say:free again]]")).messages[-1].content == "free again"


async def test_a_cancel_that_is_cut_off_is_on_record_for_all_of_them(
    client: ServedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = await talker(client), await talker(client), await talker(client)
    last = instruction(ASK, message="[[stall]]", other_agent_id=three)
    text = instruction(ASK, message=last, other_agent_id=two)
    run = await client.ask("POST", f"/v1/agents/{one}/messages/async", {"input": text})
    await client.model_asked()

    async def cut_off(*_: Any) -> None:
        raise ShuttingDown("the process ends here")

    with monkeypatch.context() as patched:
        patched.setattr(CancelRuns, "_ended", cut_off)
        await client.refusal(503, "POST", f"/v1/agents/{one}/messages/cancel")
    for agent_id in (one, two, three):
        [asked] = await runs_of(client, agent_id)
        assert asked.cancel_asked_us is not None
    assert await client.agents.messages.cancel(agent_id=one) == {run["id"]: "cancelled"}


async def test_a_second_cancel_reaches_what_the_first_has_left_behind(client: ServedClient) -> None:
    one, two, three = await talker(client), await talker(client), await talker(client)
    last = instruction(ASK, message="[[stall]]", other_agent_id=three)
    await client.ask(
        "POST", f"/v1/agents/{one}/messages/async", {"input": instruction(ASK, message=last, other_agent_id=two)}
    )
    await client.model_asked()
    deps = client.deps
    for agent_id in (one, two):
        [run] = await runs_of(client, agent_id)
        await deps.database.write(lambda tx, run_id=run.id: runs.ask_cancel(tx, run_id, deps.clock.now_us()))
        deps.worker.cancel(run.id)
        await deps.reader.until_stopped(run.id)
    [ended], [left] = await runs_of(client, one), await runs_of(client, three)
    assert (ended.status, left.is_active) == ("cancelled", True)
    body = {"run_ids": [ended.id]}
    assert await client.ask("POST", f"/v1/agents/{one}/messages/cancel", body) == {ended.id: "cancelled"}
    assert (await runs_of(client, three))[0].status == "cancelled"


async def test_it_is_not_run_by_hand(client: ServedClient) -> None:
    one, other = await talker(client), await talker(client)
    body = {"args": {"message": "hi", "other_agent_id": other}}
    assert "on behalf of a run" in await client.refusal(400, "POST", f"/v1/agents/{one}/tools/{ASK}/run", body)


async def test_a_server_that_stops_does_not_send_the_message_again(database_url: str, tmp_path: Path) -> None:
    """The agent is told that the outcome is unknown; the other one goes on with what it was sent."""
    async with served(tmp_path, database_url=database_url) as client:
        one, other = await talker(client), await talker(client)
        text = instruction(ASK, message="[[stall]]", other_agent_id=other)
        run = await client.ask("POST", f"/v1/agents/{one}/messages/async", {"input": text})
        await eventually(lambda: client.open_model_streams == 1)
    async with served(tmp_path, database_url=database_url) as client:
        await client.deps.reader.until_stopped(run["id"])
        [ended], [asked] = await runs_of(client, one), await runs_of(client, other)
        assert (ended.id, ended.status) == (run["id"], "completed")
        returned = [each for each in await heard(client, one) if each.message_type == "tool_return_message"]
        assert [each.status for each in returned] == ["error"]
        assert asked.is_active
        assert [each.message_type for each in await heard(client, other)] == ["system_message"]
        await client.agents.messages.cancel(agent_id=other)

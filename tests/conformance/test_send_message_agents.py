"""Agents that speak by calling send_message: the scenarios of ordinary agents, and what is peculiar to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.answers import approve, asked_ids, deny
from tests.conformance.checks import check_at_rest, check_told_is_stored, history, read_agent, read_run, rows, steps_of
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, begin, in_modes, send

TYPES = ("memgpt_agent", "memgpt_v2_agent")
ODD = 'tabs\tquotes " backslash \\ newline\nNUL \0 é 😀'


async def make(make_agent: MakeAgent, *tools: str, agent_type: str = "memgpt_v2_agent", **fields: Any) -> str:
    usual = {"include_base_tools": True, "include_base_tool_rules": True, "parallel": False}
    return await make_agent(*tools, agent_type=agent_type, **usual | fields)


def heartbeats(listed: list[Json]) -> list[str]:
    texts = [message["content"] for message in listed if message["message_type"] == "user_message"]
    packed = [json.loads(text) for text in texts if isinstance(text, str) and text.startswith("{")]
    return [each["reason"] for each in packed if each.get("type") == "heartbeat"]


@in_modes("BSTGA", adapters="T")
async def test_a_greeting_is_answered_through_send_message(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent)

    greeted = await send(client, mode, agent, "Hello there")

    assert greeted.types == ["reasoning_message", "assistant_message"]
    assert greeted.text == "You said: Hello there"
    assert greeted.stop_reason == "end_turn"
    assert [message["otid"][-1] for message in greeted.messages] == ["0", "1"]
    assert greeted.usage is not None
    assert greeted.usage["step_count"] == 1
    await check_told_is_stored(client, agent, greeted)
    await check_at_rest(client, agent)


@pytest.mark.parametrize("agent_type", TYPES)
async def test_a_new_agent_has_said_hello(client: AsyncLetta, make_agent: MakeAgent, agent_type: str) -> None:
    agent = await make(make_agent, agent_type=agent_type)
    assert [message["message_type"] for message in await history(client, agent)] == [
        "system_message",
        "reasoning_message",
        "assistant_message",
        "user_message",
    ]


@in_modes("BSTGA", adapters="T")
async def test_a_tool_that_asks_for_a_heartbeat_is_followed_by_another_step(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent, "print_tool")

    told = await send(client, mode, agent, "Call print_tool with message 'ahoy'")

    assert told.types == [
        "reasoning_message",
        "tool_call_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    assert told.messages[2]["tool_return"] == "ahoy"
    assert told.text == "print_tool returned ahoy."
    assert told.stop_reason == "end_turn"
    (reason,) = heartbeats(await history(client, agent))
    assert reason.endswith("Function called using request_heartbeat=true, returning control")
    assert [step["status"] for step in await steps_of(client, told.run_id)] == ["success", "success"]
    await check_told_is_stored(client, agent, told)
    await check_at_rest(client, agent)


@in_modes("BT")
async def test_a_tool_that_asks_for_none_ends_the_turn(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make(make_agent, "print_tool")
    told = await send(client, mode, agent, 'Go. [[call:print_tool {"message": "ahoy", "request_heartbeat": false}]]')
    assert told.types[-1] == "tool_return_message"
    assert told.stop_reason == "end_turn"
    assert heartbeats(await history(client, agent)) == []
    await check_at_rest(client, agent)


@in_modes("BSTG", adapters="T")
async def test_every_character_of_a_message_survives(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make(make_agent)
    arguments = json.dumps({"message": ODD, "thinking": "It is odd."})  # not in the order that was asked for
    told = await send(client, mode, agent, f"Say it. [[call:send_message {arguments}]]")
    assert told.text == ODD
    await check_told_is_stored(client, agent, told)


@in_modes("BSTG")
async def test_use_assistant_message_false_shows_the_call_and_its_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent)
    told = await send(client, mode, agent, "Hello there", use_assistant_message=False)
    assert told.types == ["reasoning_message", "tool_call_message", "tool_return_message"]
    assert told.messages[1]["tool_call"]["name"] == "send_message"
    assert told.messages[2]["tool_return"] == "Sent message successfully."
    raw: Any = await client.get(f"/v1/agents/{agent}/messages?use_assistant_message=false", cast_to=list[Any])
    assert [message["message_type"] for message in raw][-3:] == told.types


@in_modes("BSTG")
async def test_another_tool_may_speak(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make(make_agent, "print_tool")
    options = {"assistant_message_tool_name": "print_tool", "assistant_message_tool_kwarg": "message"}
    said = 'Go. [[call:print_tool {"thinking": "I speak.", "message": "ahoy", "request_heartbeat": false}]]'
    told = await send(client, mode, agent, said, **options)
    assert told.types == ["reasoning_message", "assistant_message"]
    assert told.text == "ahoy"


@in_modes("BSTGA", adapters="T")
async def test_a_text_without_a_call_fails_the_run_and_keeps_the_users_message(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent)
    failed = await send(client, mode, agent, "[[no_call]] Just talk.")
    assert "No tool calls found in response" in failed.error_text
    run = await read_run(client, failed.run_id) if failed.run_id else None
    if run is not None:
        assert (run["status"], run["stop_reason"]) == ("failed", "no_tool_call")
    assert (await rows(client, agent))[-1] == "user_message"
    after = await send(client, "blocking", agent, "Are you still there?")
    assert after.text == "You said: Are you still there?"


@in_modes("BST")
async def test_max_steps_ends_a_run_only_if_it_wanted_another(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent, "print_tool")
    assert (await send(client, mode, agent, "Hello", max_steps=1)).stop_reason == "end_turn"
    told = await send(client, mode, agent, "Call print_tool with message 'ahoy'", max_steps=1)
    assert told.stop_reason == "max_steps"
    assert told.types[-1] == "tool_return_message"
    assert heartbeats(await history(client, agent)) == []


@in_modes("BSTGA", adapters="T")
@pytest.mark.parametrize("spelling", ["approvals", "deprecated"])
async def test_an_approved_call_runs_and_the_loop_goes_on(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, spelling: str
) -> None:
    agent = await make(make_agent, "secret_code")
    paused = await send(client, mode, agent, "Call secret_code with 'open sesame'")
    assert paused.types == ["reasoning_message", "approval_request_message"]
    assert paused.stop_reason == "requires_approval"
    assert json.loads(paused.last["tool_call"]["arguments"])["request_heartbeat"] is True
    (call,) = asked_ids(paused.last)
    answer: Any = approve(call)
    if spelling == "deprecated":
        answer = [{"type": "approval", "approve": True, "approval_request_id": paused.last["id"]}]
    told = await send(client, mode, agent, answer)
    assert told.types[0] == "tool_return_message"
    assert told.types[-1] == "assistant_message"
    assert told.stop_reason == "end_turn"
    await check_at_rest(client, agent)


@in_modes("BT")
async def test_a_denied_call_is_told_to_the_model_which_goes_on(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make(make_agent, "secret_code")
    paused = await send(client, mode, agent, "Call secret_code with 'open sesame'")
    (call,) = asked_ids(paused.last)
    told = await send(client, mode, agent, deny(call, reason="not now"))
    assert "not now" in told.messages[0]["tool_return"]
    assert told.types[-1] == "assistant_message"
    assert heartbeats(await history(client, agent))[-1].endswith("Continuing: user denied request to call tool.")


@in_modes("TG")
async def test_a_cancel_keeps_the_words_that_were_shown(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make(make_agent)
    turn = begin(client, mode, agent, "[[tokens:5000]] [[delay:0.005]] go")
    await turn.until(lambda event: event["message_type"] == "assistant_message")
    await client.agents.messages.cancel(agent_id=agent)
    outcome = await asyncio.wait_for(turn.outcome(), 30)
    assert outcome.stop_reason == "cancelled"
    stored = await history(client, agent)
    assert [message["message_type"] for message in stored][-2:] == ["reasoning_message", "assistant_message"]
    assert stored[-1]["content"].startswith("steady")
    assert stored[-1]["content"] == outcome.text
    await check_at_rest(client, agent)


@in_modes("BST")
async def test_words_that_a_person_approved_are_followed_by_their_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    rules = [{"type": "requires_approval", "tool_name": "send_message"}]
    agent = await make(make_agent, tool_rules=rules, include_base_tool_rules=False)
    paused = await send(client, mode, agent, 'Go. [[call:send_message {"message": "ahoy", "thinking": "So."}]]')
    assert paused.types == ["reasoning_message", "approval_request_message"]
    told = await send(client, mode, agent, approve(*asked_ids(paused.last)))
    assert told.types == ["tool_return_message"]
    assert told.stop_reason == "end_turn"


@in_modes("BST")
async def test_an_agent_that_answers_in_text_is_shown_every_call(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool", tools=["send_message"])
    calls = '[[call:send_message {"message": "ahoy"}]] [[call:print_tool {"message": "x"}]] [[say:Done.]]'
    told = await send(client, mode, agent, f"Go. [[parallel]] {calls}")
    shown = [call["name"] for message in told.messages for call in message.get("tool_calls") or ()]
    assert sorted(shown) == ["print_tool", "send_message"]
    assert told.types.count("tool_return_message") == 1


async def test_what_was_said_through_send_message_is_found(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make(make_agent)
    await send(client, "blocking", agent, 'Go. [[call:send_message {"message": "zebra giraffe", "thinking": "So."}]]')
    looking = "Find it. " + '[[call:conversation_search {"query": "giraffe", "roles": ["assistant"]}]]'
    found = await send(client, "blocking", agent, looking)
    assert "zebra giraffe" in found.only("tool_return_message")["tool_return"]


async def test_conversations_have_a_history_of_their_own(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make(make_agent)
    before = await history(client, agent)
    conversation = await client.conversations.create(agent_id=agent)
    answered: Any = await client.post(
        f"/v1/conversations/{conversation.id}/messages",
        body={"input": "Hello", "streaming": False},
        cast_to=dict[str, Any],
    )
    assert answered["messages"][-1]["content"] == "You said: Hello"
    listed: Any = await client.get(f"/v1/conversations/{conversation.id}/messages", cast_to=list[Any])
    assert {message["message_type"] for message in listed} >= {"user_message", "assistant_message"}
    assert [message["id"] for message in await history(client, agent)][: len(before)] == [m["id"] for m in before]


async def test_a_workflow_agent_sees_only_the_message_at_hand(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make(make_agent, "print_tool", agent_type="workflow_agent")
    said = 'Go. [[call:print_tool {"message": "one", "request_heartbeat": false}]]'
    assert (await send(client, "blocking", agent, said)).stop_reason == "end_turn"
    payload: Any = await client.post(
        f"/v1/agents/{agent}/messages/preview-raw-payload", body={"input": "two"}, cast_to=dict[str, Any]
    )
    assert [message["role"] for message in payload["messages"]] == ["system", "user"]


async def test_an_answer_with_a_given_shape_is_shown_as_json(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make(make_agent)
    shaped = '[[call:send_message {"thinking": "So.", "message": {"answer": [1, "two"]}}]]'
    for mode in ("blocking", "token"):
        told = await send(client, mode, agent, f"Go. {shaped}")
        assert json.loads(told.text) == {"answer": [1, "two"]}


@in_modes("BT")
@pytest.mark.parametrize("agent_type", TYPES)
async def test_a_window_nearly_full_is_compacted_and_the_agent_still_answers(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode, agent_type: str
) -> None:
    agent = await make(make_agent, agent_type=agent_type)
    for number in range(6):
        await send(client, "blocking", agent, f"Turn {number}: {'lorem ipsum dolor sit amet ' * 40}")
    before = (await read_agent(client, agent))["message_ids"]

    told = await send(client, mode, agent, "Hello [[usage:120000,10]]", include_compaction_messages=True)

    assert (told.text, told.stop_reason) == ("You said: Hello", "end_turn")
    summary = told.only("summary_message")
    after = (await read_agent(client, agent))["message_ids"]
    assert after[:2] == [before[0], summary["id"]]
    assert len(after) < len(before)
    await check_at_rest(client, agent, compacted=True)
    again = await send(client, mode, agent, "Still there?")
    assert again.text == "You said: Still there?"


async def test_a_compaction_on_request_leaves_calls_with_their_returns(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make(make_agent, "print_tool")
    for number in range(4):
        await send(client, "blocking", agent, f"Call print_tool with message 'ahoy {number}'")
    shrunk: Json = (await client.agents.messages.compact(agent_id=agent)).to_dict()
    assert shrunk["num_messages_after"] < shrunk["num_messages_before"]
    await check_at_rest(client, agent, compacted=True)
    told = await send(client, "blocking", agent, "Call print_tool with message 'again'")
    assert told.text == "print_tool returned again."

"""Calls that wait for a person: asking, refusing what does not fit, answering, answering again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.answers import answer, approval, approve, asked_ids, deny, returned, user
from tests.conformance.checks import (
    check_at_rest,
    check_next_message_works,
    check_told_is_stored,
    history,
    read_agent,
    read_run,
    rows,
    steps_of,
)
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, Outcome, begin, in_modes, send
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import with_every_vendor

ASK = "Call secret_code with 'open sesame'"
FOUR = (
    'Do it. [[call:secret_code {"input_text": "one"}]] [[call:secret_code {"input_text": "two"}]] '
    '[[call:secret_code {"input_text": "three"}]] [[call:roll_dice {"num_sides": 16}]]'
)
NOTHING_WAITS = "No tool call is currently awaiting approval"
ANSWER_FIRST = "Please approve or deny the pending request before continuing"


async def pause(client: AsyncLetta, agent: str, said: str = ASK) -> list[str]:
    """The ids of the calls that wait."""
    return asked_ids((await send(client, "blocking", agent, said)).last)


async def context_works(client: AsyncLetta, agent: str) -> bool:
    overview: Any = await client.get(f"/v1/agents/{agent}/context", cast_to=dict[str, Any])
    return overview["num_messages"] > 0


@in_modes("BSTGA", adapters="TG")
async def test_a4_a_guarded_call_pauses_the_agent(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make_agent("secret_code")

    paused = await send(client, mode, agent, ASK)

    assert paused.types == ["reasoning_message", "approval_request_message"]
    (call,) = paused.last["tool_calls"]
    assert call["name"] == "secret_code"
    assert json.loads(call["arguments"]) == {"input_text": "open sesame"}
    assert paused.last["otid"] == paused.last["id"]
    assert paused.stop_reason == "requires_approval"
    run = await read_run(client, paused.run_id)
    assert (run["status"], run["stop_reason"]) == ("completed", "requires_approval")
    state = await read_agent(client, agent)
    assert state["last_stop_reason"] == "requires_approval"
    assert state["pending_approval"]["id"] == paused.last["id"]
    assert [each["tool_call_id"] for each in state["pending_approval"]["tool_calls"]] == [call["tool_call_id"]]
    assert await context_works(client, agent)
    plain = await client.agents.retrieve(agent_id=agent)
    assert plain.pending_approval is None
    waiting: Any = await client.get(f"/v1/approvals/?agent_id={agent}", cast_to=list[Any])
    assert [each["run_id"] for each in waiting] == [paused.run_id]
    await check_told_is_stored(client, agent, paused)
    await check_at_rest(client, agent)


@in_modes("BSTGA", adapters="T")
async def test_a4_an_unguarded_sibling_waits_with_the_guarded_calls(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code", "roll_dice")

    paused = await send(client, mode, agent, FOUR)

    assert [len(message["tool_calls"]) for message in paused.messages if "tool_calls" in message] in ([1, 3], [3, 1])
    assert paused.only("tool_call_message")["tool_calls"][0]["name"] == "roll_dice"
    assert {call["name"] for call in paused.only("approval_request_message")["tool_calls"]} == {"secret_code"}
    assert "tool_return_message" not in paused.types
    assert await rows(client, agent) == [
        "user_message",
        "reasoning_message",
        "assistant_message",
        "tool_call_message",
        "approval_request_message",
    ]
    assert await context_works(client, agent)
    await check_told_is_stored(client, agent, paused)
    await check_at_rest(client, agent)


@in_modes("BSTG")
async def test_a5_a_plain_message_is_refused_while_an_answer_is_awaited(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)
    before = await history(client, agent)

    refused = await send(client, mode, agent, "Never mind that.")

    assert refused.status == 409
    assert ANSWER_FIRST in refused.error_text
    assert refused.error["detail"]["code"] == "PENDING_APPROVAL"
    assert refused.error["detail"]["pending_request_id"] == before[-1]["id"]
    assert await history(client, agent) == before
    assert len((await client.runs.list(agent_id=agent)).items) == 1
    approved = await send(client, "blocking", agent, approve(call))
    assert approved.stop_reason == "end_turn"
    await check_next_message_works(client, agent)


async def test_a6_an_answer_is_refused_when_nothing_is_asked(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("secret_code")

    refused = await send(client, "blocking", agent, approve("call_unknown"))

    assert refused.status == 400
    assert NOTHING_WAITS in refused.error_text
    assert (await client.runs.list(agent_id=agent)).items == []
    await check_next_message_works(client, agent)


async def check_refused_without_effect(client: AsyncLetta, agent: str, sent: list[Json], fragment: str) -> None:
    before, state = await history(client, agent), await read_agent(client, agent)
    for mode in ("blocking", "token"):
        refused = await send(client, mode, agent, sent)
        assert refused.status == 400
        assert fragment in refused.error_text
    assert await history(client, agent) == before
    assert await read_agent(client, agent) == state
    assert len((await client.runs.list(agent_id=agent)).items) == 1


async def test_a6_an_answer_that_does_not_fit_is_refused_and_changes_nothing(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("secret_code", "roll_dice")
    calls = await pause(client, agent, FOUR)
    sibling = (await history(client, agent))[-2]["tool_calls"][0]["tool_call_id"]

    await check_refused_without_effect(client, agent, approve("call_wrong", *calls[1:]), "Invalid tool call IDs")
    await check_refused_without_effect(client, agent, approve(*calls[:2]), "Invalid tool call IDs")
    await check_refused_without_effect(client, agent, approve(*calls, "call_more"), "Invalid tool call IDs")
    await check_refused_without_effect(client, agent, approve(*calls, sibling), "Invalid tool call IDs")
    await check_refused_without_effect(client, agent, approve(*calls, calls[0]), "Invalid tool call IDs")
    await check_refused_without_effect(client, agent, answer([]), "does not contain any approvals")

    approved = await send(client, "blocking", agent, approve(*calls))
    assert approved.stop_reason == "end_turn"
    await check_next_message_works(client, agent)


async def test_a6_the_old_form_of_an_approval_is_understood(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("secret_code")
    await pause(client, agent)
    request_id = (await history(client, agent))[-1]["id"]

    approved = await send(client, "blocking", agent, [{"approve": True, "approval_request_id": request_id}])

    assert approved.types[0] == "tool_return_message"
    assert approved.messages[0]["status"] == "success"
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="BT")
async def test_a7_an_approved_call_runs_and_its_return_comes_first(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    approved = await send(client, mode, agent, approve(call))

    assert approved.types == ["tool_return_message", "reasoning_message", "assistant_message"]
    assert approved.messages[0]["tool_call_id"] == call
    assert approved.messages[0]["status"] == "success"
    assert approved.messages[0]["tool_return"].startswith("open sesame ")
    assert approved.messages[0]["tool_return"] in approved.text
    assert await rows(client, agent) == [
        "user_message",
        "reasoning_message",
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    request, response, back = (await history(client, agent))[3:6]
    assert response["approvals"][0]["approve"] is True
    assert response["approval_request_id"] == call
    assert back["step_id"] == request["step_id"]
    assert back["run_id"] == response["run_id"] == approved.run_id != request["run_id"]
    assert approved.usage is not None
    assert approved.usage["step_count"] == len(await steps_of(client, approved.run_id)) == 1
    state = await read_agent(client, agent)
    assert state["pending_approval"] is None
    assert state["last_stop_reason"] == "end_turn"
    await check_told_is_stored(client, agent, approved)
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a7_a_denied_call_does_not_run_and_the_model_hears_the_reason(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    denied = await send(client, mode, agent, deny(call, reason="the code is 4711"))

    back = denied.messages[0]
    assert back["message_type"] == "tool_return_message"
    assert back["status"] == "error"
    assert back["tool_return"] == "Error: request to call tool denied. User reason: the code is 4711"
    assert "the code is 4711" in denied.text
    assert await context_works(client, agent)
    await check_told_is_stored(client, agent, denied)
    await check_next_message_works(client, agent)


async def test_a7_a_denial_without_a_reason_does_not_invent_one(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    denied = await send(client, "blocking", agent, deny(call))

    assert denied.messages[0]["tool_return"] == "Error: request to call tool denied."
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a7_a_client_may_answer_with_its_own_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    answered = await send(client, mode, agent, answer([returned(call, "code 1234")]))

    back = answered.messages[0]
    assert (back["tool_call_id"], back["status"], back["tool_return"]) == (call, "success", "code 1234")
    assert "code 1234" in answered.text
    response = next(
        message for message in await history(client, agent) if message["message_type"] == "approval_response_message"
    )
    assert (response["approvals"][0]["type"], response["approvals"][0]["tool_return"]) == ("tool", "code 1234")
    await check_told_is_stored(client, agent, answered)
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="BT")
async def test_a7_a_mixed_answer_gives_every_call_its_own_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code", "roll_dice")
    one, two, three = await pause(client, agent, FOUR)
    dice = (await history(client, agent))[-2]["tool_calls"][0]["tool_call_id"]

    mixed = answer([approval(one, True), approval(two, False, "not that"), returned(three, "done here")])
    answered = await send(client, mode, agent, mixed)

    back = answered.messages[0]
    assert back["message_type"] == "tool_return_message"
    by_call = {each["tool_call_id"]: each for each in back["tool_returns"]}
    assert list(by_call) == [one, two, three, dice], "in the order of the model's calls"
    assert by_call[one]["status"] == "success"
    assert by_call[one]["tool_return"].startswith("one ")
    assert by_call[two]["status"] == "error"
    assert by_call[two]["tool_return"].endswith("User reason: not that")
    assert (by_call[three]["status"], by_call[three]["tool_return"]) == ("success", "done here")
    assert by_call[dice]["status"] == "success"
    assert (back["name"], back["tool_call_id"], back["status"]) == ("secret_code", one, "success")
    for each in by_call.values():
        said = each["tool_return"] if each["status"] == "success" else "not that"
        assert answered.text.count(said) >= 1
    assert answered.text.count(by_call[one]["tool_return"]) == 1, "the model sees each return once"
    assert await context_works(client, agent)
    await check_told_is_stored(client, agent, answered)
    await check_next_message_works(client, agent)


@in_modes("BT", adapters="T")
async def test_a8_a_message_sent_with_the_approval_follows_the_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    approved = await send(client, mode, agent, [*approve(call), user("Keep it to yourself.")])

    assert approved.text == "You said: Keep it to yourself."
    assert (await rows(client, agent))[2:] == [
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
        "user_message",
        "reasoning_message",
        "assistant_message",
    ]
    await check_told_is_stored(client, agent, approved)
    await check_next_message_works(client, agent)


@in_modes("BT", adapters="T")
async def test_a8_nothing_is_lost_when_the_approval_uses_up_the_only_step(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    approved = await send(client, mode, agent, [*approve(call), user("Keep it to yourself.")], max_steps=1)

    assert approved.types == ["tool_return_message"]
    assert approved.stop_reason == "max_steps"
    assert (await rows(client, agent))[3:] == ["approval_response_message", "tool_return_message", "user_message"]
    await check_next_message_works(client, agent)


async def test_a8_something_that_is_no_message_cannot_follow_an_approval(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    refused = await send(client, "blocking", agent, [*approve(call), *approve(call)])

    assert refused.status == 422
    assert (await send(client, "blocking", agent, approve(call))).stop_reason == "end_turn"
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a9_a_provider_error_after_the_approval_leaves_the_agent_usable(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent, f"{ASK} [[error:server@2]] [[message:TEST: the vendor broke]]")

    failed = await send(client, "token", agent, approve(call))

    assert failed.status == 200
    assert "TEST: the vendor broke" in failed.error_text
    assert failed.types == ["tool_return_message"]
    assert failed.stop_reason == "llm_api_error"
    assert (await rows(client, agent))[-2:] == ["approval_response_message", "tool_return_message"]
    assert (await read_agent(client, agent))["pending_approval"] is None
    run = await read_run(client, failed.run_id)
    assert run["status"] == "failed"
    assert run["metadata"]["error"]["error_type"] == "llm_error"
    await check_next_message_works(client, agent)


def stored_returns(listed: list[Json]) -> list[Any]:
    return [each["tool_return"] for message in listed for each in message.get("tool_returns") or ()]


@in_modes("BT", adapters="T")
async def test_a10_the_same_approval_again_is_a_keep_alive(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)
    await send(client, mode, agent, approve(call))
    first = stored_returns(await history(client, agent))

    again = await send(client, mode, agent, approve(call))

    assert again.status == 200
    assert again.stop_reason == "end_turn"
    assert "tool_return_message" not in again.types
    listed = await history(client, agent)
    assert stored_returns(listed) == first
    said = [message["content"] for message in listed if message["message_type"] == "user_message"]
    assert "keep-alive" in said[-1]
    await check_next_message_works(client, agent)


@in_modes("BT", adapters="T")
async def test_a10_a_mixed_answer_again_runs_nothing_twice_and_its_message_counts(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code", "roll_dice")
    one, two, three = await pause(client, agent, FOUR)
    mixed = answer([approval(one, True), approval(two, False), returned(three, "done here")])
    await send(client, mode, agent, mixed)
    first = stored_returns(await history(client, agent))

    again = await send(client, mode, agent, [*mixed, user("And then?")])

    assert again.text == "You said: And then?"
    listed = await history(client, agent)
    assert stored_returns(listed) == first
    assert not any("keep-alive" in str(message.get("content")) for message in listed)
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a10_of_two_equal_approvals_at_once_one_runs_the_tool(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver
) -> None:
    agent = await make_agent("ring_gate")
    arguments = json.dumps({"url": receiver.url, "seconds": 0.3})
    (call,) = await pause(client, agent, f"[[call:ring_gate {arguments}]]")

    both = [begin(client, "blocking", agent, approve(call)) for _ in range(2)]
    outcomes: list[Outcome] = await asyncio.gather(*(turn.outcome() for turn in both))

    assert sorted(outcome.status for outcome in outcomes) in ([200, 200], [200, 409])
    assert len(receiver.received) == 1
    await check_next_message_works(client, agent)


async def test_a10_an_old_answer_does_not_answer_a_new_question(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)
    await send(client, "blocking", agent, approve(call))
    (second,) = await pause(client, agent)

    refused = await send(client, "blocking", agent, approve(call))

    assert refused.status == 400
    assert "Invalid tool call IDs" in refused.error_text
    assert (await send(client, "blocking", agent, approve(second))).stop_reason == "end_turn"
    await check_at_rest(client, agent)


@pytest.mark.parametrize("how", ["approval", "tool_return"])
async def test_a7_both_spellings_of_a_client_return_mean_the_same(
    client: AsyncLetta, make_agent: MakeAgent, how: str
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)
    items = [returned(call, "it failed here", "error")]

    sent = answer(items) if how == "approval" else [{"type": "tool_return", "tool_returns": items}]
    answered = await send(client, "blocking", agent, sent)

    assert answered.messages[0]["status"] == "error"
    assert answered.messages[0]["tool_return"] == "it failed here"
    assert answered.stop_reason == "end_turn"
    await check_next_message_works(client, agent)


@in_modes("BST")
async def test_a7_a_tool_made_again_under_the_same_name_is_refused_and_the_call_can_be_denied(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent, name = await make_agent(), f"pay_{mode}"
    asked_for = await _attached(client, agent, name, "asked for")
    (call,) = await pause(client, agent, f"Call {name}")
    await client.tools.delete(asked_for)
    other = await _attached(client, agent, name, "another tool")

    refused = await send(client, mode, agent, approve(call))

    assert refused.status == 409
    assert "belongs to another tool now" in refused.error_text
    denied = await send(client, mode, agent, deny(call))
    assert denied.messages[0]["status"] == "error"
    assert denied.stop_reason == "end_turn"
    await check_at_rest(client, agent)
    await client.tools.delete(other)


@in_modes("BST")
async def test_a7_a_client_tool_of_the_same_name_sent_with_the_answer_does_not_hide_the_approved_tool(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("secret_code")
    (call,) = await pause(client, agent)

    approved = await send(client, mode, agent, approve(call), client_tools=[{"name": "secret_code"}])

    assert approved.messages[0]["status"] == "success"
    assert approved.messages[0]["tool_return"].startswith("open sesame ")
    await check_at_rest(client, agent)


async def _attached(client: AsyncLetta, agent: str, name: str, returned: str) -> str:
    source = f'def {name}() -> str:\n    """Pay."""\n    return "{returned}"\n'
    tool = await client.tools.create(source_code=source, default_requires_approval=True)
    await client.agents.tools.attach(tool.id, agent_id=agent)
    return tool.id

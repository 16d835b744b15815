"""Stopping an agent, at every moment there is: the run ends cancelled, at once, and what was told is what is stored."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from letta_client import AsyncLetta, ConflictError, NotFoundError

from tests.conformance.answers import approve, asked_ids
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
from tests.conformance.modes import STREAMS, Json, Mode, Outcome, Turn, begin, eventually, in_modes, newest_run, send
from tests.conformance.receiver import Receiver
from tests.conformance.vendors import ADAPTERS, OFFLINE, with_every_vendor
from tests.effort import EFFORT

DENIED = "The user cancelled the request, so the tool call was denied."
SOON_S = 30.0  # of models and tools that would take a minute, or for ever


async def cancel(client: AsyncLetta, agent: str, *run_ids: str) -> dict[str, Any]:
    return await client.agents.messages.cancel(agent_id=agent, run_ids=list(run_ids) or None)


async def cancelled(client: AsyncLetta, agent: str, turn: Turn) -> Outcome:
    """Cancels the turn and sees that it ends soon, once, and as cancelled, on every side."""
    run_id = await turn.run_id()
    asked_at = time.time()
    assert await cancel(client, agent) == {run_id: "cancelled"}
    outcome = await turn.outcome()
    assert outcome.stop_reason == "cancelled"
    assert outcome.run_id == run_id
    assert outcome.error is None
    run = await read_run(client, run_id)
    assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")
    assert run["completed_at"].timestamp() - asked_at < SOON_S
    assert (await read_agent(client, agent))["last_stop_reason"] == "cancelled"
    return outcome


async def check_after_cancel(client: AsyncLetta, agent: str, outcome: Outcome, statuses: list[str]) -> None:
    steps = await steps_of(client, outcome.run_id)
    assert [step["status"] for step in steps] == statuses
    assert steps[-1]["stop_reason"] == "cancelled"
    assert outcome.usage is not None
    assert outcome.usage["step_count"] >= 0
    await check_told_is_stored(client, agent, outcome)
    await check_next_message_works(client, agent)


def was_heard(event: Json) -> bool:
    return event["message_type"] == "assistant_message"


@in_modes("BSTGA", adapters="BTG")
async def test_a11_a_cancel_right_after_the_request_stops_it_before_anything_is_said(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    stopped = await cancelled(client, agent, begin(client, mode, agent, "Think hard [[stall]]"))

    assert stopped.messages == []
    assert await rows(client, agent) == ["user_message"]
    await check_after_cancel(client, agent, stopped, ["cancelled"])


@in_modes("BSTGA", adapters="BTG")
async def test_a11_a_cancel_during_the_models_silence_does_not_wait_for_the_model(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    await send(client, "blocking", agent, "Hello")
    turn = begin(client, mode, agent, "Think hard [[ttft:60]]")
    await thinking(client, await turn.run_id())

    stopped = await cancelled(client, agent, turn)

    assert stopped.messages == []
    assert (await rows(client, agent))[-1] == "user_message"
    await check_after_cancel(client, agent, stopped, ["cancelled"])


async def thinking(client: AsyncLetta, run_id: str) -> None:
    async def look() -> bool | None:
        standing: Any = await client.get(f"/v1/runs/{run_id}/why", cast_to=dict[str, Any])
        return True if standing["phase"] == "thinking" else None

    await eventually(look, "the model was never asked")


@in_modes("BSTGA", adapters="BTG")
async def test_a11_a_cancel_between_tokens_keeps_what_the_client_has_seen(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    turn = begin(client, mode, agent, "[[no_reasoning]] [[tokens:50]] [[stall_after:10]]")
    seen = mode in ("token", "background")
    if seen:
        await turn.until(lambda _: sum(was_heard(event) for event in turn.events) == 10)

    stopped = await cancelled(client, agent, turn)

    if seen:
        assert stopped.types == ["assistant_message"]
        assert len(stopped.text.split()) == 10
        stored = (await history(client, agent))[-1]
        assert stored["content"] == stopped.text
    else:
        assert stopped.messages == []
    await check_after_cancel(client, agent, stopped, ["cancelled"])


@in_modes("TG", adapters="TG")
async def test_a11_a_cancel_amid_a_tool_call_drops_the_unfinished_call(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    turn = begin(client, mode, agent, "Call print_tool with message 'far too long to finish' [[stall_after:4]]")
    await turn.until_type("tool_call_message")

    stopped = await cancelled(client, agent, turn)

    assert await rows(client, agent) == ["user_message", "reasoning_message"]
    kept = [message for message in stopped.messages if message["message_type"] == "reasoning_message"]
    stopped.messages = kept
    await check_after_cancel(client, agent, stopped, ["cancelled"])


@in_modes("TG", adapters="T")
async def test_a11_a_cancel_amid_a_reply_that_is_only_a_call_leaves_just_the_input(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    """In the background it can be read again as it was shown: the driver of that mode compares."""
    agent = await make_agent("print_tool")
    turn = begin(client, mode, agent, "[[no_reasoning]] Call print_tool with message 'to be cut' [[stall_after:2]]")
    await turn.until_type("tool_call_message")

    stopped = await cancelled(client, agent, turn)

    assert stopped.types == ["tool_call_message"]
    assert await rows(client, agent) == ["user_message"]
    await check_next_message_works(client, agent)


@in_modes("BSTGA", adapters="BT")
async def test_a11_a_cancel_during_a_tool_kills_it_and_delivers_a_return(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver, mode: Mode
) -> None:
    agent = await make_agent("ring_bell")
    arguments = json.dumps({"url": receiver.url, "seconds": 60})
    turn = begin(client, mode, agent, f"[[call:ring_bell {arguments}]]")
    await receiver.until(1)

    stopped = await cancelled(client, agent, turn)

    assert stopped.types == ["reasoning_message", "tool_call_message", "tool_return_message"]
    assert stopped.last["status"] == "error"
    assert "cancelled" in stopped.last["tool_return"]
    await check_after_cancel(client, agent, stopped, ["cancelled"])


@in_modes("BSTGA", adapters="T")
async def test_a11_a_cancel_keeps_the_return_of_a_sibling_that_had_finished(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver, mode: Mode
) -> None:
    agent = await make_agent("print_tool", "ring_bell")
    arguments = json.dumps({"url": receiver.url, "seconds": 60})
    around = [f'[[call:print_tool {{"message": "{word}"}}]]' for word in ("done", "never")]
    said = f"{around[0]} [[call:ring_bell {arguments}]] {around[1]}"
    turn = begin(client, mode, agent, said)
    await receiver.until(1)

    stopped = await cancelled(client, agent, turn)

    returns = stopped.only("tool_return_message")["tool_returns"]
    assert [each["status"] for each in returns] == ["success", "error", "error"]
    assert returns[0]["tool_return"] == "done"
    assert "stopped" in returns[1]["tool_return"]
    assert "not executed" in returns[2]["tool_return"]
    await check_after_cancel(client, agent, stopped, ["cancelled"])


@in_modes("BSTGA", adapters="BT")
async def test_a11_a_cancel_between_two_steps_keeps_the_first(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")
    turn = begin(client, mode, agent, "Call print_tool with 'one' [[stall@2]]")
    if mode in STREAMS:
        await turn.until_type("tool_return_message")
    else:
        await second_step(client, await turn.run_id())

    stopped = await cancelled(client, agent, turn)

    assert stopped.types == ["reasoning_message", "tool_call_message", "tool_return_message"]
    assert stopped.last["status"] == "success"
    steps = await steps_of(client, stopped.run_id)
    assert [step["status"] for step in steps] in (["success", "cancelled"], ["success"])
    await check_told_is_stored(client, agent, stopped)
    await check_next_message_works(client, agent)


async def second_step(client: AsyncLetta, run_id: str) -> None:
    async def look() -> bool | None:
        return True if len(await steps_of(client, run_id)) == 2 else None

    await eventually(look, "there was no second step")


@in_modes("BSTG", adapters="T")
async def test_a11_a_cancel_while_an_approved_tool_runs_keeps_the_approval(
    client: AsyncLetta, make_agent: MakeAgent, receiver: Receiver, mode: Mode
) -> None:
    agent = await make_agent("ring_gate")
    arguments = json.dumps({"url": receiver.url, "seconds": 60})
    calls = asked_ids((await send(client, "blocking", agent, f"[[call:ring_gate {arguments}]]")).last)
    turn = begin(client, mode, agent, approve(*calls))
    await receiver.until(1)

    stopped = await cancelled(client, agent, turn)

    assert stopped.types == ["tool_return_message"]
    assert stopped.last["status"] == "error"
    assert (await rows(client, agent))[-3:] == [
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
    ]
    assert (await read_agent(client, agent))["pending_approval"] is None
    await check_told_is_stored(client, agent, stopped)
    await check_next_message_works(client, agent)
    assert len(receiver.received) == 1


THREE = " ".join(f'[[call:bash_tool {{"operation": "{name}"}}]]' for name in ("ls", "pwd", "id"))
SIBLING = ' [[call:print_tool {"message": "hi"}]]'


THREADS = ("default", "conversation")
PAUSES = {"one": "Call bash_tool with 'ls'", "three": THREE, "sibling": THREE + SIBLING}


@pytest.mark.parametrize(
    ("vendor", "said", "where"),
    [
        *[
            pytest.param(OFFLINE.name, PAUSES[name], where, id=f"{name}-{where}")
            for name in PAUSES
            for where in THREADS
        ],
        *[pytest.param(each.name, PAUSES["sibling"], "default", id=f"sibling-{each.name}") for each in ADAPTERS],
    ],
    indirect=["vendor"],
)
async def test_a12_cancelling_a_pause_denies_every_call(
    client: AsyncLetta, make_agent: MakeAgent, said: str, where: str
) -> None:
    agent = await make_agent("bash_tool", "print_tool")
    thread = agent if where == "default" else (await client.conversations.create(agent_id=agent)).id
    paused = await send(client, "blocking" if where == "default" else "step", thread, said)
    calls = asked_ids(paused.only("approval_request_message"))
    free = [message for message in paused.messages if message["message_type"] == "tool_call_message"]
    siblings = [call["tool_call_id"] for message in free for call in message["tool_calls"]]

    if where == "default":
        result: Any = await cancel(client, agent)
    else:
        result = await client.conversations.cancel(conversation_id=thread)

    assert result == {paused.run_id: "cancelled"}
    run = await read_run(client, paused.run_id)
    assert (run["status"], run["stop_reason"]) == ("cancelled", "cancelled")
    state = await read_agent(client, agent)
    assert state["last_stop_reason"] == "cancelled"
    assert state["pending_approval"] is None
    response, back = (await thread_history(client, agent, thread))[-2:]
    assert response["message_type"] == "approval_response_message"
    assert [(each["tool_call_id"], each["approve"], each["reason"]) for each in response["approvals"]] == [
        (call, False, DENIED) for call in calls
    ]
    assert [each["tool_call_id"] for each in back["tool_returns"]] == [*calls, *siblings]
    assert {each["status"] for each in back["tool_returns"]} == {"error"}
    assert all(each["tool_return"].endswith(f"User reason: {DENIED}") for each in back["tool_returns"])
    assert response["run_id"] == back["run_id"] == paused.run_id
    assert back["step_id"] == paused.last["step_id"]
    after = await send(client, "step", thread, "And now?")
    assert after.text == "You said: And now?"
    await check_at_rest(client, agent)


async def thread_history(client: AsyncLetta, agent: str, thread: str) -> list[Json]:
    if agent == thread:
        return await history(client, agent)
    page = await client.conversations.messages.list(conversation_id=thread, order="asc", limit=1000)
    return [message.to_dict() for message in page.items]


async def test_a12_cancelling_a_conversation_leaves_the_default_threads_question_open(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("bash_tool")
    conversation = (await client.conversations.create(agent_id=agent)).id
    mine = await send(client, "blocking", agent, "Call bash_tool with 'ls'")
    theirs = await send(client, "step", conversation, "Call bash_tool with 'pwd'")

    assert await client.conversations.cancel(conversation_id=conversation) == {theirs.run_id: "cancelled"}

    pending = (await read_agent(client, agent))["pending_approval"]
    assert pending["id"] == mine.last["id"]
    approved = await send(client, "blocking", agent, approve(*asked_ids(mine.last)))
    assert approved.stop_reason == "end_turn"
    await check_next_message_works(client, agent)


async def test_a13_cancelling_twice_says_so_twice(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    turn = begin(client, "token", agent, "Wait [[stall]]")
    stopped = await cancelled(client, agent, turn)
    assert stopped.run_id is not None

    with pytest.raises(ConflictError, match="No active runs to cancel for agent agent-"):
        await cancel(client, agent)
    assert await cancel(client, agent, stopped.run_id) == {stopped.run_id: "cancelled"}
    assert (await read_run(client, stopped.run_id))["status"] == "cancelled"
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a13_two_cancels_at_once_agree(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    turn = begin(client, "token", agent, "Wait [[stall]]")
    run_id = await turn.run_id()

    results = await asyncio.gather(*(cancel(client, agent, run_id) for _ in range(5)))

    assert results == [{run_id: "cancelled"}] * 5
    assert (await turn.outcome()).stop_reason == "cancelled"
    await check_next_message_works(client, agent)


async def test_a13_a_finished_run_stays_as_it_is(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    done = await send(client, "blocking", agent, "Hello")
    assert done.run_id is not None
    before = await read_run(client, done.run_id)

    assert await cancel(client, agent, done.run_id) == {done.run_id: "already_finished"}

    assert await read_run(client, done.run_id) == before
    assert (await read_agent(client, agent))["last_stop_reason"] == "end_turn"


async def test_a13_what_cannot_be_cancelled_is_said_run_by_run(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent, other = await make_agent(), await make_agent()
    turn = begin(client, "token", other, "Wait [[stall]]")
    foreign, unknown = await turn.run_id(), "run-00000000-0000-4000-8000-000000000000"

    result = await cancel(client, agent, unknown, "nonsense", foreign)

    assert result == {unknown: "failed", "nonsense": "failed", foreign: "failed"}
    assert (await read_run(client, foreign))["status"] == "running"
    assert (await cancelled(client, other, turn)).stop_reason == "cancelled"


async def test_a13_an_idle_agent_has_nothing_to_cancel(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id

    with pytest.raises(ConflictError, match=f"CONFLICT: No active runs to cancel for agent {agent}"):
        await cancel(client, agent)
    with pytest.raises(ConflictError, match="No active runs to cancel for conversation"):
        await client.conversations.cancel(conversation_id=conversation)
    with pytest.raises(NotFoundError):
        await cancel(client, "agent-00000000-0000-4000-8000-000000000000")
    await check_next_message_works(client, agent)


# A hundred moments with more effort; with a vendor, which takes longer, a quarter of them.
RACES = [
    *[pytest.param(OFFLINE.name, part, id=str(part)) for part in range(1 if EFFORT == 1 else 4)],
    *[pytest.param(vendor.name, part, id=f"{part}-{vendor.name}") for part, vendor in enumerate(ADAPTERS)],
]


@pytest.mark.slow
@pytest.mark.timeout(600)  # twenty-five turns, each looked at from all sides: a busy machine needs a while
@pytest.mark.parametrize(("vendor", "part"), RACES, indirect=["vendor"])
async def test_a14_a_cancel_that_races_the_end_and_everybody_agrees_who_won(
    client: AsyncLetta, make_agent: MakeAgent, part: int
) -> None:
    """Twenty-five moments in each part, spread over a little more than the time a turn takes."""
    agent = await make_agent("print_tool")
    await send(client, "blocking", agent, "Hello")  # the first turn with a vendor takes longer than usual
    began = time.perf_counter()
    await send(client, "blocking", agent, "Call print_tool with 'x'")
    usual_s = time.perf_counter() - began

    for number in range(25):
        moment_s = usual_s * 1.1 * (4 * number + part) / 100
        await check_race(client, agent, moment_s)
        if number % 5 == 4:
            await client.agents.messages.reset(agent_id=agent)


async def check_race(client: AsyncLetta, agent: str, moment_s: float) -> None:
    turn = begin(client, "blocking", agent, "Call print_tool with 'x'")
    await asyncio.sleep(moment_s)  # the moment is what is varied
    try:
        answers = await cancel(client, agent)
    except ConflictError:
        answers = {}
    outcome = await turn.outcome()
    run = await newest_run(client, agent)
    assert run["id"] == outcome.run_id
    assert run["stop_reason"] == outcome.stop_reason
    won = answers.get(run["id"]) == "cancelled"
    assert run["status"] == ("cancelled" if won else "completed")
    assert outcome.stop_reason == ("cancelled" if won else "end_turn")
    steps = await steps_of(client, run["id"])
    assert all(step["status"] in ("success", "cancelled") for step in steps)
    if not won:
        assert [step["status"] for step in steps] == ["success", "success"]
    await check_told_is_stored(client, agent, outcome)
    await check_at_rest(client, agent, compacted=True)

"""Compaction: when the window is nearly full, when it overflows, on request, and with a question still open."""

from __future__ import annotations

from typing import Any

import pytest
from letta_client import AsyncLetta, BadRequestError, ConflictError

from tests.conformance.answers import approve, asked_ids
from tests.conformance.checks import check_at_rest, history, read_agent
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, as_json, begin, in_modes, send
from tests.conformance.vendors import with_every_vendor

NEARLY_FULL = "[[usage:120000,10]]"
WORDS = "lorem ipsum dolor sit amet " * 40


async def talk(client: AsyncLetta, agent: str, turns: int = 6) -> None:
    for number in range(turns):
        await send(client, "blocking", agent, f"Turn {number}: {WORDS}")


async def compact(client: AsyncLetta, agent: str, **settings: Any) -> Json:
    body: Any = {"compaction_settings": settings} if settings else {}
    return (await client.agents.messages.compact(agent_id=agent, **body)).to_dict()


@in_modes("BT", adapters="T")
async def test_a23_a_window_nearly_full_is_compacted_after_the_step(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    await talk(client, agent)
    before = (await read_agent(client, agent))["message_ids"]

    told = await send(client, mode, agent, f"Hello {NEARLY_FULL}", include_compaction_messages=True)

    assert told.stop_reason == "end_turn"
    assert told.types[:2] == ["reasoning_message", "assistant_message"]
    event, summary = told.only("event_message"), told.only("summary_message")
    assert event["event_type"] == "compaction"
    assert event["event_data"]["trigger"] == "post_step_context_check"
    assert event["event_data"]["context_window"] == 128_000
    assert summary["summary"]
    assert summary["compaction_stats"]["trigger"] == "post_step_context_check"
    assert summary["compaction_stats"]["messages_count_after"] < summary["compaction_stats"]["messages_count_before"]
    after = (await read_agent(client, agent))["message_ids"]
    assert after[0] == before[0]
    assert after[1] == summary["id"]
    assert len(after) < len(before)
    await check_at_rest(client, agent, compacted=True)
    again = await send(client, "blocking", agent, "Still there?")
    assert again.text == "You said: Still there?"


@in_modes("BT")
async def test_a23_a_request_that_did_not_ask_is_not_shown_the_compaction(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    await talk(client, agent)
    before = len((await read_agent(client, agent))["message_ids"])

    told = await send(client, mode, agent, f"Hello {NEARLY_FULL}")

    assert told.types == ["reasoning_message", "assistant_message"]
    assert len((await read_agent(client, agent))["message_ids"]) < before
    summaries = [each for each in await history(client, agent) if "system_alert" in str(each.get("content"))]
    assert [each["message_type"] for each in summaries] == ["user_message"]
    await check_at_rest(client, agent, compacted=True)


@in_modes("BT", adapters="BT")
async def test_a23_a_request_that_overflows_is_compacted_and_tried_again(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    await talk(client, agent)
    measured = (await send(client, "blocking", agent, "How full is it?")).usage
    assert measured is not None
    window = measured["prompt_tokens"]
    before = (await read_agent(client, agent))["message_ids"]
    told = await send(client, mode, agent, f"Hello [[window:{window}]]", include_compaction_messages=True)

    assert told.stop_reason == "end_turn"
    assert told.types[-1] == "assistant_message"
    assert told.only("summary_message")["compaction_stats"]["trigger"] == "context_window_exceeded"
    assert told.usage is not None
    assert told.usage["step_count"] == 1
    assert len((await read_agent(client, agent))["message_ids"]) < len(before)
    await check_at_rest(client, agent, compacted=True)


@in_modes("BT", adapters="T")
async def test_a23_a_question_survives_compaction(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent = await make_agent("bash_tool")
    await talk(client, agent)

    paused = await send(client, mode, agent, f"Call bash_tool with 'ls' {NEARLY_FULL}")
    assert paused.stop_reason == "requires_approval"
    made = await compact(client, agent, mode="all")

    assert made["num_messages_after"] < made["num_messages_before"]
    state = await read_agent(client, agent)
    assert state["pending_approval"]["id"] == paused.last["id"] == state["message_ids"][-1]
    approved = await send(client, mode, agent, approve(*asked_ids(paused.last)))
    assert approved.messages[0]["tool_return"] == "ran ls"
    assert approved.stop_reason == "end_turn"
    await check_at_rest(client, agent, compacted=True)


async def test_a23_compaction_of_everything_leaves_the_system_message_and_a_summary(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    await talk(client, agent, 3)
    before = await history(client, agent)

    made = await compact(client, agent, mode="all")

    assert made["num_messages_before"] == 7
    assert made["num_messages_after"] == 2
    assert made["summary"]
    assert len((await read_agent(client, agent))["message_ids"]) == 2
    kept = {message["id"] for message in await history(client, agent)}
    assert {message["id"] for message in before} <= kept, "what left the window can still be listed"
    again = await compact(client, agent)
    assert again["num_messages_before"] == again["num_messages_after"] == 2
    assert again["summary"] == made["summary"]
    assert (await send(client, "blocking", agent, "Hello")).text == "You said: Hello"
    await check_at_rest(client, agent, compacted=True)


async def test_a23_a_conversation_is_compacted_on_its_own(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await talk(client, agent, 2)
    conversation = (await client.conversations.create(agent_id=agent)).id
    for number in range(3):
        await send(client, "step", conversation, f"Turn {number}: {WORDS}")
    mine = (await read_agent(client, agent))["message_ids"]

    made = await client.conversations.messages.compact(
        conversation_id=conversation, compaction_settings={"mode": "all"}
    )

    assert made.num_messages_after == 2
    kept = as_json(await client.conversations.retrieve(conversation_id=conversation))["in_context_message_ids"]
    assert len(kept) == 2
    assert (await read_agent(client, agent))["message_ids"] == mine
    with pytest.raises(BadRequestError):
        await client.conversations.messages.compact(conversation_id=conversation)


@with_every_vendor
async def test_a23_a_busy_agent_is_not_compacted(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    await talk(client, agent, 2)
    turn = begin(client, "token", agent, "Wait [[stall]]")
    run_id = await turn.run_id()

    with pytest.raises(ConflictError):
        await compact(client, agent)
    with pytest.raises(ConflictError):
        await client.agents.messages.reset(agent_id=agent)

    assert await client.agents.messages.cancel(agent_id=agent) == {run_id: "cancelled"}
    assert (await turn.outcome()).stop_reason == "cancelled"
    await check_at_rest(client, agent)


@in_modes("BT")
async def test_a23_a_system_prompt_that_does_not_fit_is_named_as_the_reason(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent(system="Be very careful. " * 800, context_window_limit=2_000)

    failed = await send(client, mode, agent, "Hello")

    assert failed.stop_reason == "context_window_overflow_in_system_prompt"
    assert failed.status == (400 if mode == "blocking" else 200)
    assert (await read_agent(client, agent))["last_stop_reason"] == "context_window_overflow_in_system_prompt"
    await check_at_rest(client, agent, compacted=True)

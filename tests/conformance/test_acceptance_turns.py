"""Turns that nobody disturbs: greeting, tools, the ends a turn can come to."""

from __future__ import annotations

import uuid

from letta_client import AsyncLetta

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
from tests.conformance.modes import Mode, in_modes, send


@in_modes("BSTGA", adapters="T")
async def test_a1_a_greeting_is_answered(client: AsyncLetta, make_agent: MakeAgent, mode: Mode) -> None:
    agent, otid = await make_agent(), str(uuid.uuid4())

    greeted = await send(client, mode, agent, [{"role": "user", "content": "Hello there", "otid": otid}])

    assert greeted.types == ["reasoning_message", "assistant_message"]
    assert greeted.text == "You said: Hello there"
    assert greeted.stop_reason == "end_turn"
    assert greeted.usage is not None
    assert greeted.usage["total_tokens"] == greeted.usage["prompt_tokens"] + greeted.usage["completion_tokens"] > 0
    assert greeted.usage["step_count"] == 1
    assert [message["otid"][-1] for message in greeted.messages] == ["0", "1"]
    assert len({message["id"] for message in greeted.messages}) == 1
    stored = await history(client, agent)
    assert [message["message_type"] for message in stored] == ["system_message", "user_message", *greeted.types]
    assert stored[1]["otid"] == otid
    run = await read_run(client, greeted.run_id)
    assert run["background"] is (mode in ("background", "async"))
    assert run["metadata"]["run_type"] == {"async": "send_message_async", "blocking": "send_message"}.get(
        mode, "send_message" if mode == "step" else "send_message_streaming"
    )
    assert run["ttft_ns"] > 0
    assert (await read_agent(client, agent))["last_stop_reason"] == "end_turn"
    await check_told_is_stored(client, agent, greeted)
    await check_next_message_works(client, agent)


@in_modes("BSTGA", adapters="T")
async def test_a2_one_tool_is_called_and_its_return_reported(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, mode, agent, "Call print_tool with message 'ahoy'")

    assert told.types == [
        "reasoning_message",
        "tool_call_message",
        "tool_return_message",
        "reasoning_message",
        "assistant_message",
    ]
    call, back = told.messages[1], told.messages[2]
    assert [each["name"] for each in call["tool_calls"]] == ["print_tool"]
    assert back["tool_return"] == "ahoy"
    assert back["status"] == "success"
    assert back["name"] == "print_tool"
    assert back["tool_call_id"] == call["tool_calls"][0]["tool_call_id"]
    assert back["tool_returns"][0]["stdout"] == ["ahoy\n"]
    assert told.text == "print_tool returned ahoy."
    assert told.stop_reason == "end_turn"
    assert told.usage is not None
    assert told.usage["step_count"] == 2
    steps = await steps_of(client, told.run_id)
    assert [step["status"] for step in steps] == ["success", "success"]
    assert [step["stop_reason"] for step in steps] == [None, "end_turn"]
    assert sum(step["total_tokens"] for step in steps) == told.usage["total_tokens"]
    assert call["step_id"] == back["step_id"] == steps[0]["id"]
    assert told.last["step_id"] == steps[1]["id"]
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@in_modes("BSTGA", adapters="T")
async def test_a3_three_parallel_calls_share_one_message_and_one_return(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, mode, agent, "Call print_tool three times with messages 'one', 'two' and 'three'")

    call, back = told.only("tool_call_message"), told.only("tool_return_message")
    assert [each["name"] for each in call["tool_calls"]] == ["print_tool"] * 3
    assert call["tool_call"]["tool_call_id"] == call["tool_calls"][0]["tool_call_id"]
    assert [each["tool_return"] for each in back["tool_returns"]] == ["one", "two", "three"]
    assert [each["tool_call_id"] for each in back["tool_returns"]] == [
        each["tool_call_id"] for each in call["tool_calls"]
    ]
    assert back["tool_return"] == "one"
    assert told.usage is not None
    assert told.usage["step_count"] == 2
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a25_the_step_limit_ends_a_run_that_would_go_on(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, mode, agent, "Call print_tool with 'again' [[repeat]]", max_steps=2)

    assert told.stop_reason == "max_steps"
    assert told.types.count("tool_call_message") == told.types.count("tool_return_message") == 2
    assert told.types[-1] == "tool_return_message"
    assert (await read_run(client, told.run_id))["status"] == "completed"
    assert len(await steps_of(client, told.run_id)) == 2
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a25_an_answer_cut_by_the_output_limit_is_kept_and_the_run_fails(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    told = await send(client, mode, agent, "[[say:I was about to]] [[finish:length]]")

    assert told.status == 200
    assert told.stop_reason == "max_tokens_exceeded"
    assert told.text == "I was about to"
    run = await read_run(client, told.run_id)
    assert run["status"] == "failed"
    assert run["metadata"]["error"]["error_type"] == "max_tokens_exceeded"
    assert run["metadata"]["run_type"].startswith("send_message")
    await check_told_is_stored(client, agent, told)
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a25_an_empty_response_ends_the_turn_and_stores_nothing(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()

    told = await send(client, mode, agent, "[[empty]]")

    assert told.messages == []
    assert told.stop_reason == "end_turn"
    assert await rows(client, agent) == ["user_message"]
    await check_next_message_works(client, agent)


@in_modes("BST", adapters="T")
async def test_a25_an_answer_does_not_excuse_from_a_required_tool(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    rules = [{"type": "required_before_exit", "tool_name": "print_tool"}]
    agent = await make_agent("print_tool", tool_rules=rules)

    told = await send(client, mode, agent, "[[say:I would rather not.@1]]")

    assert told.only("tool_return_message")["name"] == "print_tool"
    assert told.stop_reason == "end_turn"
    said = [message for message in await history(client, agent) if message["message_type"] == "user_message"]
    assert len(said) == 2
    assert "You must call print_tool at least once to exit the loop." in said[1]["content"]
    await check_at_rest(client, agent)


@in_modes("BST", adapters="T")
async def test_a25_the_limit_leaves_no_nudge_behind_when_a_required_tool_was_not_called(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    rules = [{"type": "required_before_exit", "tool_name": "print_tool"}]
    agent = await make_agent("print_tool", tool_rules=rules)

    told = await send(client, mode, agent, "[[say:No.]]", max_steps=1)

    assert told.stop_reason == "max_steps"
    assert (await rows(client, agent)).count("user_message") == 1
    await check_at_rest(client, agent)

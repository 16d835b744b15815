"""What the loop owes every turn besides the answer: accounts, limits, previews, memory in view, rules kept."""

from __future__ import annotations

import json
from typing import Any

from letta_client import AsyncLetta

from tests.conformance.answers import approve, asked_ids
from tests.conformance.checks import check_at_rest, history, read_agent, read_run, rows, steps_of
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Mode, in_modes, send


async def post(client: AsyncLetta, path: str, body: Json) -> Any:
    return await client.post(path, cast_to=dict[str, Any], body=body)


@in_modes("BSTGA")
async def test_every_step_says_what_it_cost_and_who_was_asked(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, mode, agent, "Call print_tool with 'x' [[usage:100,10,40,5]]")

    for step in await steps_of(client, told.run_id):
        assert (step["prompt_tokens"], step["completion_tokens"], step["total_tokens"]) == (100, 10, 110)
        assert (step["cached_input_tokens"], step["reasoning_tokens"]) == (40, 5)
        assert step["model"] == "offline"
        assert step["model_handle"] == "holdfast/offline"
        assert step["provider_name"] == "holdfast"
        assert step["provider_category"] == "base"
        assert step["context_window_limit"] == 128_000
        assert (step["run_id"], step["agent_id"]) == (told.run_id, agent)
    assert told.usage is not None
    assert told.usage["total_tokens"] == 220


@in_modes("BSTGA")
async def test_the_agent_remembers_when_it_last_ran_and_for_how_long(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent()
    assert (await read_agent(client, agent))["last_run_completion"] is None

    told = await send(client, mode, agent, "Hello [[ttft:0.1]]")

    state, run = await read_agent(client, agent), await read_run(client, told.run_id)
    assert state["last_run_completion"] is not None
    assert state["last_run_duration_ms"] >= 100
    assert run["ttft_ns"] >= 100_000_000
    assert run["total_duration_ns"] >= run["ttft_ns"]


@in_modes("BT")
async def test_a_call_of_a_tool_that_does_not_exist_is_told_which_do(
    client: AsyncLetta, make_agent: MakeAgent, mode: Mode
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, mode, agent, "[[call:no_such_tool {}@1]]")

    back = told.only("tool_return_message")
    assert back["status"] == "error"
    assert "Cannot call no_such_tool, valid tools include: ['print_tool']." in back["tool_return"]
    assert told.stop_reason == "end_turn"
    await check_at_rest(client, agent)


async def test_arguments_that_cannot_be_read_are_an_error_and_not_a_call(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("print_tool")

    told = await send(client, "blocking", agent, '[[call:print_tool {"message": @1]]')

    back = told.only("tool_return_message")
    assert back["status"] == "error"
    assert back["stdout"] in (None, [])
    await check_at_rest(client, agent)


async def test_of_several_calls_only_the_first_is_kept_when_they_may_not_be_parallel(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("print_tool", parallel=False)
    calls = " ".join(f'[[call:print_tool {{"message": "{word}"}}@1]]' for word in ("one", "two"))

    told = await send(client, "blocking", agent, f"{calls} [[parallel]]")

    assert [back["tool_return"] for back in told.only("tool_return_message")["tool_returns"]] == ["one"]
    await check_at_rest(client, agent)


async def test_a_long_return_is_cut_where_the_tool_says(client: AsyncLetta, make_agent: MakeAgent) -> None:
    source = (
        "def long_winded(count: int) -> str:\n"
        '    """Says a lot.\n\n    Args:\n        count (int): How much.\n    """\n'
        "    return 'x' * count\n"
    )
    tool = await client.tools.upsert(source_code=source, return_char_limit=100)
    agent = await make_agent()
    await client.agents.tools.attach(tool.id, agent_id=agent)

    told = await send(client, "blocking", agent, "Call long_winded with count 1000")

    back = told.only("tool_return_message")["tool_return"]
    assert back.startswith("x" * 100)
    assert "truncated since it exceeded the character limit (1000 > 100)" in back


async def test_a_preview_shows_the_request_and_leaves_no_trace(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool")
    before = await history(client, agent)

    preview = await post(
        client, f"/v1/agents/{agent}/messages/preview-raw-payload", {"messages": [{"role": "user", "content": "Boo"}]}
    )

    assert preview["model"] == "offline"
    assert preview["messages"][-1]["content"] == "Boo"
    assert preview["tools"][0]["function"]["name"] == "print_tool"
    assert await history(client, agent) == before
    assert (await client.runs.list(agent_id=agent)).items == []
    assert (await client.steps.list(agent_id=agent)).items == []


async def test_the_model_sees_an_answered_hold_as_one_turn_with_every_return(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("bash_tool", "print_tool")
    said = 'Go. [[call:bash_tool {"operation": "ls"}@1]] [[call:print_tool {"message": "hi"}@1]]'
    paused = await send(client, "blocking", agent, said)
    await send(client, "blocking", agent, approve(*asked_ids(paused.last)))

    preview = await post(
        client, f"/v1/agents/{agent}/messages/preview-raw-payload", {"messages": [{"role": "user", "content": "?"}]}
    )

    turns = [message for message in preview["messages"] if message["role"] != "system"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert {call["function"]["name"] for call in turns[1]["tool_calls"]} == {"bash_tool", "print_tool"}
    assert {turn["tool_call_id"] for turn in turns[2:4]} == {call["id"] for call in turns[1]["tool_calls"]}
    envelope = json.loads(turns[2]["content"])
    assert envelope.keys() == {"status", "message", "time"}
    assert envelope["status"] == "OK"


async def test_one_request_may_have_its_own_system_prompt_model_and_skills(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()
    body: Json = {"messages": [{"role": "user", "content": "Boo"}]}
    skills = [{"name": "sewing", "description": "Mends sails.", "location": "skills/sewing.md"}]
    route = f"/v1/agents/{agent}/messages/preview-raw-payload"

    spoken = await post(client, route, body | {"override_system": "Speak like a pirate.", "client_skills": skills})
    skilled = await post(client, route, body | {"client_skills": skills})
    told = await send(client, "blocking", agent, "Boo", override_model="holdfast/offline", override_system="Brief.")

    assert spoken["messages"][0]["content"] == "Speak like a pirate."
    assert "sewing" in skilled["messages"][0]["content"].partition("<available_skills>")[2]
    assert told.stop_reason == "end_turn"
    stored = (await history(client, agent))[0]["content"]
    assert not {"pirate", "sewing", "Brief."} & set(stored.split())


async def test_an_agent_that_clears_its_buffer_starts_every_request_afresh(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent(message_buffer_autoclear=True)
    await send(client, "blocking", agent, "Remember the anchor")

    preview = await post(
        client, f"/v1/agents/{agent}/messages/preview-raw-payload", {"messages": [{"role": "user", "content": "?"}]}
    )

    assert [message["role"] for message in preview["messages"]] == ["system", "user"]
    assert preview["messages"][1]["content"] == "?"


async def test_what_a_memory_tool_writes_is_in_view_at_once(client: AsyncLetta, make_agent: MakeAgent) -> None:
    blocks = [{"label": "human", "value": "Name: unknown"}]
    agent = await make_agent(memory_blocks=blocks, tools=["core_memory_append"])
    arguments = json.dumps({"label": "human", "content": "Likes knots."})

    told = await send(client, "blocking", agent, f"[[call:core_memory_append {arguments}@1]]")

    assert told.only("tool_return_message")["status"] == "success"
    block = await client.agents.blocks.retrieve("human", agent_id=agent)
    assert "Likes knots." in block.value
    assert "Likes knots." in (await history(client, agent))[0]["content"]
    await check_at_rest(client, agent)


async def test_several_messages_in_one_request_are_all_kept_in_order(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    said: Any = [
        {"role": "user", "content": "First this."},
        {"role": "system", "content": "A notice."},
        {"role": "assistant", "content": "I once said so."},
        {"role": "user", "content": [{"type": "text", "text": "Then that."}]},
    ]

    told = await send(client, "blocking", agent, said)

    assert told.text == "You said: Then that."
    assert (await rows(client, agent))[:4] == ["user_message", "system_message", "assistant_message", "user_message"]
    by_input = await client.agents.messages.create(agent_id=agent, input="The short way.")
    assert by_input.messages[-1].to_dict()["content"] == "You said: The short way."


async def test_a_reset_clears_the_window_and_keeps_the_history(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("bash_tool")
    await send(client, "blocking", agent, "Call bash_tool with 'ls'")
    before = await history(client, agent)

    answer = await client.agents.messages.reset(agent_id=agent)

    state = await read_agent(client, agent)
    assert answer is not None
    assert answer.message_ids == state["message_ids"]
    assert len(state["message_ids"]) == 1
    assert state["pending_approval"] is None
    assert {message["id"] for message in before[1:]} <= {message["id"] for message in await history(client, agent)}
    after = await send(client, "blocking", agent, "Hello")
    assert after.text == "You said: Hello"

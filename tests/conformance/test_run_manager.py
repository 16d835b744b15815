"""Runs as records: made, listed, measured, ended once, cancelled, deleted, all through the API."""

from __future__ import annotations

from typing import Any

import pytest
from letta_client import AsyncLetta, NotFoundError

from tests.conformance.checks import check_next_message_works, history, read_agent, read_run, steps_of
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, as_json, begin, eventually, send

UNKNOWN = "run-00000000-0000-4000-8000-000000000000"


async def listed(client: AsyncLetta, **filters: Any) -> list[str]:
    return [run.id for run in (await client.runs.list(**filters)).items]


async def get(client: AsyncLetta, path: str) -> Any:
    return await client.get(path, cast_to=dict[str, Any])


async def test_a_run_records_who_asked_what_and_how_it_went(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()

    done = await send(
        client,
        "blocking",
        agent,
        "Hello",
        include_return_message_types=["assistant_message"],
        use_assistant_message=True,
    )

    run = await read_run(client, done.run_id)
    assert run["agent_id"] == agent
    assert run["metadata"] == {"run_type": "send_message"}
    assert run["request_config"] == {
        "use_assistant_message": True,
        "assistant_message_tool_name": "send_message",
        "assistant_message_tool_kwarg": "message",
        "include_return_message_types": ["assistant_message"],
    }
    assert run["background"] is False
    assert run["conversation_id"] is None
    assert run["created_at"] < run["completed_at"]
    assert run["total_duration_ns"] >= run["ttft_ns"] > 0
    assert run["callback_url"] is None


async def test_an_unknown_run_is_not_found_on_any_route(client: AsyncLetta) -> None:
    for path in ("", "/messages", "/usage", "/metrics", "/steps", "/why"):
        with pytest.raises(NotFoundError):
            await get(client, f"/v1/runs/{UNKNOWN}{path}")
    with pytest.raises(NotFoundError):
        await client.runs.messages.stream(UNKNOWN)


async def test_runs_are_listed_by_agent_status_stop_reason_background_and_conversation(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent, other = await make_agent("bash_tool"), await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id
    plain = (await send(client, "blocking", agent, "Hello")).run_id
    behind = (await send(client, "background", agent, "Hello")).run_id
    failed = (await send(client, "token", agent, "Hello [[error:auth]]")).run_id
    apart = (await send(client, "step", conversation, "Hello")).run_id
    paused = (await send(client, "blocking", agent, "Call bash_tool with 'ls'")).run_id
    elsewhere = (await send(client, "blocking", other, "Hello")).run_id

    assert await listed(client, agent_id=agent) == [paused, apart, failed, behind, plain]
    assert await listed(client, agent_id=agent, order="asc") == [plain, behind, failed, apart, paused]
    assert set(await listed(client, agent_ids=[agent, other])) == {plain, behind, failed, apart, paused, elsewhere}
    assert await listed(client, agent_id=agent, background=True) == [behind]
    assert await listed(client, agent_id=agent, statuses=["failed"]) == [failed]
    assert await listed(client, agent_id=agent, stop_reason="requires_approval") == [paused]
    assert await listed(client, conversation_id=conversation) == [apart]
    assert await listed(client, agent_id=agent, active=True) == []
    assert (await read_run(client, apart))["conversation_id"] == conversation


async def test_active_runs_are_found_while_they_are_active(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    turn = begin(client, "token", agent, "Wait [[stall]]")
    run_id = await turn.run_id()

    assert await listed(client, agent_id=agent, active=True) == [run_id]
    assert await listed(client, agent_id=agent, statuses=["running"]) == [run_id]
    assert [run["id"] for run in await get(client, f"/v1/runs/active?agent_id={agent}")] == [run_id]
    running = await read_run(client, run_id)
    assert (running["status"], running["stop_reason"], running["completed_at"]) == ("running", None, None)

    await client.agents.messages.cancel(agent_id=agent)
    assert (await turn.outcome()).stop_reason == "cancelled"
    assert await get(client, f"/v1/runs/active?agent_id={agent}") == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_list_can_be_walked_page_by_page(client: AsyncLetta, make_agent: MakeAgent, order: Any) -> None:
    agent = await make_agent()
    made = [(await send(client, "blocking", agent, f"Message {number}")).run_id for number in range(5)]

    walked = [run.id async for run in client.runs.list(agent_id=agent, limit=2, order=order)]

    assert walked == (made if order == "asc" else made[::-1])
    middle = walked[2]
    assert middle is not None
    assert await listed(client, agent_id=agent, order=order, after=middle) == walked[3:]
    assert await listed(client, agent_id=agent, order=order, before=middle) == walked[:2]


async def test_usage_is_the_sum_over_every_step(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool")

    told = await send(
        client, "blocking", agent, "Call print_tool with 'x' [[repeat]] [[usage:100,10,40,5]]", max_steps=60
    )
    assert told.run_id is not None
    usage = as_json(await client.runs.usage.retrieve(run_id=told.run_id))

    assert len(await steps_of(client, told.run_id)) == 60
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6000, 600, 6600)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2400
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 300
    metrics = await get(client, f"/v1/runs/{told.run_id}/metrics")
    assert metrics["num_steps"] == 60


async def test_a_runs_messages_are_its_input_and_its_output(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool")
    await send(client, "blocking", agent, "Hello")
    told = await send(client, "blocking", agent, "Call print_tool with 'x'")
    assert told.run_id is not None

    page = (await client.runs.messages.list(run_id=told.run_id)).items
    backwards = (await client.runs.messages.list(run_id=told.run_id, order="desc")).items

    assert [message.message_type for message in page] == ["user_message", *told.types]
    assert [message.to_dict() for message in backwards] == [message.to_dict() for message in reversed(page)]
    walked = [message.id async for message in client.runs.messages.list(run_id=told.run_id, limit=1)]
    assert walked == [message.id for message in page]
    assert all(message["run_id"] == told.run_id for message in (await history(client, agent))[-len(page) :])


async def test_metrics_tell_how_long_it_took_and_which_tools_were_used(
    client: AsyncLetta, make_agent: MakeAgent, tool_ids: dict[str, str]
) -> None:
    agent = await make_agent("print_tool", "roll_dice")
    told = await send(client, "blocking", agent, "Call print_tool with 'x'")
    plain = await send(client, "blocking", agent, "Hello")

    metrics = await get(client, f"/v1/runs/{told.run_id}/metrics")

    assert metrics["id"] == told.run_id
    assert metrics["agent_id"] == agent
    assert metrics["num_steps"] == 2
    assert metrics["tools_used"] == [tool_ids["print_tool"]]
    assert metrics["run_ns"] == (await read_run(client, told.run_id))["total_duration_ns"] > 0
    assert metrics["run_start_ns"] > 10**18
    assert (await get(client, f"/v1/runs/{plain.run_id}/metrics"))["tools_used"] is None


async def test_steps_are_listed_newest_first_and_measured(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool")
    told = await send(client, "blocking", agent, "Call print_tool with 'x'")
    assert told.run_id is not None

    newest_first = [step.id for step in (await client.runs.steps.list(run_id=told.run_id)).items]
    oldest_first = [step["id"] for step in await steps_of(client, told.run_id)]

    assert newest_first == oldest_first[::-1]
    assert [message["step_id"] for message in told.messages] == [oldest_first[0]] * 3 + [oldest_first[1]] * 2
    first = await get(client, f"/v1/steps/{oldest_first[0]}/metrics")
    assert first["step_ns"] >= first["llm_request_ns"] > 0
    assert first["step_ns"] >= first["tool_execution_ns"] > 0
    assert first["llm_request_start_ns"] >= first["step_start_ns"]
    last = await get(client, f"/v1/steps/{oldest_first[1]}/metrics")
    assert last["tool_execution_ns"] is None


async def test_the_end_of_a_run_adds_to_its_metadata_and_replaces_nothing(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent()

    failed = await send(client, "background", agent, "Hello [[error:timeout]]")

    run = await read_run(client, failed.run_id)
    assert run["metadata"].keys() == {"run_type", "error"}
    assert run["metadata"]["run_type"] == "send_message_streaming"
    assert run["completed_at"] is not None
    assert (await read_agent(client, agent))["last_stop_reason"] == run["stop_reason"]


async def test_an_ended_run_can_only_be_cancelled_if_it_waits_for_approval(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    agent = await make_agent("bash_tool")
    done = await send(client, "blocking", agent, "Hello")
    failed = await send(client, "token", agent, "Hello [[error:auth]]")
    paused = await send(client, "blocking", agent, "Call bash_tool with 'ls'")
    ids = [each.run_id for each in (done, failed, paused) if each.run_id]

    answers = await client.agents.messages.cancel(agent_id=agent, run_ids=ids)

    assert answers == {
        done.run_id: "already_finished",
        failed.run_id: "already_finished",
        paused.run_id: "cancelled",
    }
    assert [(await read_run(client, each))["status"] for each in ids] == ["completed", "failed", "cancelled"]
    await check_next_message_works(client, agent)


async def test_cancelling_by_agent_reaches_every_active_run_of_it(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    conversation = (await client.conversations.create(agent_id=agent)).id
    turns = [begin(client, "token", thread, "Wait [[stall]]") for thread in (agent, conversation)]
    run_ids = [await turn.run_id() for turn in turns]

    answers = await client.agents.messages.cancel(agent_id=agent)

    assert answers == dict.fromkeys(run_ids, "cancelled")
    assert [(await turn.outcome()).stop_reason for turn in turns] == ["cancelled"] * 2
    await check_next_message_works(client, agent)


async def test_a_deleted_run_is_gone_and_its_messages_are_not(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    done = await send(client, "background", agent, "Hello")
    before = await history(client, agent)

    assert await client.delete(f"/v1/runs/{done.run_id}", cast_to=dict[str, Any]) is None

    with pytest.raises(NotFoundError):
        await read_run(client, done.run_id)
    with pytest.raises(NotFoundError):
        await client.delete(f"/v1/runs/{done.run_id}", cast_to=dict[str, Any])
    assert [strip(message) for message in await history(client, agent)] == [strip(message) for message in before]
    assert (await read_agent(client, agent))["message_ids"] == list(dict.fromkeys(each["id"] for each in before))
    after = await send(client, "blocking", agent, "Still there?")
    assert after.text == "You said: Still there?"


def strip(message: Json) -> Json:
    return {name: value for name, value in message.items() if name not in ("run_id", "step_id")}


async def test_a_run_is_running_as_soon_as_somebody_works_on_it(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent()
    messages: Any = [{"role": "user", "content": "Wait [[stall]]"}]
    begun = await client.agents.messages.create_async(agent_id=agent, messages=messages)
    assert begun.status in ("created", "running")

    async def look() -> bool | None:
        return True if (await read_run(client, begun.id))["status"] == "running" else None

    assert await eventually(look, "nobody began to work on it")
    why = await get(client, f"/v1/runs/{begun.id}/why")
    assert why["phase"] == "thinking"
    assert why["summary"]
    assert await client.agents.messages.cancel(agent_id=agent) == {begun.id: "cancelled"}
    assert "cancelled" in (await get(client, f"/v1/runs/{begun.id}/why"))["summary"]


async def found(client: AsyncLetta, **query: Any) -> list[str]:
    """Through the filters that the client has no arguments for."""
    return [run.id for run in (await client.runs.list(extra_query=query)).items]


async def test_runs_are_found_by_what_was_measured_of_them(
    client: AsyncLetta, make_agent: MakeAgent, tool_ids: dict[str, str]
) -> None:
    agent = await make_agent("print_tool", "roll_dice")
    short = (await send(client, "blocking", agent, "Hello")).run_id
    long = (await send(client, "blocking", agent, "Call print_tool with 'x'")).run_id
    middle = (await send(client, "blocking", agent, 'Say "name":"roll_dice"')).run_id
    took = {run_id: (await read_run(client, run_id))["total_duration_ns"] for run_id in (middle, long, short)}
    slowest, between, quickest = sorted(took, key=took.__getitem__, reverse=True)
    median = took[between]
    begun = (await read_run(client, long))["created_at"].isoformat()

    assert await found(client, agent_id=agent, step_count=2) == [long]
    assert await found(client, agent_id=agent, step_count=1, step_count_operator="lte") == [middle, short]
    assert await found(client, agent_id=agent, step_count=1, step_count_operator="gte") == [middle, long, short]
    assert await found(client, agent_id=agent, tools_used=[tool_ids["print_tool"], tool_ids["bash_tool"]]) == [long]
    assert await found(client, agent_id=agent, tools_used=[tool_ids["roll_dice"]]) == []
    assert await found(client, agent_id=agent, tools_used=["tool-unknown"]) == []
    assert await found(client, agent_id=agent, start_date=begun) == [middle, long]
    assert await found(client, agent_id=agent, end_date=begun) == [long, short]
    assert await found(client, agent_id=agent, order_by="duration") == [slowest, between, quickest]
    assert await found(client, agent_id=agent, order_by="duration", order="asc", limit=2) == [quickest, between]
    assert await found(client, agent_id=agent, order_by="duration", after=slowest) == [between, quickest]
    assert await found(client, agent_id=agent, duration_ns=median, duration_operator="gt") == [slowest]
    assert await found(client, agent_id=agent, duration_ns=median, duration_operator="lt") == [quickest]
    assert await found(client, agent_id=agent, duration_ns=median, duration_operator="eq") == [between]
    assert await found(client, agent_id=agent, duration_percentile=50) == [each for each in took if each != quickest]
    assert await found(client, agent_id=agent, duration_percentile=100) == [slowest]

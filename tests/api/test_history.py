"""An agent's own history: compacting it, beginning again, and looking at what a model would be sent."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from letta_client import APIStatusError, ConflictError

from holdfast import ids
from holdfast.actions.threads.compact import compact_thread
from holdfast.core.failures import RetryPolicy
from holdfast.core.usage import Usage
from holdfast.engine.compacting import Compaction, CompactionJob, Compactor
from holdfast.errors import Conflict
from holdfast.wire.conversations import CompactionSettingsInput

from ..served import ServedClient, run_of, served
from .resources import Served

SECRET = 'def open_door() -> str:\n    """Open the door."""\n    return "opened"\n'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def window(client: ServedClient, agent_id: str) -> list[str]:
    return (await client.agents.retrieve(agent_id)).message_ids or []


async def test_compacting_everything_leaves_the_system_message_and_the_summary(client: ServedClient) -> None:
    agent = await client.agent()
    for text in ("[[summary:we greeted each other]]", "more", "and more"):
        await client.say(agent.id, text)
    before = await window(client, agent.id)
    body = {"compaction_settings": {"mode": "all"}}
    made = await client.ask("POST", f"/v1/agents/{agent.id}/summarize", body)
    assert made == {"summary": "we greeted each other", "num_messages_before": 7, "num_messages_after": 2}
    after = await window(client, agent.id)
    assert after[0] == before[0]
    assert len(after) == 2
    listed = [row async for row in client.agents.messages.list(agent.id, order="asc")]
    assert {row.id for row in listed} >= set(before)
    payload = await client.ask("POST", f"/v1/agents/{agent.id}/messages/preview-raw-payload", {"input": "next"})
    assert "we greeted each other" in str(payload["messages"][1]["content"])
    assert (await client.say(agent.id, "[[say:still here]]")).stop_reason.stop_reason == "end_turn"


async def test_compacting_an_empty_history_changes_nothing(client: ServedClient) -> None:
    agent = await client.agent()
    path = f"/v1/agents/{agent.id}/summarize"
    assert await client.ask("POST", path) == {"summary": None, "num_messages_before": 1, "num_messages_after": 1}
    await client.say(agent.id, "[[summary:short]]")
    await client.ask("POST", path, {"compaction_settings": {"mode": "all"}})
    assert await client.ask("POST", path) == {"summary": "short", "num_messages_before": 2, "num_messages_after": 2}


async def test_compacting_a_single_turn_summarises_all_of_it(client: ServedClient) -> None:
    """In the usual mode the turn's reply would stay, and the summary be one message in the place of another."""
    agent = await client.agent()
    await client.say(agent.id, "[[summary:one turn]] " + "long " * 500)
    made = await client.ask("POST", f"/v1/agents/{agent.id}/summarize")
    assert made == {"summary": "one turn", "num_messages_before": 3, "num_messages_after": 2}
    assert len(await window(client, agent.id)) == 2
    assert (await client.say(agent.id, "[[say:still here]]")).messages[-1].content == "still here"


async def test_compacting_that_frees_nothing_is_refused_and_leaves_the_window_alone(client: ServedClient) -> None:
    agent = await client.agent()
    with pytest.raises(APIStatusError):
        await client.say(agent.id, "hello [[error:bad_request]]")
    before = await window(client, agent.id)
    detail = await client.refusal(400, "POST", f"/v1/agents/{agent.id}/summarize")
    assert detail.startswith("Summarization failed to reduce the number of messages")
    assert await window(client, agent.id) == before


async def test_a_summariser_that_fails_leaves_the_window_alone(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "[[summary_error:rate_limit]]")
    await client.say(agent.id, "more")
    before = await window(client, agent.id)
    path, body = f"/v1/agents/{agent.id}/summarize", {"compaction_settings": {"mode": "all"}}
    answer = await client.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "llm_rate_limit")
    assert await window(client, agent.id) == before


async def test_a_summariser_that_does_not_exist_is_the_requests_mistake(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    path, body = f"/v1/agents/{agent.id}/summarize", {"compaction_settings": {"mode": "all", "model": "nobody/none"}}
    assert "nobody/none not found" in await client.refusal(404, "POST", path, body)


async def test_a_summary_of_messages_that_changed_meanwhile_is_thrown_away(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    await client.say(agent.id, "more")

    class OvertakenCompactor(Compactor):
        async def compact(self, wanted: CompactionJob) -> Compaction:
            await client.say(agent.id, "[[say:quicker]] [[no_reasoning]]")
            return await super().compact(wanted)

    deps = client.deps
    with pytest.raises(Conflict, match="changed while"):
        await compact_thread(
            agent.id,
            CompactionSettingsInput(mode="all"),
            database=deps.database,
            catalog=deps.catalog,
            compactor=OvertakenCompactor(deps.catalog, deps.clock, deps.compactor.ratios, RetryPolicy(0)),
            clock=deps.clock,
            refuse_empty=False,
        )
    assert len(await window(client, agent.id)) == 7
    listed = await client.ask("GET", f"/v1/agents/{agent.id}/messages")
    assert listed[-1]["content"] == "quicker"


async def test_a_pending_approval_survives_compaction(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    await client.say(agent.id, "hello")
    paused = await client.say(agent.id, "Call open_door")
    made = await client.ask("POST", f"/v1/agents/{agent.id}/summarize", {"compaction_settings": {"mode": "all"}})
    assert made["num_messages_after"] == 3
    approval = {"type": "approval", "tool_call_id": paused.messages[-1].tool_call.tool_call_id, "approve": True}
    body = {"messages": [{"type": "approval", "approvals": [approval]}]}
    answer = await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
    assert answer["messages"][0]["tool_returns"][0]["tool_return"] == "opened"


@pytest.mark.parametrize(
    ("method", "tail"), [("POST", "summarize"), ("PATCH", "reset-messages")], ids=["compact", "reset"]
)
async def test_the_history_cannot_be_cut_while_a_run_is_active(client: ServedClient, method: str, tail: str) -> None:
    agent = await client.agent()
    stream = await client.agents.messages.create(agent.id, input="[[stall]]", streaming=True)
    run_id = await run_of(stream)
    assert run_id in await client.refusal(409, method, f"/v1/agents/{agent.id}/{tail}", {})
    await client.agents.messages.cancel(agent.id)
    await stream.close()


async def test_a_reset_keeps_the_system_message_in_view_and_all_rows_in_the_history(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello [[no_reasoning]]")
    before = await window(client, agent.id)
    answer = await client.ask("PATCH", f"/v1/agents/{agent.id}/reset-messages", {})
    assert await window(client, agent.id) == before[:1] == answer["message_ids"]
    listed = [row.id async for row in client.agents.messages.list(agent.id, order="asc")]
    assert listed == before
    context = await client.ask("GET", f"/v1/agents/{agent.id}/context")
    assert context["num_messages"] == 1
    assert "2 previous messages" in context["external_memory_summary"]


async def test_a_reset_may_greet_as_a_new_agent_does(client: ServedClient) -> None:
    agent = await client.agent(agent_type="memgpt_v2_agent")
    first = len(agent.message_ids or [])
    await client.ask("PATCH", f"/v1/agents/{agent.id}/reset-messages", {"add_default_initial_messages": True})
    again = await window(client, agent.id)
    assert len(again) == first > 1
    assert again[0] == (agent.message_ids or [])[0]


async def test_a_reset_withdraws_a_pending_approval(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    await client.say(agent.id, "Call open_door")
    with pytest.raises(ConflictError):
        await client.say(agent.id, "and?")
    await client.agents.messages.reset(agent.id)
    assert await client.ask("GET", "/v1/approvals/") == []
    (run,) = [run async for run in client.runs.list(agent_id=agent.id)]
    assert run.status == "cancelled"
    assert len(await window(client, agent.id)) == 1
    assert (await client.say(agent.id, "[[say:fresh]]")).messages[-1].content == "fresh"


async def test_recompiling_follows_the_memory_and_keeps_its_bytes_while_nothing_changed(client: ServedClient) -> None:
    agent = await client.agent(memory_blocks=[{"label": "human", "value": "Ada"}])
    path = f"/v1/agents/{agent.id}/recompile"
    text = await client.ask("POST", path)
    assert "Ada" in text
    assert await client.ask("POST", path) == text
    await client.agents.blocks.update("human", agent_id=agent.id, value="Grace")
    assert "Grace" in await client.ask("POST", path, dry_run=True)
    assert "Ada" in await stored_system(client, agent.id)
    alias = f"/v1/agents/{agent.id}/system-prompt/recompile"
    assert "Grace" in await client.ask("POST", alias, update_timestamp=True)
    assert "Grace" in await stored_system(client, agent.id)


async def test_the_context_adds_up_and_shows_every_part(client: ServedClient) -> None:
    rules: list[Any] = [
        {"type": "exit_loop", "tool_name": "open_door"},
        {"type": "requires_approval", "tool_name": "open_door"},
    ]
    blocks: list[Any] = [{"label": "human", "value": "Ada"}]
    agent = await client.guarded_agent(SECRET, memory_blocks=blocks, tool_rules=rules)
    await client.say(agent.id, "Call open_door")
    context = await client.ask("GET", f"/v1/agents/{agent.id}/context")
    counted = sum(value for name, value in context.items() if name.startswith("num_tokens_"))
    assert context["context_window_size_current"] == counted
    assert context["context_window_size_max"] == 128_000
    assert "Ada" in context["core_memory"]
    assert "open_door" in (context["tool_usage_rules"] or "")
    assert [tool["function"]["name"] for tool in context["functions_definitions"]] == ["open_door"]
    assert context["num_messages"] == 3
    assert [row["role"] for row in context["messages"]] == ["user", "approval"]
    await client.agents.messages.cancel(agent.id)
    denied = await client.ask("GET", f"/v1/agents/{agent.id}/context")
    assert [row["role"] for row in denied["messages"]] == ["user", "approval", "approval", "tool"]


async def test_the_context_is_what_the_next_request_costs(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET, memory_blocks=[{"label": "human", "value": "Ada, who asks a lot."}])
    for number in range(4):
        await client.say(agent.id, f"[[say:{'answer ' * 40}]] {number} {'question ' * 60}")
    context = await client.ask("GET", f"/v1/agents/{agent.id}/context")
    said = "[[say:fine]] and now?"
    told = await client.say(agent.id, said)
    assert context["context_window_size_current"] == pytest.approx(told.usage.prompt_tokens, rel=0.05)


async def test_of_a_long_tool_return_the_context_counts_what_is_sent(client: ServedClient) -> None:
    talkative = SECRET.replace('"opened"', '"opened " * 5_000')
    agent = await client.guarded_agent(talkative, context_window_limit=8_000)
    asked = (await client.say(agent.id, "Call open_door [[say:fine]]")).messages[-1]
    approval = {"type": "approval", "tool_call_id": asked.tool_call.tool_call_id, "approve": True}
    body = {"messages": [{"type": "approval", "approvals": [approval]}]}
    told = await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
    context = await client.ask("GET", f"/v1/agents/{agent.id}/context")
    assert context["context_window_size_current"] == pytest.approx(told["usage"]["context_tokens"], rel=0.05)


async def test_the_context_is_counted_the_way_the_models_vendor_counts(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    await client.say(agent.id, "[[say:fine]] hello")
    path = f"/v1/agents/{agent.id}/context"
    guessed = await client.ask("GET", path)
    ratios = client.deps.compactor.ratios
    assert await ratios.of("holdfast/offline") == 1.0
    ratios.learn("holdfast/offline", 1_000, Usage(2_000, 5))
    counted = await client.ask("GET", path)
    tokens = [name for name in guessed if name.startswith("num_tokens_")]
    assert {name: counted[name] for name in tokens} == {name: math.ceil(1.25 * guessed[name]) for name in tokens}
    assert counted["context_window_size_current"] == sum(counted[name] for name in tokens)


async def test_compacting_counts_the_tools_that_are_sent_with_every_request(client: ServedClient) -> None:
    heavy = f'def heavy() -> str:\n    """{"Much to say. " * 300}"""\n    return ""\n'
    left: dict[str, int] = {}
    for name, source in (("light", SECRET), ("heavy", heavy)):
        agent = await client.guarded_agent(source, context_window_limit=2_000)
        for number in range(6):
            await client.say(agent.id, f"[[say:fine]] {number} {'word ' * 30}")
        made = await client.ask("POST", f"/v1/agents/{agent.id}/summarize")
        left[name] = made["num_messages_after"]
    assert left["heavy"] < left["light"]


async def test_the_context_of_a_conversation_is_its_own(client: ServedClient) -> None:
    agent, stranger = await client.agent(), await client.agent()
    await client.say(agent.id, "[[summary:in short]] hello")
    conversation = await client.conversations.create(agent_id=agent.id)
    await client.ask("POST", f"/v1/agents/{agent.id}/summarize", {"compaction_settings": {"mode": "all"}})
    path = f"/v1/agents/{agent.id}/context"
    assert (await client.ask("GET", path))["summary_memory"] == "in short"
    other = await client.ask("GET", path, conversation_id=conversation.id)
    assert (other["num_messages"], other["summary_memory"]) == (1, None)
    assert conversation.id in other["external_memory_summary"]
    await client.refusal(404, "GET", f"/v1/agents/{stranger.id}/context", conversation_id=conversation.id)
    await client.refusal(404, "GET", f"/v1/agents/{ids.new('agent')}/context")


async def test_a_preview_is_what_would_be_sent_and_leaves_no_trace(client: ServedClient) -> None:
    agent = await client.guarded_agent(SECRET)
    path = f"/v1/agents/{agent.id}/messages/preview-raw-payload"
    payload = await client.ask("POST", path, {"messages": [{"role": "user", "content": "what if"}]})
    assert payload["messages"][-1] == {"role": "user", "content": "what if"}
    assert [tool["function"]["name"] for tool in payload["tools"]] == ["open_door"]
    assert len(await window(client, agent.id)) == 1
    assert [run async for run in client.runs.list(agent_id=agent.id)] == []
    assert [step async for step in client.steps.list(agent_id=agent.id)] == []
    await client.say(agent.id, "Call open_door")
    assert (await client.refusal(409, "POST", path, {"input": "x"}))["code"] == "PENDING_APPROVAL"


async def stored_system(client: ServedClient, agent_id: str) -> Any:
    rows = await client.ask("GET", f"/v1/agents/{agent_id}/messages", order="asc")
    return rows[0]["content"]


async def test_a_message_sent_with_an_approval_follows_the_return_in_every_list(served: Served) -> None:
    tool = await served.create_tool(default_requires_approval=True)
    agent = await served.create(tool_ids=[tool["id"]])
    send = f"/v1/agents/{agent['id']}/messages"
    asked = await served.ok("POST", send, {"input": "Call roll_dice with sides 6"})
    answer = {"type": "approval", "approve": True, "approval_request_id": asked["messages"][-1]["id"]}
    said = [{"role": "user", "content": "and"}, {"role": "user", "content": "hello"}]
    told = await served.ok("POST", send, {"messages": [answer, *said]})
    expected = ["approval_response_message", "tool_return_message", "user_message", "user_message"]
    run_id = told["messages"][0]["run_id"]
    for path in (f"/v1/runs/{run_id}/messages", send, "/v1/messages/"):
        listed = await served.ok("GET", path, order="asc", limit=50)
        kinds = [message["message_type"] for message in listed]
        first = kinds.index("approval_response_message")
        assert kinds[first : first + 4] == expected, path
        assert [message["content"] for message in listed[first + 2 : first + 4]] == ["and", "hello"]

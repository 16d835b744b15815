"""Agents that call send_message, over HTTP: how they are made, and what becomes of replies that are not as they should
be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.llm.base import ModelInfo

from ..served import ServedClient, served
from .resources import THINKER, Catalog, serving

TYPES = ("memgpt_agent", "memgpt_v2_agent")
SENDING = ("blocking", "step", "token")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def made(client: ServedClient, agent_type: str = "memgpt_v2_agent", **fields: Any) -> dict[str, Any]:
    return await client.ask("POST", "/v1/agents/", {"model": "holdfast/offline", "agent_type": agent_type, **fields})


async def told(client: ServedClient, agent: dict[str, Any], sending: str, text: str, **more: Any) -> list[Any]:
    """The messages of a turn, pieces joined to nothing, and at its end why it stopped and its usage."""
    path, body = f"/v1/agents/{agent['id']}/messages", {"input": text, **more}
    if sending == "blocking":
        answer = await client.ask("POST", path, body)
        return [*answer["messages"], answer["stop_reason"], answer["usage"]]
    events = await client.events(f"{path}/stream", {**body, "stream_tokens": sending == "token"})
    return [event for event in events if isinstance(event, dict) and event["message_type"] != "ping"]


def words(messages: list[Any]) -> str:
    return "".join(each["content"] for each in messages if each["message_type"] == "assistant_message")


class Gpt5(Catalog):
    async def find(self, handle: str) -> ModelInfo:
        if handle == "openai/gpt-5.2":
            return msgspec.structs.replace(THINKER, handle=handle, name="gpt-5.2", provider_name="openai")
        return await super().find(handle)


@pytest.mark.parametrize("agent_type", TYPES)
async def test_models_that_follow_instructions_get_no_rules_of_ours(
    database_url: str, tmp_path: Path, agent_type: str
) -> None:
    async with serving(database_url, tmp_path, Gpt5()) as server:
        free = await server.create(agent_type=agent_type, model="openai/gpt-5.2")
        bound = await server.create(agent_type=agent_type, model="acme/thinker")
    assert free["tool_rules"] == []
    assert "send_message" in {tool["name"] for tool in free["tools"]}
    assert {rule["type"] for rule in bound["tool_rules"]} == {"exit_loop", "continue_loop"}


@pytest.mark.parametrize("agent_type", ["react_agent", "workflow_agent"])
async def test_base_tools_that_are_attached_by_id_bring_their_rules(client: ServedClient, agent_type: str) -> None:
    ids = {tool["name"]: tool["id"] for tool in await client.ask("GET", "/v1/tools/", limit=100)}
    given = {"tool_ids": [ids["memory_insert"], ids["send_message"]]}
    rules = (await made(client, agent_type, **given))["tool_rules"]
    assert {rule["tool_name"]: rule["type"] for rule in rules} == {
        "memory_insert": "continue_loop",
        "send_message": "exit_loop",
    }
    assert (await made(client, agent_type, include_base_tool_rules=False, **given))["tool_rules"] == []
    bare = await made(client, agent_type)
    assert (bare["tools"], bare["tool_rules"]) == ([], [])


async def test_the_first_messages_belong_to_no_run_and_have_otids_like_all_others(client: ServedClient) -> None:
    agent = await made(client)
    listed = await client.ask("GET", f"/v1/agents/{agent['id']}/messages", order="asc")
    assert [each["message_type"] for each in listed] == [
        "system_message",
        "reasoning_message",
        "assistant_message",
        "user_message",
    ]
    assert {(each["step_id"], each["run_id"]) for each in listed} == {(None, None)}
    assert all(each["otid"] for each in listed)


async def test_ids_of_calls_fit_every_vendor(client: ServedClient) -> None:
    agent = await made(client)
    payload = await client.ask("POST", f"/v1/agents/{agent['id']}/messages/preview-raw-payload", {"input": "hi"})
    [call] = [call for each in payload["messages"] for call in each.get("tool_calls") or ()]
    [answer] = [each for each in payload["messages"] if each["role"] == "tool"]
    assert 0 < len(call["id"]) <= 29
    assert answer["tool_call_id"] == call["id"]


@pytest.mark.parametrize("sending", SENDING)
async def test_usage_says_the_same_however_a_turn_is_sent(client: ServedClient, sending: str) -> None:
    *_, stop, usage = await told(client, await made(client), sending, "hello [[usage:100,7]]")
    assert stop["stop_reason"] == "end_turn"
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["step_count"]) == (100, 7, 1)
    assert usage["run_ids"] is None
    # Null is what the vendor did not report; the offline model reports what it read from a cache, and never writes one.
    assert (usage["cached_input_tokens"], usage["cache_write_tokens"], usage["reasoning_tokens"]) == (0, None, 0)


@pytest.mark.parametrize("agent_type", TYPES)
@pytest.mark.parametrize("sending", SENDING)
async def test_arguments_that_cannot_be_read_are_told_to_the_model(
    client: ServedClient, sending: str, agent_type: str
) -> None:
    agent = await made(client, agent_type)
    *messages, stop, usage = await told(client, agent, sending, 'Go. [[call:send_message {"message: x}@1]]')
    [returned] = [each for each in messages if each["message_type"] == "tool_return_message"]
    assert returned["status"] == "error"
    assert "not valid JSON" in returned["tool_return"]
    assert (stop["stop_reason"], usage["step_count"]) == ("end_turn", 2)


@pytest.mark.parametrize("agent_type", TYPES)
@pytest.mark.parametrize("sending", SENDING)
async def test_of_several_calls_the_first_is_made(client: ServedClient, sending: str, agent_type: str) -> None:
    agent = await made(client, agent_type)
    both = '[[parallel]] [[call:send_message {"message": "one"}@1]] [[call:send_message {"message": "two"}@1]]'
    *messages, stop, usage = await told(client, agent, sending, both)
    assert words(messages) == "one"
    assert (stop["stop_reason"], usage["step_count"]) == ("end_turn", 1)
    listed = await client.ask("GET", f"/v1/agents/{agent['id']}/messages", use_assistant_message=False)
    calls = [call for each in listed for call in each.get("tool_calls") or () if "two" in call["arguments"]]
    assert calls == []


@pytest.mark.parametrize("sending", SENDING)
async def test_a_whole_call_counts_even_if_the_reply_was_cut_for_its_length(client: ServedClient, sending: str) -> None:
    *messages, stop, _ = await told(client, await made(client), sending, "[[finish:length]] hello")
    assert words(messages) == "You said: hello"
    assert stop["stop_reason"] == "end_turn"


async def test_a_react_agent_without_tools_cannot_answer_and_says_why(client: ServedClient) -> None:
    agent = await made(client, "react_agent")
    answer = await client.http.post(f"/v1/agents/{agent['id']}/messages", json={"input": "hello"})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["type"], "model must make a tool call" in error["detail"]) == ("llm_error", True)
    payload = await client.ask("POST", f"/v1/agents/{agent['id']}/messages/preview-raw-payload", {"input": "hi"})
    assert not payload.get("tools")
    assert not payload.get("tool_choice")


@pytest.mark.parametrize("agent_type", TYPES)
async def test_another_model_may_answer_one_turn(client: ServedClient, agent_type: str) -> None:
    agent = await made(client, agent_type)
    *messages, stop, _ = await told(client, agent, "blocking", "hello", override_model="holdfast/offline")
    assert (words(messages), stop["stop_reason"]) == ("You said: hello", "end_turn")
    body = {"input": "hello", "override_model": "nobody/nothing"}
    assert "nobody/nothing" in await client.refusal(404, "POST", f"/v1/agents/{agent['id']}/messages", body)


@pytest.mark.parametrize("agent_type", TYPES)
async def test_the_agent_shows_what_it_waits_for(client: ServedClient, agent_type: str) -> None:
    rules = [{"type": "requires_approval", "tool_name": "conversation_search"}]
    agent = await made(client, agent_type, tool_rules=rules)
    *messages, stop, _ = await told(client, agent, "blocking", 'Go. [[call:conversation_search {"query": "x"}@1]]')
    assert stop["stop_reason"] == "requires_approval"
    seen = await client.ask("GET", f"/v1/agents/{agent['id']}", include="agent.pending_approval")
    listed = await client.ask("GET", f"/v1/agents/{agent['id']}/messages", order="asc")
    assert seen["pending_approval"]["id"] == messages[-1]["id"]
    assert seen["pending_approval"]["tool_call"] == listed[-1]["tool_call"]


async def test_a_tool_that_brings_a_heartbeat_of_its_own_has_one(client: ServedClient) -> None:
    """As tools of MCP servers are stored."""
    parameters = {
        "type": "object",
        "properties": {"x": {"type": "string"}, "request_heartbeat": {"type": "boolean"}},
        "required": ["x", "request_heartbeat"],
    }
    source = 'def echo(x: str) -> str:\n    """Echo."""\n    return x\n'
    schema = {"name": "echo", "description": "Echo.", "parameters": parameters}
    tool = await client.ask("POST", "/v1/tools/", {"source_code": source, "json_schema": schema})
    agent = await made(client, tool_ids=[tool["id"]])
    payload = await client.ask("POST", f"/v1/agents/{agent['id']}/messages/preview-raw-payload", {"input": "hi"})
    [shown] = [each["function"] for each in payload["tools"] if each["function"]["name"] == "echo"]
    assert list(shown["parameters"]["properties"]) == ["thinking", "x", "request_heartbeat"]
    assert shown["parameters"]["required"] == ["thinking", "x", "request_heartbeat"]
    call = json.dumps({"thinking": "So.", "x": "ahoy", "request_heartbeat": False})
    *messages, stop, usage = await told(client, agent, "blocking", f"Go. [[call:echo {call}@1]]")
    assert messages[-1]["tool_return"] == "ahoy"
    assert (stop["stop_reason"], usage["step_count"]) == ("end_turn", 1)


async def test_a_tool_that_the_agent_has_not_got_cannot_be_run(client: ServedClient) -> None:
    agent = await made(client)
    detail = await client.refusal(404, "POST", f"/v1/agents/{agent['id']}/tools/nope/run", {"args": {}})
    assert detail == f"Tool 'nope' not found or not attached to agent '{agent['id']}'"

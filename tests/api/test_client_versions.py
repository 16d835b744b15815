"""Answers depend on the client that asks: 1.x gets agents without their relations, everybody else whole ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients import AS_0X, AS_1X

from .resources import Served

BOTH = pytest.mark.parametrize("headers", [AS_0X, AS_1X], ids=["0.x", "1.x"])
FILLED = (
    "tools",
    "blocks",
    "memory",
    "tags",
    "secrets",
    "tool_exec_environment_variables",
    "identities",
    "identity_ids",
)
BY_RELATION = {
    "agent.tools": {"tools"},
    "agent.blocks": {"blocks", "memory", "tags"},
    "agent.tags": {"tags"},
    "agent.secrets": {"secrets", "tool_exec_environment_variables"},
    "agent.sources": set[str](),
    "agent.identities": {"identities", "identity_ids"},
    "agent.managed_group": set[str](),
    "agent.pending_approval": set[str](),
}
BY_OLD_NAME = {
    "tools": {"tools"},
    "memory": {"blocks", "memory", "tags"},
    "tags": {"tags"},
    "secrets": {"secrets", "tool_exec_environment_variables"},
    "tool_exec_environment_variables": {"secrets", "tool_exec_environment_variables"},
    "sources": set[str](),
    "identity_ids": {"identities", "identity_ids"},
    "multi_agent_group": set[str](),
    "pending_approval": set[str](),
    "no such thing": set[str](),
    "": set[str](),
}


def speak_as(served: Served, headers: dict[str, str]) -> None:
    served.http.headers.update(headers)


async def make(served: Served) -> dict[str, Any]:
    blocks = [{"label": "human", "value": "Ada"}]
    ada = {"identifier_key": "ada", "name": "Ada", "identity_type": "user"}
    identity = await served.ok("PUT", "/v1/identities/", ada)
    relations = {"tags": ["b", "a"], "secrets": {"KEY": "hush"}, "identity_ids": [identity["id"]]}
    return await served.create(memory_blocks=blocks, **relations)


def filled(state: dict[str, Any]) -> set[str]:
    """Which relations show something; the empty ones are there all the same."""
    shown = {name: state[name] for name in FILLED} | {"memory": state["memory"]["blocks"]}
    assert all(isinstance(value, list) for value in shown.values())
    return {name for name, value in shown.items() if value}


async def read_both_ways(served: Served, agent: dict[str, Any], **query: Any) -> dict[str, Any]:
    read = await served.ok("GET", f"/v1/agents/{agent['id']}", **query)
    assert await served.ok("GET", "/v1/agents/", **query) == [read]
    return read


async def test_0x_reads_whole_agents_and_1x_empty_relations_under_the_same_keys(served: Served) -> None:
    made = await make(served)
    slim = await read_both_ways(served, made)
    speak_as(served, AS_0X)
    whole = await read_both_ways(served, made)
    assert (filled(whole), filled(slim)) == (set(FILLED), set())
    assert list(whole) == list(slim) == list(made)
    assert list(whole["memory"]) == list(slim["memory"])
    assert (whole["tags"], len(whole["tools"])) == (["a", "b"], 3)
    assert [tool["id"] for tool in whole["tools"]] == [tool["id"] for tool in made["tools"]]
    assert {name for name in whole if whole[name] != slim[name]} == set(FILLED)


async def test_0x_sees_a_pending_approval_without_asking_for_it(served: Served) -> None:
    roll = await served.create_tool(default_requires_approval=True)
    made = await served.create(tool_ids=[roll["id"]], include_base_tools=False)
    await served.ok("POST", f"/v1/agents/{made['id']}/messages", {"input": "Call roll_dice with 6"})
    assert (await read_both_ways(served, made))["pending_approval"] is None
    speak_as(served, AS_0X)
    pending = (await read_both_ways(served, made))["pending_approval"]
    assert pending["message_type"] == "approval_request_message"


@BOTH
async def test_a_request_that_names_relations_gets_exactly_those(served: Served, headers: dict[str, str]) -> None:
    made = await make(served)
    speak_as(served, headers)
    for name, expected in BY_RELATION.items():
        assert filled(await read_both_ways(served, made, include=name)) == expected, name
    for name, expected in BY_OLD_NAME.items():
        assert filled(await read_both_ways(served, made, include_relationships=name)) == expected, name
    added = await read_both_ways(served, made, include="agent.tags", include_relationships="tools")
    assert filled(added) == {"tags", "tools"}
    await served.refused(422, "GET", f"/v1/agents/{made['id']}", include="tools")


@BOTH
async def test_the_agents_of_a_block_are_slim_for_everybody(served: Served, headers: dict[str, str]) -> None:
    made = await make(served)
    path = f"/v1/blocks/{made['blocks'][0]['id']}/agents"
    speak_as(served, headers)
    for query, expected in (
        ({}, set[str]()),
        ({"include_relationships": "tools"}, set[str]()),
        ({"include": "agent.tools"}, {"tools"}),
    ):
        (shown,) = await served.ok("GET", path, **query)
        assert filled(shown) == expected


async def test_changed_tools_are_answered_with_the_agent_to_0x_and_with_null_to_1x(served: Served) -> None:
    roll = await served.create_tool()
    made = await make(served)
    tools = f"/v1/agents/{made['id']}/tools"
    changes: list[tuple[str, Any, int, int]] = [
        (f"{tools}/attach/{roll['id']}", None, 4, 0),
        (f"{tools}/approval/roll_dice", {"requires_approval": True}, 4, 1),
        (f"{tools}/approval/never_attached", {"requires_approval": False}, 4, 1),
        (f"{tools}/detach/{roll['id']}", None, 3, 0),
        (f"{tools}/detach/{roll['id']}", None, 3, 0),
    ]
    rules = len(made["tool_rules"])
    for path, body, tool_count, rule_count in changes:
        speak_as(served, AS_0X)
        state = await served.ok("PATCH", path, body)
        assert filled(state) == set(FILLED)
        assert (len(state["tools"]), len(state["tool_rules"])) == (tool_count, rules + rule_count), path
        assert state == await served.ok("GET", f"/v1/agents/{made['id']}")
        speak_as(served, AS_1X)
        assert await served.ok("PATCH", path, body) is None


@BOTH
async def test_other_changes_are_answered_with_the_whole_agent_to_everybody(
    served: Served, headers: dict[str, str]
) -> None:
    speak_as(served, headers)
    made = await make(served)
    block = await served.create_block("more", value="?")
    path = f"/v1/agents/{made['id']}"
    for change in (
        made,
        await served.ok("PATCH", path, {"description": "d"}),
        await served.ok("PATCH", f"{path}/core-memory/blocks/attach/{block['id']}"),
        await served.ok("PATCH", f"{path}/core-memory/blocks/detach/{block['id']}"),
        await served.ok("PATCH", f"{path}/reset-messages"),
    ):
        assert filled(change) == set(FILLED)


async def test_the_main_message_route_streams_for_1x_only(served: Served) -> None:
    made = await served.create(include_base_tools=False)
    path, body = f"/v1/agents/{made['id']}/messages", {"input": "Hello", "streaming": True}
    speak_as(served, AS_0X)
    refusal = await served.refused(422, "POST", path, body)
    assert refusal.startswith("streaming=true is ")
    assert "/messages/stream" in refusal
    assert len(await served.ok("GET", path)) == 1  # nothing was stored
    assert (await served.ok("POST", path, {"input": "Hello"}))["stop_reason"]["stop_reason"] == "end_turn"
    streamed = await served.http.post(f"{path}/stream", json={"input": "Hello"})
    assert streamed.text.endswith("data: [DONE]\n\n")
    speak_as(served, AS_1X)
    assert (await served.http.post(path, json=body)).text.endswith("data: [DONE]\n\n")


async def test_the_sdk_is_known_by_its_own_headers(served: Served) -> None:
    made = await make(served)
    speak_as(served, AS_0X)  # the SDK sends its own beside it
    assert filled((await served.client.agents.retrieve(made["id"])).to_dict()) == set()

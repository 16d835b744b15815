"""Agents call the tools of MCP servers: with their secrets, after approvals, until they are stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import ids
from holdfast.actions.runs.spec import tool_specs
from holdfast.core.records import Tool
from holdfast.store import tools as tool_rows
from tests.served import ServedClient, served

from .asking import SERVERS, Json, add, over_http, refresh, run, tools_of
from .conftest import LOOPBACK
from .servers import Tools, served_mcp, server_of

ADD = '[[call:add {"a": 20, "b": 22}]] [[say:Done.]]'
WAIT = "[[call:wait {}]] [[say:Done.]]"


async def agent_with(client: ServedClient, server: Json, *names: str, **fields: Any) -> Any:
    listed = await tools_of(client, server)
    return await client.agent(tool_ids=[listed[name]["id"] for name in names], **fields)


def returned(answer: Any) -> Any:
    return next(message for message in answer.messages if message.message_type == "tool_return_message")


async def test_an_agent_s_call_carries_its_id_and_a_key(client: ServedClient, url: str, tools: Tools) -> None:
    agent = await agent_with(client, await add(client, url), "add")
    told = returned(await client.say(agent.id, ADD))
    assert (told.status, told.tool_return) == ("success", "42")
    assert tools.calls == [("add", {"a": 20, "b": 22})]
    assert tools.headers[-1]["x-agent-id"] == agent.id
    assert tools.headers[-1]["idempotency-key"] == told.tool_call_id == tools.keys[-1]


async def test_a_tool_that_fails_is_told_to_the_model(client: ServedClient, url: str) -> None:
    agent = await agent_with(client, await add(client, url), "fail")
    answer = await client.say(agent.id, "[[call:fail {}]] [[say:It failed.]]")
    assert returned(answer).status == "error"
    assert "fail" in returned(answer).tool_return
    assert answer.stop_reason.stop_reason == "end_turn"


async def test_what_a_tool_returns_is_cut_to_its_limit(on_sqlite: ServedClient, url: str) -> None:
    server = await add(on_sqlite, url)
    agent = await agent_with(on_sqlite, server, "book")
    tool = (await tools_of(on_sqlite, server))["book"]
    await on_sqlite.ask("PATCH", f"/v1/tools/{tool['id']}", {"return_char_limit": 10})
    told = returned(await on_sqlite.say(agent.id, f'[[call:book {{"berth": "{"x" * 50}"}}]] [[say:Done.]]'))
    assert told.tool_return.startswith("xxxxxxxxxx... [NOTE: function output was truncated")


async def test_templates_are_filled_in_from_the_agent_s_own_secrets(
    client: ServedClient, url: str, tools: Tools
) -> None:
    headers = {"X-Place": "{{ PLACE | nowhere }}", "X-Missing": "a {{ MISSING }} b {{ PLACE }}"}
    server = await add(client, url, auth_token="{{ KEY }}", custom_headers=headers)
    assert (server["auth_token"], server["custom_headers"]["X-Place"]) == ("{{ KEY }}", "********")
    rich = await agent_with(client, server, "add", secrets={"KEY": "of-the-rich", "PLACE": "Kiel"})
    poor = await agent_with(client, server, "add", secrets={"KEY": "of-the-poor"})
    await client.say(rich.id, ADD)
    await client.say(poor.id, ADD)
    sent = [{name: each[name] for name in ("authorization", "x-place", "x-missing")} for each in tools.headers]
    unresolved = headers["X-Missing"]
    assert sent == [
        {"authorization": "Bearer of-the-rich", "x-place": "Kiel", "x-missing": unresolved},
        {"authorization": "Bearer of-the-poor", "x-place": "nowhere", "x-missing": unresolved},
    ]
    # By hand, for an agent: with its secrets; of the server alone: with nobody's.
    await client.ask("POST", f"/v1/agents/{rich.id}/tools/add/run", {"args": {"a": 1, "b": 1}})
    assert tools.headers[-1]["authorization"] == "Bearer of-the-rich"
    await run(client, server, (await tools_of(client, server))["add"], a=1, b=1)
    assert tools.headers[-1]["authorization"] == "{{ KEY }}"


async def ask_for_approval(client: ServedClient, server: Json) -> tuple[Any, Json]:
    tool = (await tools_of(client, server))["add"]
    await client.ask("PATCH", f"/v1/tools/{tool['id']}", {"default_requires_approval": True})
    agent = await agent_with(client, server, "add")
    asked = await client.say(agent.id, ADD)
    assert asked.stop_reason.stop_reason == "requires_approval"
    decision = {"type": "approval", "tool_call_id": asked.messages[-1].tool_call.tool_call_id, "approve": True}
    return agent, {"messages": [{"type": "approval", "approvals": [decision]}]}


async def test_a_call_that_needs_approval_runs_once_it_has_it(client: ServedClient, url: str, tools: Tools) -> None:
    agent, approval = await ask_for_approval(client, await add(client, url))
    assert tools.calls == []
    answer = await client.ask("POST", f"/v1/agents/{agent.id}/messages", approval)
    assert answer["messages"][0]["tool_return"] == "42"
    assert len(tools.calls) == 1


async def test_an_approval_survives_that_the_server_is_renamed(on_sqlite: ServedClient, url: str, tools: Tools) -> None:
    server = await add(on_sqlite, url)
    agent, approval = await ask_for_approval(on_sqlite, server)
    await on_sqlite.ask("PATCH", SERVERS + server["id"], {"server_name": "port", "config": over_http(url)})
    answer = await on_sqlite.ask("POST", f"/v1/agents/{agent.id}/messages", approval)
    assert answer["messages"][0]["tool_return"] == "42"


@pytest.mark.parametrize("change", ["the address of the server", "the schema of the tool"])
async def test_an_approval_is_for_the_server_and_the_schema_that_were_asked_about(
    on_sqlite: ServedClient, tools: Tools, change: str
) -> None:
    program = server_of(tools)
    async with served_mcp(program) as url, served_mcp(server_of(tools)) as other_url:
        server = await add(on_sqlite, url)
        agent, approval = await ask_for_approval(on_sqlite, server)
        if change == "the address of the server":
            await on_sqlite.ask("PATCH", SERVERS + server["id"], {"config": over_http(other_url)})
        else:

            def add_all(a: int, b: int, c: int = 0) -> str:
                return "0"

            program.remove_tool("add")
            program.add_tool(add_all, name="add")
            assert (await refresh(on_sqlite, server))["updated"] == ["add"]
        refused = await on_sqlite.refusal(409, "POST", f"/v1/agents/{agent.id}/messages", approval)
        assert "changed" in str(refused)
        assert tools.calls == []


async def test_a_cancel_ends_the_call_at_once_and_the_server_hears_of_it(
    client: ServedClient, url: str, tools: Tools
) -> None:
    agent = await agent_with(client, await add(client, url), "wait")
    asking = asyncio.create_task(client.say(agent.id, WAIT))
    await tools.waiting.wait()
    began = asyncio.get_running_loop().time()
    await client.agents.messages.cancel(agent.id)
    answer = await asking
    assert asyncio.get_running_loop().time() - began < 5
    assert answer.stop_reason.stop_reason == "cancelled"
    await asyncio.wait_for(tools.stopped.wait(), 10)
    following = await client.say(agent.id, "[[say:Still here.]]")
    assert following.stop_reason.stop_reason == "end_turn"


async def effect_of(client: ServedClient, tool: Json) -> str:
    stored = await client.deps.database.read(lambda tx: tool_rows.get(tx, tool["id"]))
    return tool_specs([stored])[0].effect


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_server_is_believed_that_a_tool_may_be_repeated_only_if_the_operator_says_so(
    tmp_path: Path, url: str, trusted: bool
) -> None:
    async with served(tmp_path, allowed_hosts=LOOPBACK, mcp_trust_annotations=trusted) as client:
        listed = await tools_of(client, await add(client, url))
        assert listed["add"]["metadata_"]["mcp"]["annotations"] == {"readOnlyHint": True}
        assert await effect_of(client, listed["add"]) == ("retry_safe" if trusted else "once")
        assert await effect_of(client, listed["book"]) == "once"
        owned = {"tags": [*listed["book"]["tags"], "retry-safe"]}
        await client.ask("PATCH", f"/v1/tools/{listed['book']['id']}", owned)
        assert await effect_of(client, listed["book"]) == "retry_safe"


async def test_a_call_to_a_server_that_is_gone_is_an_error_that_the_model_reads(on_sqlite: ServedClient) -> None:
    async with served_mcp(server_of(Tools())) as url:
        agent = await agent_with(on_sqlite, await add(on_sqlite, url), "add")
    told = returned(await on_sqlite.say(agent.id, ADD))
    assert told.status == "error"
    assert "could not be talked to" in told.tool_return


async def test_a_tool_that_came_without_its_server_works_once_the_server_is_added(
    client: ServedClient, url: str
) -> None:
    """As tools of agent files do."""
    orphan = Tool(
        id=ids.new("tool"),
        name="add",
        tool_type="external_mcp",
        description="",
        json_schema={"name": "add", "parameters": {"type": "object", "properties": {}}},
        source_code="def add(**kwargs): ...",
        tags=("mcp:harbour",),
    )
    await client.deps.database.write(lambda tx: tool_rows.insert(tx, orphan))
    agent = await client.agent(tool_ids=[orphan.id])
    told = returned(await client.say(agent.id, ADD))
    assert (told.status, "not here" in told.tool_return) == ("error", True)
    by_hand = f"/v1/agents/{agent.id}/tools/add/run"
    assert "not here" in await client.refusal(404, "POST", by_hand, {"args": {}})
    other = await add(client, url, "another")
    assert (await tools_of(client, other))["add"]["name"] == "another__add"
    server = await add(client, url)
    assert (await tools_of(client, server))["add"]["id"] == orphan.id
    assert returned(await client.say(agent.id, ADD)).tool_return == "42"

"""Agent files: what is written, what is read, and that an import happens as a whole or not at all."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from letta_client import AsyncLetta
from sqlalchemy import func, select

from holdfast.api.server import create_app
from holdfast.core.messages import Text, Thoughts
from holdfast.ids import UUID4_PATTERN
from holdfast.store import messages as message_rows
from holdfast.store.paging import Page
from holdfast.store.schema import metadata
from holdfast.store.transaction import Transaction
from tests.invariants import assert_invariants

from . import old_files as old
from .resources import ROLL, Served, serving

FORM = "multipart/form-data; boundary=edge"


async def post(served: Served, content: Any, **form: Any) -> httpx.Response:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {name.replace("_", "-"): form.pop(name) for name in [*form] if name.startswith("x_")}
    return await served.http.post(
        "/v1/agents/import", files={"file": ("agent.af", data)}, data=form, headers=headers or None
    )


async def imported(served: Served, content: Any, **form: Any) -> dict[str, Any]:
    answer = await post(served, content, **form)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def imported_agent(served: Served, content: Any, **form: Any) -> dict[str, Any]:
    [agent_id] = (await imported(served, content, **form))["agent_ids"]
    return await whole(served, agent_id)


async def refused(served: Served, content: Any, status: int = 400, **form: Any) -> str:
    answer = await post(served, content, **form)
    assert answer.status_code == status, answer.text
    return answer.json()["detail"]


async def whole(served: Served, agent_id: str) -> dict[str, Any]:
    return await served.ok(
        "GET",
        f"/v1/agents/{agent_id}",
        include=["agent.tools", "agent.blocks", "agent.tags", "agent.secrets", "agent.pending_approval"],
    )


async def exported(served: Served, agent_id: str, **query: Any) -> dict[str, Any]:
    return await served.ok("GET", f"/v1/agents/{agent_id}/export", **query)


async def listed(served: Served, agent_id: str) -> list[dict[str, Any]]:
    return await served.ok("GET", f"/v1/agents/{agent_id}/messages", order="asc")


async def counts(served: Served) -> dict[str, int]:
    """The rows of every table."""

    async def read(tx: Transaction) -> dict[str, int]:
        found: dict[str, int] = {}
        for table in metadata.sorted_tables:
            row = await tx.fetch_one(select(func.count().label("rows")).select_from(table))
            assert row is not None
            found[table.name] = row["rows"]
        return found

    return await served.deps.database.read(read)


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def agent(served: Served) -> dict[str, Any]:
    """With a turn that was run here, and a tool: a call of a built-in one needs no sandbox."""
    tool = await served.create_tool()
    made = await served.create(
        name="ada",
        tool_ids=[tool["id"]],
        tools=["memory_insert"],
        include_base_tools=False,
        memory_blocks=[{"label": "human", "value": "Ada"}, {"label": "persona", "value": "kind"}],
        tags=["b", "a"],
        secrets={"KEY": "hush"},
    )
    body = {"input": 'Call memory_insert with {"label": "persona", "new_string": "calm"}'}
    await served.ok("POST", f"/v1/agents/{made['id']}/messages", body)
    return await whole(served, made["id"])


async def test_a_file_has_the_sections_of_the_format_and_ids_of_its_own(served: Served, agent: dict[str, Any]) -> None:
    told = await exported(served, agent["id"])
    sections = {"agents", "groups", "blocks", "files", "sources", "tools", "mcp_servers", "skills"}
    assert told.keys() == sections | {"metadata", "created_at"}
    [shown] = told["agents"]
    assert (shown["id"], shown["name"], shown["tool_ids"]) == ("agent-0", "ada", ["tool-0", "tool-1"])
    assert [block["label"] for block in told["blocks"]] == ["human", "persona"]
    assert [tool["name"] for tool in told["tools"]] == [each["name"] for each in agent["tools"]]
    assert [message["id"] for message in shown["messages"]] == shown["in_context_message_ids"]
    assert [message["role"] for message in shown["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert None not in shown["model_settings"].values(), "the old server refuses nulls here"
    assert shown["model_settings"]["reasoning"] == {}
    assert re.search(f"(agent|tool|block|message|run|step)-{UUID4_PATTERN}", _without_prompt(told)) is None


def _without_prompt(told: dict[str, Any]) -> str:
    told["agents"][0]["messages"][0]["content"] = []
    return json.dumps(told)


async def test_a_return_is_written_in_the_envelope_that_readers_of_files_know(
    served: Served, agent: dict[str, Any]
) -> None:
    row = (await exported(served, agent["id"]))["agents"][0]["messages"][3]
    [answer] = row["tool_returns"]
    assert json.loads(answer["func_response"]).keys() == {"status", "message", "time"}
    assert row["content"][0]["text"] == answer["func_response"]
    assert row["tool_call_id"] == answer["tool_call_id"]


async def test_secrets_are_named_and_never_told(served: Served, agent: dict[str, Any]) -> None:
    answer = await served.http.get(f"/v1/agents/{agent['id']}/export")
    assert answer.text.startswith('{\n  "agents": ['), "people read these files"
    [shown] = answer.json()["agents"]
    assert shown["secrets"] == shown["tool_exec_environment_variables"] == {"KEY": ""}
    assert "hush" not in answer.text


async def test_a_conversation_is_exported_in_the_place_of_the_default_history(
    served: Served, agent: dict[str, Any]
) -> None:
    human = next(block for block in agent["blocks"] if block["label"] == "human")
    conversation = await served.ok(
        "POST", "/v1/conversations/", {"isolated_block_labels": ["human"]}, agent_id=agent["id"]
    )
    await served.http.post(f"/v1/conversations/{conversation['id']}/messages", json={"input": "only here"})
    [private] = conversation["isolated_block_ids"]
    await served.ok("PATCH", f"/v1/blocks/{private}", {"value": "Eva"})
    told = await exported(served, agent["id"], conversation_id=conversation["id"])
    texts = [part.get("text") for message in told["agents"][0]["messages"] for part in message["content"]]
    assert "only here" in texts
    assert not any("memory_insert" in (text or "") for text in texts[1:])
    shown = {block["label"]: block["value"] for block in told["blocks"]}
    assert shown["human"] == "Eva" != human["value"]
    same = await exported(served, agent["id"], conversation_id="default")
    assert same["agents"] == (await exported(served, agent["id"]))["agents"]


async def test_what_cannot_be_exported_is_told(served: Served, agent: dict[str, Any]) -> None:
    path, other = f"/v1/agents/{agent['id']}/export", await served.create(name="eva")
    conversation = await served.ok("POST", "/v1/conversations/", agent_id=other["id"])
    unknown = "agent-123e4567-e89b-42d3-8456-426614174000"
    assert "use_legacy_format" in await served.refused(400, "GET", path, use_legacy_format=True)
    assert await served.refused(404, "GET", f"/v1/agents/{unknown}/export") == "Agent not found"
    assert "not found" in await served.refused(404, "GET", path, conversation_id=conversation["id"])
    assert "not found" in await served.refused(404, "GET", path, conversation_id="conv-none")
    await served.refused(422, "GET", "/v1/agents/nobody/export")


async def test_messages_can_be_left_out_and_skills_put_in(served: Served, agent: dict[str, Any]) -> None:
    scrubbed = await exported(served, agent["id"], scrub_messages=True)
    assert scrubbed["agents"][0]["messages"] == scrubbed["agents"][0]["in_context_message_ids"] == []
    path, skill = f"/v1/agents/{agent['id']}/export", {"name": "cook", "files": {"SKILL.md": "# Cook"}}
    told = await served.ok("POST", path, {"skills": [skill], "scrub_messages": True})
    assert told["skills"] == [skill | {"source_url": None}]
    assert told["agents"] == scrubbed["agents"]
    assert (await served.ok("POST", path))["agents"] == (await exported(served, agent["id"]))["agents"]
    copy = await imported(served, told)
    assert "skills: 1 left out" in copy["warnings"][0]


async def test_an_agent_that_waits_for_an_approval_is_exported_and_its_copy_waits_for_nobody(
    served: Served, agent: dict[str, Any]
) -> None:
    await served.ok("PATCH", f"/v1/agents/{agent['id']}/tools/approval/roll_dice", {"requires_approval": True})
    await served.ok("POST", f"/v1/agents/{agent['id']}/messages", {"input": "Call roll_dice with 8"})
    assert (await whole(served, agent["id"]))["pending_approval"] is not None
    answer = await imported(served, await exported(served, agent["id"]))
    [repair] = answer["repairs"]
    assert "agents[0] 'ada' messages[6]: nobody answered whether roll_dice may be called" in repair
    copy = await whole(served, answer["agent_ids"][0])
    assert copy["pending_approval"] is None
    await served.ok("POST", f"/v1/agents/{copy['id']}/messages", {"input": "hello"})
    await assert_invariants(served.deps.database, idle=True)


async def test_archival_memory_comes_along_when_it_is_asked_for(served: Served) -> None:
    made = await served.create(name="ada", embedding="acme/vectors")
    for day, text, tags in ((1, "Tea is in the cupboard.", ["kitchen"]), (2, "The dog is called Rex.", [])):
        body = {"text": text, "tags": tags, "created_at": f"2026-03-0{day}T09:30:00Z"}
        await served.ok("POST", f"/v1/agents/{made['id']}/archival-memory", body)
    assert "archives" not in await exported(served, made["id"])
    told = await exported(served, made["id"], include_archives=True)
    posted = await served.ok("POST", f"/v1/agents/{made['id']}/export", {"include_archives": True})
    assert posted["archives"] == told["archives"]
    copy = (await imported(served, told))["agent_ids"][0]
    found = await served.ok("GET", f"/v1/agents/{copy}/archival-memory")
    assert [(each["text"], each["tags"]) for each in found] == [
        ("Tea is in the cupboard.", ["kitchen"]),
        ("The dog is called Rex.", None),
    ]
    by_meaning = await served.ok("GET", f"/v1/agents/{copy}/archival-memory/search", query="beverage")
    assert by_meaning["results"][0]["content"] == "Tea is in the cupboard.", "vectors were made anew"
    again = await exported(served, copy, include_archives=True)
    assert again["archives"] == told["archives"]
    await served.ok("DELETE", f"/v1/agents/{copy}")
    assert len(await served.ok("GET", f"/v1/agents/{made['id']}/archival-memory")) == 2, "the copy had its own"


# --- import ----------------------------------------------------------------------------------------------------------


async def test_a_file_of_the_old_server_becomes_the_agent_that_it_describes(served: Served) -> None:
    answer = await imported(served, old.harbour(), secrets='{"KEY": "hush"}')
    assert (answer["repairs"], answer["warnings"]) == ([], [])
    made = await whole(served, answer["agent_ids"][0])
    assert made["name"] == "harbour_copy"
    for name in ("system", "tags", "description", "metadata", "timezone", "max_files_open"):
        assert made[name] == old.harbour()["agents"][0][name], name
    assert {tool["name"] for tool in made["tools"]} == {"roll_dice", "memory_insert"}
    assert [(block["label"], block["value"]) for block in made["blocks"]] == [("persona", "kind"), ("human", "Ada")]
    assert (made["blocks"][0]["read_only"], made["blocks"][0]["tags"]) == (True, ["x"])
    assert [rule["type"] for rule in made["tool_rules"]] == ["requires_approval"]
    assert (made["model"], made["llm_config"]["context_window"]) == ("holdfast/offline", 32_000)
    assert made["model_settings"]["temperature"] == 0.7
    assert sorted(secret["key"] for secret in made["secrets"]) == ["KEY", "OTHER"]
    assert all(re.fullmatch(f"[a-z]+-{UUID4_PATTERN}", id) for id in (made["id"], *made["message_ids"]))
    told = await listed(served, made["id"])
    assert [each["message_type"] for each in told] == [
        "system_message",
        "user_message",
        "user_message",
        "reasoning_message",
        "assistant_message",
        "tool_call_message",
        "tool_return_message",
        "approval_request_message",
        "approval_response_message",
        "tool_return_message",
        "assistant_message",
    ]
    assert told[0]["content"] == "You keep the harbour's log.\n\nold memory", "it is kept as it is"
    assert told[1]["content"].count("Ships came.") == 1
    assert "Note: hidden." not in told[1]["content"]
    assert told[2]["content"][1]["source"]["data"] == old.PIXEL
    assert [each["tool_return"] for each in told[6]["tool_returns"]] == ["3", '{"n":8}']
    assert (told[9]["tool_return"], told[9]["status"], told[9]["date"]) == (
        "denied",
        "error",
        "2026-03-01T09:30:00+00:00",
    )
    await assert_invariants(served.deps.database, idle=True)


async def test_an_imported_agent_goes_on_where_it_was(served: Served) -> None:
    made = await imported_agent(served, old.harbour())
    body = {"input": "What did I ask first?"}
    answer = await served.ok("POST", f"/v1/agents/{made['id']}/messages", body)
    assert answer["stop_reason"]["stop_reason"] == "end_turn"
    context = await served.ok("GET", f"/v1/agents/{made['id']}/context")
    assert "<human>" in context["core_memory"], "the next turn shows it this server's memory"
    told = await listed(served, made["id"])
    assert "old memory" not in told[0]["content"]
    assert [each["message_type"] for each in told[-3:]] == ["user_message", "reasoning_message", "assistant_message"]
    await assert_invariants(served.deps.database, idle=True)


async def test_the_older_format_is_read(served: Served) -> None:
    answer = await imported(served, old.older_format(), append_copy_suffix=False)
    assert (answer["repairs"], answer["warnings"]) == ([], [])
    made = await whole(served, answer["agent_ids"][0])
    assert (made["name"], made["agent_type"], made["tags"]) == ("veteran", "memgpt_agent", ["old"])
    assert made["metadata"] == {"origin": "elsewhere"}
    assert {tool["name"] for tool in made["tools"]} == {"send_message", "roll_dice"}
    assert made["blocks"][0]["metadata"] == {"a": 1}
    assert [secret["key"] for secret in made["secrets"]] == ["KEY"]
    rows = await served.deps.database.read(
        lambda tx: message_rows.list_of_thread(tx, made["id"], Page(limit=None, order="asc"))
    )
    by_id = {row.id: row for row in rows}
    window = [by_id[id] for id in made["message_ids"]]
    assert [row.role for row in window] == ["system", "user", "assistant", "tool"]
    assert window[1].parts == (Text("hello"),), "without the envelope of the first servers"
    assert window[2].parts[0] == Thoughts("I greet.")
    assert [row.parts for row in rows if row.id not in made["message_ids"]] == [(Text("forgotten"),)]
    await assert_invariants(served.deps.database, idle=True)


async def test_messages_that_had_left_the_window_stay_outside_of_it(served: Served) -> None:
    said = [old.message("system", "prompt"), old.message("user", "long ago"), old.message("user", "now")]
    for in_context, repairs in ((["message-0", "message-2"], 0), ([], 1)):
        answer = await imported(served, old.file(old.agent(*said, in_context_message_ids=in_context)))
        assert len(answer["repairs"]) == repairs, "without a window there is no system message in it"
        made = await whole(served, answer["agent_ids"][0])
        told = await listed(served, made["id"])
        assert "long ago" in [each["content"] for each in told if each["id"] not in made["message_ids"]]
        assert len(made["message_ids"]) == max(1, len(in_context))
    await assert_invariants(served.deps.database, idle=True)


async def test_options_of_an_import_are_followed_under_both_names(served: Served) -> None:
    told = old.harbour()
    ways: list[dict[str, Any]] = [
        {"name": "eva", "model": "acme/large", "embedding": "acme/vectors", "secrets": '{"KEY": "a"}'},
        {
            "override_name": "eva",
            "override_model_handle": "acme/large",
            "override_embedding_handle": "acme/vectors",
            "env_vars_json": '{"KEY": "a"}',
        },
        {"name": "eva", "model": "acme/large", "x_override_embedding_model": "acme/vectors", "secrets": '{"KEY":"a"}'},
    ]
    for form in ways:
        made = await imported_agent(served, told, project_id="p", **form)
        assert (made["name"], made["model"], made["project_id"]) == ("eva", "acme/large", "p")
        assert made["embedding"] == "acme/vectors"
        assert made["model_settings"]["temperature"] == 0.7, "what is said of any model alike stays"
    assert (await imported_agent(served, told, append_copy_suffix="false"))["name"] == "harbour"
    assert (await imported_agent(served, told, x_project_id="q"))["project_id"] == "q"


async def test_secrets_are_stored_under_the_names_that_the_file_declares(served: Served) -> None:
    answer = await imported(served, old.harbour(), secrets='{"KEY": "hush", "STRANGE": "x"}')
    assert answer["warnings"] == [
        "agents[0] 'harbour': it declares no secret STRANGE, so the one that was sent is not stored"
    ]
    path, box = f"/v1/agents/{answer['agent_ids'][0]}", served.deps.secretbox
    stored = await served.deps.database.read(lambda tx: _sealed(tx, answer["agent_ids"][0]))
    assert {key: box.open(sealed) for key, sealed in stored.items()} == {"KEY": "hush", "OTHER": ""}
    shown = await served.ok("GET", path, include=["agent.secrets"])
    assert "hush" not in json.dumps(shown)
    for wrong in ("[1]", "{", '{"KEY": 1}', '{"A=B": "x"}'):
        assert "secrets: " in await refused(served, old.harbour(), 422, secrets=wrong)


async def _sealed(tx: Transaction, agent_id: str) -> dict[str, bytes]:
    from_store = await tx.fetch_all(
        select(metadata.tables["agent_secrets"]).where(metadata.tables["agent_secrets"].c.agent_id == agent_id)
    )
    return {row["key"]: bytes(row["value_enc"]) for row in from_store}


async def test_without_its_messages_an_agent_begins_with_a_system_message(served: Served) -> None:
    for content, form in ((old.harbour(), {"strip_messages": True}), (old.file(old.agent()), {})):
        made = await imported_agent(served, content, **form)
        [message] = await listed(served, made["id"])
        assert message["message_type"] == "system_message"
        assert message["content"].startswith("You keep the harbour's log.")


async def test_a_tool_of_the_same_name_is_replaced_or_kept_as_asked(served: Served) -> None:
    there = await served.create_tool(ROLL.replace("return sides", "return 1"), tags=["mine"])
    kept = await imported(served, old.harbour(), override_existing_tools="false")
    assert kept["warnings"] == []
    assert (await served.ok("GET", f"/v1/tools/{there['id']}"))["source_code"] == there["source_code"]
    replaced = await imported(served, old.harbour())
    [warning] = replaced["warnings"]
    assert "tools[0] 'roll_dice': the tool of this name was replaced" in warning
    now = await served.ok("GET", f"/v1/tools/{there['id']}")
    assert (now["source_code"], now["tags"]) == (ROLL, ["mine"])
    for answer in (kept, replaced):
        tools = (await whole(served, answer["agent_ids"][0]))["tools"]
        assert there["id"] in [tool["id"] for tool in tools], "a name is one tool"


async def test_a_file_cannot_change_a_tool_of_the_server_nor_take_its_guard_away(served: Served) -> None:
    [before] = await served.ok("GET", "/v1/tools/", name="memory_insert")
    same_name = old.tool(0, "memory_insert", ROLL.replace("roll_dice", "memory_insert"))
    content = old.file(old.agent(tool_ids=["tool-0"]), tools=[same_name])
    sentence = await refused(served, content)
    assert sentence.startswith("tools[0] 'memory_insert': a tool that comes with this server has this name")
    await imported(served, content, override_existing_tools=False)
    assert await served.ok("GET", "/v1/tools/", name="memory_insert") == [before]
    guarded = await served.create_tool(default_requires_approval=True)
    content = old.file(old.agent(tool_ids=["tool-0"]), tools=[old.tool(0)])
    made = await imported_agent(served, content)
    assert [rule["type"] for rule in made["tool_rules"]] == ["requires_approval"]
    assert (await served.ok("GET", f"/v1/tools/{guarded['id']}"))["default_requires_approval"] is True


async def test_agents_of_one_file_share_its_blocks_and_tools(served: Served) -> None:
    shared: dict[str, Any] = {"tool_ids": ["tool-0"], "block_ids": ["block-0"]}
    content = old.file(
        old.agent(name="one", **shared),
        old.agent(number=1, name="two", **shared),
        blocks=[old.block(0)],
        tools=[old.tool(0)],
    )
    one, two = [await whole(served, id) for id in (await imported(served, content))["agent_ids"]]
    assert (one["name"], two["name"]) == ("one_copy", "two_copy")
    assert [block["id"] for block in one["blocks"]] == [block["id"] for block in two["blocks"]]
    assert [tool["id"] for tool in one["tools"]] == [tool["id"] for tool in two["tools"]]
    again = await imported_agent(served, old.file(old.agent(**shared), blocks=[old.block(0)], tools=[old.tool(0)]))
    assert again["blocks"][0]["id"] != one["blocks"][0]["id"], "blocks are always new"


async def test_blocks_and_tools_that_stand_in_the_agent_are_read(served: Served) -> None:
    content = old.file(old.agent(memory_blocks=[{"label": "human", "value": "Ada"}], tools=["memory_insert"]))
    made = await imported_agent(served, content)
    assert [block["value"] for block in made["blocks"]] == ["Ada"]
    assert [tool["name"] for tool in made["tools"]] == ["memory_insert"]


async def test_what_this_server_cannot_store_is_told_and_the_rest_imported(served: Served) -> None:
    of_server = old.tool(0, "tide", "def tide(**kwargs): ...", tool_type="external_mcp", tags=["mcp:harbour"])
    gone = old.tool(1, "summon", None, tool_type="letta_core")
    rule = {"tool_name": "summon", "type": "run_first"}
    content = old.file(
        old.agent(tool_ids=["tool-0", "tool-1"], tool_rules=[rule], identity_ids=["identity-1"]),
        tools=[of_server, gone],
        groups=[
            {
                "id": "group-0",
                "agent_ids": ["agent-0"],
                "description": "",
                "manager_config": {"manager_type": "voice_sleeptime", "manager_agent_id": "agent-0"},
            }
        ],
        skills=[{"name": "knots"}],
    )
    answer = await imported(served, content)
    told = " | ".join(answer["warnings"])
    for named in ("no groups of the kind voice_sleeptime", "skills: 1 left out", "its identities are left out"):
        assert named in told
    assert "tools[0] 'tide': it is a tool of an MCP server" in told
    assert "tools[1] 'summon': this server has no built-in tool of that name" in told
    made = await whole(served, answer["agent_ids"][0])
    assert [(tool["name"], tool["tool_type"]) for tool in made["tools"]] == [("tide", "external_mcp")]
    assert made["tool_rules"] == [], "a rule about a tool that is not there would let it call none"


async def test_a_tool_that_only_its_client_can_run_is_imported_with_its_schema(served: Served) -> None:
    """Coding agents of the old server have such tools: their sources are made from schemas, and never run."""
    schema = {"name": "Grep", "parameters": {"type": "object", "properties": {"-B": {"type": "integer"}}}}
    source = "def Grep(-B=None):\n    raise Exception('run by the client')\n"
    grep = old.tool(0, "Grep", source, source_type="json", json_schema=schema, default_requires_approval=True)
    answer = await imported(served, old.file(old.agent(tool_ids=["tool-0"]), tools=[grep]))
    assert "tools[0] 'Grep': its source is not valid Python" in " | ".join(answer["warnings"])
    [tool] = (await whole(served, answer["agent_ids"][0]))["tools"]
    assert (tool["name"], tool["source_code"]) == ("Grep", source)
    assert tool["json_schema"]["parameters"] == schema["parameters"]
    again = await exported(served, answer["agent_ids"][0])
    assert [tool["source_code"] for tool in (await imported_agent(served, again))["tools"]] == [source]
    unknown = old.tool(0, "Grep", source, json_schema=None)
    assert "not valid Python" in await refused(served, old.file(old.agent(tool_ids=["tool-0"]), tools=[unknown]))


async def test_a_rule_that_names_no_tool_is_left_out(served: Served) -> None:
    rules = [{"tool_name": "", "type": "max_count_per_step", "max_count_limit": 1}]
    assert (await imported_agent(served, old.file(old.agent(tool_rules=rules))))["tool_rules"] == []


async def test_an_embedding_model_that_is_not_here_is_kept_and_told(served: Served) -> None:
    config = {
        "embedding_endpoint_type": "openai",
        "embedding_model": "small",
        "embedding_dim": 8,
        "handle": "openai/small",
    }
    answer = await imported(served, old.file(old.agent(embedding_config=config)))
    [warning] = answer["warnings"]
    assert "its embedding model openai/small is not available here" in warning
    made = await whole(served, answer["agent_ids"][0])
    assert (made["embedding"], made["embedding_config"]["embedding_dim"]) == ("openai/small", 8)


async def test_a_history_that_vendors_would_refuse_is_repaired_and_the_repairs_are_told(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    content = old.file(
        old.agent(
            old.message("user", "go"),
            old.message("assistant", tool_calls=[old.call("c1")]),
            old.message("assistant"),
            old.message("tool", tool_call_id="c9", tool_returns=[old.returned("c9", "?")]),
            old.message("user", "see", {"type": "image", "source": {"type": "url", "url": "http://example.com/a.png"}}),
            old.message("approval", tool_calls=[old.call("c2")]),
        )
    )
    answer = await imported(served, content)
    assert [re.sub(r".*(messages\[\d\]).*", r"\1", repair) for repair in answer["repairs"]] == [
        "messages[4]",
        "agents[0] 'harbour': its history does not begin with a system message; one was put before it",
        "messages[1]",
        "messages[2]",
        "messages[3]",
        "messages[5]",
    ]
    assert all(f"agent file: {repair}" in caplog.text for repair in answer["repairs"])
    assert (await served.ok("POST", f"/v1/agents/{answer['agent_ids'][0]}/messages", {"input": "hi"}))["messages"]
    await assert_invariants(served.deps.database, idle=True)


async def test_a_long_history_comes_whole_and_in_its_order(served: Served) -> None:
    said = [old.message("user" if number % 2 else "assistant", f"line {number}") for number in range(2_000)]
    made = await imported_agent(served, old.file(old.agent(old.message("system", "prompt"), *said)))
    [shown] = (await exported(served, made["id"]))["agents"]
    texts = [message["content"][0]["text"] for message in shown["messages"]]
    assert texts == ["prompt", *(f"line {number}" for number in range(2_000))]
    await assert_invariants(served.deps.database, idle=True)


OPENAI_EMBEDDING = {
    "embedding_endpoint_type": "openai",
    "embedding_endpoint": "https://api.openai.com/v1",
    "embedding_model": "text-embedding-3-small",
    "embedding_dim": 2_000,
    "embedding_chunk_size": 300,
    "handle": "openai/text-embedding-3-small",
    "batch_size": 1_024,
    "azure_endpoint": None,
    "azure_version": None,
    "azure_deployment": None,
}


async def test_a_workflow_as_public_collections_have_them_is_imported_and_works(served: Served) -> None:
    """Encoded twice, without instructions, blocks or a history of its own; nulls where lists could be."""
    rules = [
        {"tool_name": "look", "type": "run_first", "prompt_template": None, "args": None},
        {
            "tool_name": "look",
            "type": "conditional",
            "prompt_template": None,
            "default_child": "drop",
            "child_output_mapping": {"True": "keep", "False": "drop"},
            "require_output_mapping": False,
        },
        {"tool_name": "drop", "type": "exit_loop", "prompt_template": None},
        {"tool_name": "keep", "type": "exit_loop", "prompt_template": None},
    ]
    sources = {
        name: f'def {name}(): \n    """ Decides. """\n    return {name == "look"}\n'
        for name in ("look", "keep", "drop")
    }
    tools = [
        old.tool(
            number,
            name,
            source,
            json_schema={"name": name, "parameters": {"type": "object", "properties": {}, "required": []}},
            metadata_=None,
            pip_requirements=[],
        )
        for number, (name, source) in enumerate(sources.items())
    ]
    content = old.file(
        old.agent(
            old.message("system", "\n\n\n\n<memory_metadata>\n</memory_metadata>"),
            system="",
            tool_rules=rules,
            tool_ids=["tool-0", "tool-1", "tool-2"],
            embedding_config=OPENAI_EMBEDDING,
            message_buffer_autoclear=True,
            folder_ids=None,
            model_settings=None,
            parallel_tool_calls=None,
        ),
        tools=tools,
    )
    del content["skills"]
    made = await imported_agent(served, json.dumps(json.dumps(content)).encode())
    assert (made["system"], len(made["tool_rules"])) == ("", 4)
    answer = await served.ok("POST", f"/v1/agents/{made['id']}/messages", {"input": "Go"})
    called = [one["tool_call"]["name"] for one in answer["messages"] if one["message_type"] == "tool_call_message"]
    assert called == ["look", "keep"]
    assert answer["stop_reason"]["stop_reason"] == "tool_rule"


async def test_the_text_of_a_file_may_be_encoded_once_more(served: Served) -> None:
    assert (await imported_agent(served, json.dumps(json.dumps(old.file())).encode()))["name"] == "harbour_copy"


# --- what is wrong with a file ---------------------------------------------------------------------------------------


def spoilt(section: str, place: int, **fields: Any) -> dict[str, Any]:
    content = old.harbour()
    content[section][place] |= fields
    return content


def spoilt_message(place: int, **fields: Any) -> dict[str, Any]:
    content = old.harbour()
    content["agents"][0]["messages"][place] |= fields
    return content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"no json", "The file is not valid JSON in UTF-8"),
        (b"", "The file is not valid JSON in UTF-8"),
        (b"[" * 5_000, "nested too deeply"),
        (b'{"a": "\\u0000"}', "file.a: text must not hold NUL"),
        ([1], "This is no agent file: it must hold a JSON object"),
        ({"hello": 1}, "This is no agent file of a known format"),
        ({"agents": []}, "agents: the file holds no agent"),
        ({"agents": [1]}, "agents: must be a list of objects"),
        (spoilt("tools", 0, id="tool-x"), "tools[0] 'roll_dice': its id must look like tool-0, not 'tool-x'"),
        (spoilt("tools", 1, id="tool-0"), "tools[1] 'memory_insert': the id tool-0 is used twice"),
        (spoilt("tools", 0, return_char_limit="much"), "tools[0] 'roll_dice': return_char_limit:"),
        (spoilt("tools", 0, source_code="def other(): ..."), "tools[0] 'roll_dice': Tool name mismatch"),
        (spoilt("tools", 0, source_code=None), "tools[0] 'roll_dice': it has no source_code"),
        (spoilt("tools", 0, tags=["egress:sometimes"]), "tools[0] 'roll_dice': "),
        (spoilt("blocks", 1, limit=2), "blocks[1] 'persona': The value of block 'persona' has 4 characters"),
        (spoilt("blocks", 0, label="persona"), "agents[0] 'harbour': The agent"),
        (spoilt("agents", 0, tool_ids=["tool-7"]), "agents[0] 'harbour': its tool tool-7 is not in the file"),
        (spoilt("agents", 0, block_ids=["block-7"]), "agents[0] 'harbour': its block block-7 is not in the file"),
        (spoilt("agents", 0, in_context_message_ids=["message-77"]), "message-77, which is not among its messages"),
        (spoilt("agents", 0, agent_type="robot"), "agents[0] 'harbour': agent_type:"),
        (spoilt("agents", 0, tool_rules=[{"type": "odd", "tool_name": "x"}]), "agents[0] 'harbour': tool_rules.0:"),
        (spoilt("agents", 0, name=""), "agents[0]: name: the name must not be empty"),
        (spoilt("agents", 0, context_window_limit=9_000_000), "agents[0] 'harbour': context_window_limit is 9000000"),
        (spoilt("agents", 0, tools=["nowhere"]), "neither in the file nor on this server: nowhere"),
        (spoilt_message(3, role="prophet"), "agents[0] 'harbour' messages[3]: the role 'prophet' is unknown"),
        (spoilt_message(3, content=[{"type": "smell"}]), "agents[0] 'harbour' messages[3]: Invalid value 'smell'"),
        (spoilt_message(3, created_at="once"), "agents[0] 'harbour' messages[3]: created_at: 'once' is not a date"),
        (spoilt_message(3, id="message-1"), "two of its messages have the same id"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named_and_nothing_is_left_behind(
    sqlite_url: str, tmp_path: Path, content: Any, sentence: str
) -> None:
    async with serving(sqlite_url, tmp_path) as served:
        before = await counts(served)
        assert sentence in await refused(served, content)
        assert await counts(served) == before


async def test_models_that_are_not_here_are_all_named(served: Served) -> None:
    config = old.agent()["llm_config"]
    content = old.file(
        old.agent(llm_config=config | {"handle": "openai/gpt-4o-mini", "model": "gpt-4o-mini"}),
        old.agent(number=1, name="two", llm_config=config | {"handle": "x/y", "model": "y"}),
    )
    before = await counts(served)
    sentence = await refused(served, content)
    for part in ("agents[0] 'harbour':", "openai/gpt-4o-mini", "agents[1] 'two':", "x/y", "import with `model`"):
        assert part in sentence
    assert await counts(served) == before
    assert (await imported(served, content, model="holdfast/offline"))["agent_ids"]
    assert (await post(served, content, model="x/y")).status_code == 404


async def test_a_fault_that_only_the_database_finds_undoes_everything(served: Served) -> None:
    """The second agent has two blocks of one label: by then the first one, the blocks and the tools are written."""
    content = old.harbour()
    content["agents"].append(old.agent(number=1, name="two", block_ids=["block-0", "block-2"]))
    content["blocks"].append(old.block(2))
    before = await counts(served)
    assert (await refused(served, content)).startswith("agents[1] 'two': ")
    assert await counts(served) == before


async def test_a_file_that_is_too_large_or_missing_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    async with serving(sqlite_url, tmp_path, max_body_bytes=20_000) as served:
        before = await counts(served)
        content = old.file(old.agent(description="x" * 20_000))
        assert "larger than 20000 bytes" in await refused(served, content, 413)
        answer = await served.http.post("/v1/agents/import", data={"name": "nobody"}, files={"other": b""})
        assert (answer.status_code, "file" in answer.json()["detail"]) == (422, True)
        plain = await served.http.post("/v1/agents/import", json=old.file())
        assert plain.status_code == 422
        assert await counts(served) == before


# --- at once, and cut off --------------------------------------------------------------------------------------------


async def test_two_imports_at_once_make_two_agents_and_one_tool_of_each_name(served: Served) -> None:
    names = [f"tool_{number}" for number in range(6)]
    sources = {name: ROLL.replace("roll_dice", name) for name in names}

    def content(order: list[str]) -> dict[str, Any]:
        tools = [old.tool(number, name, sources[name]) for number, name in enumerate(order)]
        return old.file(old.agent(tool_ids=[tool["id"] for tool in tools]), tools=tools)

    answers = await asyncio.gather(*(imported(served, content(names[:: 1 - 2 * (each % 2)])) for each in range(6)))
    assert len({answer["agent_ids"][0] for answer in answers}) == 6
    found = await served.ok("GET", "/v1/tools/", names=names, limit=100)
    assert sorted(tool["name"] for tool in found) == names
    for answer in answers:
        assert len((await whole(served, answer["agent_ids"][0]))["tools"]) == 6


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Starlette leaves its file to be collected
async def test_an_upload_that_breaks_off_leaves_nothing(served: Served) -> None:
    before = await counts(served)
    body = f'--edge\r\ncontent-disposition: form-data; name="file"; filename="a.af"\r\n\r\n{json.dumps(old.harbour())}'

    arriving = iter([{"type": "http.request", "body": body[:5_000].encode(), "more_body": True}])
    scope = {"type": "http", "method": "POST", "path": "/v1/agents/import", "query_string": b"", "app": None}
    headers = [(b"content-type", FORM.encode()), (b"content-length", b"90000")]

    async def receive() -> Any:
        return next(arriving, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        assert message.get("status", 400) == 400

    await create_app(served.deps)({**scope, "headers": headers}, receive, send)
    answer = await served.http.post("/v1/agents/import", content=body.encode(), headers={"content-type": FORM})
    assert answer.status_code in (400, 422), "its last part has no end"
    assert await counts(served) == before


async def test_a_request_that_is_given_up_at_any_moment_has_imported_everything_or_nothing(served: Served) -> None:
    nothing, content = await counts(served), old.harbour()
    whole_answer = await imported(served, content)
    everything = await counts(served)
    await served.ok("DELETE", f"/v1/agents/{whole_answer['agent_ids'][0]}")
    assert everything["messages"] == nothing["messages"] + len(content["agents"][0]["messages"])
    added = {
        name: everything[name] - nothing[name] for name in ("agents", "messages", "thread_messages", "agent_tools")
    }
    before = await counts(served)
    seen: set[int] = set()
    for moment in range(0, 40, 2):
        task = asyncio.create_task(post(served, content))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await served.deps.database.write(_nothing)  # what was under way has been carried through
        now = await counts(served)
        made = now["agents"] - before["agents"]
        assert {name: now[name] - before[name] for name in added} == {name: made * rows for name, rows in added.items()}
        seen.add(made)
        before = now
    assert 0 in seen


async def _nothing(tx: Transaction) -> None:
    """A job that comes after those before it."""


# --- clients ---------------------------------------------------------------------------------------------------------


async def test_the_client_exports_and_imports(served: Served, agent: dict[str, Any], tmp_path: Path) -> None:
    client: AsyncLetta = served.client
    text = await client.agents.export_file(agent["id"])
    path = tmp_path / "ada.af"
    path.write_text(text)
    with path.open("rb") as file:
        answer = await client.agents.import_file(file=file, append_copy_suffix=False, secrets='{"KEY": "new"}')
    [copy_id] = answer.agent_ids
    copy = await client.agents.retrieve(copy_id, include=["agent.tools", "agent.blocks", "agent.tags"])
    assert (copy.name, copy.tags) == ("ada", agent["tags"])
    assert [block.value for block in copy.blocks] == [block["value"] for block in agent["blocks"]]
    shown = [
        each.model_dump(exclude={"id", "otid", "run_id", "step_id"})
        async for each in client.agents.messages.list(copy_id)
    ]
    there = [
        each.model_dump(exclude={"id", "otid", "run_id", "step_id"})
        async for each in client.agents.messages.list(agent["id"])
    ]
    assert shown == there
    again = msgspec.json.decode(await client.agents.export_file(copy_id))
    first = msgspec.json.decode(text)
    assert {**again, "created_at": None} == {**first, "created_at": None}

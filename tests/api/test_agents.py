"""Agents over HTTP: what they are made of, what is refused, and that a refusal leaves nothing behind."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from sqlalchemy import select

from holdfast import ids
from holdfast.actions.agents.read import agent_states
from holdfast.store import agents as agent_rows
from holdfast.store.agents import AgentFilter
from holdfast.store.paging import Page
from holdfast.store.schema import metadata
from holdfast.store.transaction import Transaction

from .resources import Served

STRANGER = "agent-123e4567-e89b-42d3-8456-426614174000"
EVERYTHING = ["agent.blocks", "agent.tools", "agent.tags", "agent.secrets", "agent.pending_approval"]

RULES: list[dict[str, Any]] = [
    {"type": "run_first", "tool_name": "a", "args": {"x": 1}, "prompt_template": None},
    {
        "type": "constrain_child_tools",
        "tool_name": "a",
        "children": ["b", "c"],
        "child_arg_nodes": [{"name": "b", "args": {"y": [2]}}],
        "prompt_template": None,
    },
    {
        "type": "conditional",
        "tool_name": "b",
        "child_output_mapping": {"true": "c", "3": "d", "2.5": "e", "yes": "f"},
        "default_child": "c",
        "require_output_mapping": True,
        "prompt_template": None,
    },
    {"type": "parent_last_tool", "tool_name": "c", "children": ["d"], "prompt_template": "t"},
    {"type": "exit_loop", "tool_name": "d", "prompt_template": None},
    {"type": "continue_loop", "tool_name": "e", "prompt_template": None},
    {"type": "required_before_exit", "tool_name": "f", "prompt_template": None},
    {"type": "max_count_per_step", "tool_name": "g", "max_count_limit": 2, "prompt_template": None},
    {"type": "requires_approval", "tool_name": "h", "prompt_template": None},
]


async def test_an_agent_of_nothing_but_a_model_has_the_documented_defaults(served: Served) -> None:
    agent = await served.client.agents.create(model="holdfast/offline")
    assert re.fullmatch(r"[A-Z][a-z]+[A-Z][a-z]+", agent.name)
    assert agent.agent_type == "letta_v1_agent"
    assert {tool.name for tool in agent.tools} == {"conversation_search", "memory_replace", "memory_insert"}
    assert (agent.blocks, agent.tags, agent.secrets, agent.tool_rules) == ([], [], [], [])
    assert agent.message_ids is not None
    assert len(agent.message_ids) == 1
    assert (agent.timezone, agent.model, agent.embedding) == ("UTC", "holdfast/offline", None)
    assert agent.llm_config.parallel_tool_calls is False
    assert agent.llm_config.context_window == 128_000
    assert (agent.max_files_open, agent.per_file_view_window_char_limit) == (10, 25_000)
    settings = agent.compaction_settings
    assert settings is not None
    assert (settings.mode, settings.sliding_window_percentage, settings.clip_chars) == ("sliding_window", 0.3, 50_000)
    assert settings.model == "holdfast/offline"
    assert settings.prompt
    assert agent.created_at is not None


async def test_the_default_model_is_used_when_none_is_named(served: Served) -> None:
    assert (await served.create())["model"] == "holdfast/offline"


async def test_relations_are_empty_unless_asked_for(served: Served) -> None:
    made = await served.client.agents.create(
        memory_blocks=[{"label": "human", "value": "Ada"}], tags=["b", "a", "b"], secrets={"KEY": "hush"}
    )
    assert [block.value for block in made.blocks] == ["Ada"]
    assert (made.tags, [secret.value for secret in made.secrets or ()]) == (["a", "b"], ["hush"])
    bare = await served.client.agents.retrieve(made.id)
    assert (bare.tools, bare.blocks, bare.tags, bare.secrets, bare.memory.blocks) == ([], [], [], [], [])
    assert bare.pending_approval is None
    assert bare.message_ids == made.message_ids
    with_blocks = await served.client.agents.retrieve(made.id, include=["agent.blocks"])
    assert [block.label for block in with_blocks.memory.blocks] == ["human"]
    assert with_blocks.tags == ["a", "b"]
    assert with_blocks.tools == []
    whole = await served.ok("GET", f"/v1/agents/{made.id}", include=EVERYTHING)
    assert (len(whole["tools"]), whole["secrets"][0]["value"]) == (3, "********")
    assert whole["secrets"][0]["value_enc"] is None
    old_words = await served.ok("GET", f"/v1/agents/{made.id}", include_relationships="tools,memory")
    assert (len(old_words["tools"]), len(old_words["blocks"])) == (3, 1)


async def test_human_and_persona_blocks_get_a_description(served: Served) -> None:
    blocks = [{"label": "persona", "value": "p"}, {"label": "human", "value": None, "description": "mine"}]
    made = await served.create(memory_blocks=[*blocks, {"label": "other", "value": ""}])
    described = {block["label"]: block["description"] for block in made["blocks"]}
    assert described["persona"]
    assert (described["human"], described["other"]) == ("mine", None)
    assert [block["label"] for block in made["blocks"]] == ["persona", "human", "other"]
    assert all(block["limit"] == 100_000 for block in made["blocks"])


async def test_the_system_message_holds_the_instructions_and_the_blocks(served: Served) -> None:
    made = await served.create(system="Speak softly.", memory_blocks=[{"label": "human", "value": "Likes tea."}])
    message = await _only_message(served, made["id"])
    assert "Speak softly." in message
    assert "Likes tea." in message
    assert made["system"] == "Speak softly."


async def test_tools_are_attached_by_id_and_by_name_once_each(served: Served) -> None:
    roll = await served.create_tool()
    made = await served.create(tool_ids=[roll["id"], roll["id"]], tools=["roll_dice", "memory_insert"])
    names = sorted(tool["name"] for tool in made["tools"])
    assert names == ["conversation_search", "memory_insert", "memory_replace", "roll_dice"]
    bare = await served.create(tool_ids=[roll["id"]], include_base_tools=False)
    assert [tool["name"] for tool in bare["tools"]] == ["roll_dice"]


async def test_a_tool_that_wants_approval_brings_its_rule(served: Served) -> None:
    roll = await served.create_tool(default_requires_approval=True)
    made = await served.create(tool_ids=[roll["id"]])
    assert made["tool_rules"] == [{"type": "requires_approval", "tool_name": "roll_dice", "prompt_template": None}]


async def test_tool_rules_come_back_exactly(served: Served) -> None:
    made = await served.create(tool_rules=RULES)
    assert made["tool_rules"] == RULES
    assert (await served.client.agents.retrieve(made["id"])).tool_rules is not None
    updated = await served.ok("PATCH", f"/v1/agents/{made['id']}", {"tool_rules": RULES[3:5]})
    assert updated["tool_rules"] == RULES[3:5]


async def test_older_kinds_begin_with_a_greeting_and_base_rules(served: Served) -> None:
    made = await served.create(agent_type="memgpt_v2_agent")
    assert len(made["message_ids"]) == 4
    rules = {rule["tool_name"]: rule["type"] for rule in made["tool_rules"]}
    assert rules["send_message"] == "exit_loop"
    assert rules["memory_insert"] == "continue_loop"
    assert len((await served.create(agent_type="memgpt_agent", initial_message_sequence=[]))["message_ids"]) == 1
    assert (await served.create(agent_type="workflow_agent"))["message_buffer_autoclear"] is True
    assert (await served.create(agent_type="react_agent"))["tools"] == []


async def test_tools_that_are_no_part_of_memory_get_no_rule_to_go_on(served: Served) -> None:
    tools = ["send_message", "send_message_to_agent_async", "archival_memory_insert", "memory_rethink", "run_code"]
    tools += ["send_message_to_agent_and_wait_for_reply", "web_search"]
    made = await served.create(agent_type="memgpt_v2_agent", include_base_tools=False, tools=tools)
    assert {(rule["type"], rule["tool_name"]) for rule in made["tool_rules"]} == {
        ("exit_loop", "send_message"),
        ("exit_loop", "send_message_to_agent_async"),
        ("continue_loop", "archival_memory_insert"),
        ("continue_loop", "memory_rethink"),
    }


async def test_given_messages_follow_the_system_message(served: Served) -> None:
    sequence = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "ho"}]}]
    assert len((await served.create(initial_message_sequence=sequence))["message_ids"]) == 3
    detail = await served.refused(
        400, "POST", "/v1/agents/", {"initial_message_sequence": [{"role": "tool", "content": "x"}]}
    )
    assert "'tool'" in detail


async def test_model_settings_are_applied_and_shown(served: Served) -> None:
    agent = await served.client.agents.create(
        model="acme/large",
        context_window_limit=150_000,
        model_settings={"provider_type": "anthropic", "temperature": 0.2, "max_output_tokens": 99, "effort": "low"},
    )
    assert agent.llm_config.context_window == 150_000
    assert (agent.llm_config.temperature, agent.llm_config.max_tokens) == (0.2, 99)
    assert agent.llm_config.parallel_tool_calls is False
    shown = agent.api_model_settings
    assert shown is not None
    assert (shown.provider_type, shown.temperature, shown.max_output_tokens) == ("anthropic", 0.2, 99)
    assert agent.llm_config.effort == "low"


async def test_a_response_format_stays_until_the_settings_say_null(served: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    made = await served.create(model_settings={"provider_type": "openai", "response_format": wanted})
    path = f"/v1/agents/{made['id']}"
    kept = await served.ok("PATCH", path, {"model_settings": {"provider_type": "openai", "temperature": 0.1}})
    assert (kept["response_format"], kept["model_settings"]["response_format"]) == (wanted, wanted)
    null = {"provider_type": "openai", "response_format": None}
    cleared = await served.ok("PATCH", path, {"model_settings": null})
    assert (cleared["response_format"], cleared["model_settings"]["response_format"]) == (None, None)


async def test_an_llm_config_object_still_chooses_the_model(served: Served) -> None:
    config = {"model": "large", "model_endpoint_type": "acme", "context_window": 9_000, "max_tokens": 50}
    made = await served.create(llm_config=config)
    assert (made["model"], made["llm_config"]["context_window"]) == ("acme/large", 9_000)
    assert made["llm_config"]["max_tokens"] == 50
    named = await served.create(llm_config={"model": "x", "handle": "holdfast/offline", "context_window": 10**6})
    assert (named["model"], named["llm_config"]["context_window"]) == ("holdfast/offline", 128_000)


async def test_an_llm_config_that_was_read_is_written_back_with_another_model_in_it(served: Served) -> None:
    made = await served.create(model="acme/large")
    path = f"/v1/agents/{made['id']}"
    moved = await served.ok("PATCH", path, {"llm_config": made["llm_config"] | {"model": "thinker"}})
    assert (moved["model"], moved["llm_config"]["model"]) == ("acme/thinker", "thinker")
    assert (await served.ok("PATCH", path, {"llm_config": moved["llm_config"]}))["model"] == "acme/thinker"
    away = await served.ok("PATCH", path, {"llm_config": moved["llm_config"] | {"model": "holdfast/offline"}})
    assert away["model"] == "holdfast/offline"
    assert "acme/none" in await served.refused(
        404, "PATCH", path, {"llm_config": made["llm_config"] | {"handle": "holdfast/offline", "model": "acme/none"}}
    )


async def test_an_embedding_is_optional_and_shown_when_known(served: Served) -> None:
    agent = await served.client.agents.create(embedding="acme/vectors")
    assert agent.embedding == "acme/vectors"
    assert agent.embedding_config is not None
    assert agent.embedding_config.embedding_dim == 8
    cleared = await served.ok("PATCH", f"/v1/agents/{agent.id}", {"embedding": None})
    assert (cleared["embedding"], cleared["embedding_config"]) == (None, None)


@pytest.mark.parametrize("name", ["Claude (v4.5)", "notes: 2026/11", "🧑‍🚀 Ada", "ops@night #1"])
async def test_an_agent_is_renamed_to_what_people_call_it(served: Served, name: str) -> None:
    made = await served.create(name="Eva")
    path = f"/v1/agents/{made['id']}"
    assert (await served.ok("PATCH", path, {"name": name}))["name"] == name
    assert [agent["id"] for agent in await served.ok("GET", "/v1/agents/", name=name)] == [made["id"]]
    for bad in ("", " ", "two\nlines"):
        await served.refused(422, "PATCH", path, {"name": bad})


BAD: list[tuple[int, dict[str, Any], str]] = [
    (422, {"name": "a/b"}, "name"),
    (422, {"name": "tab\there"}, "name"),
    (422, {"name": " "}, "empty"),
    (422, {"timezone": "Mars/Olympus"}, "Mars/Olympus"),
    (422, {"timezone": "../etc/passwd"}, "time zone"),
    (422, {"agent_type": "robot"}, "agent_type"),
    (422, {"agent_type": "voice_convo_agent"}, "enable_sleeptime"),
    (400, {"agent_type": "split_thread_agent"}, "system"),
    (404, {"model": "acme/none"}, "acme/none"),
    (400, {"model": "none"}, "none"),
    (400, {"model": "acme/large", "context_window_limit": 200_001}, "200000"),
    (422, {"context_window_limit": 0}, "context_window_limit"),
    (400, {"embedding": "openai/text-embedding-3-small"}, "Leave embedding out"),
    (422, {"embedding": "small"}, "provider/model"),
    (
        400,
        {"max_reasoning_tokens": 10, "max_tokens": 10},
        "Max reasoning tokens (10) must be less than max tokens (10)",
    ),
    (422, {"model_settings": {"provider_type": "nobody"}}, "provider_type"),
    (422, {"model_settings": {"temperature": 9}}, "temperature"),
    (409, {"memory_blocks": [{"label": "a", "value": ""}, {"label": "a", "value": ""}]}, "'a'"),
    (422, {"memory_blocks": [{"value": "x"}]}, "label"),
    (422, {"memory_blocks": [{"label": "a", "value": "four", "limit": 3}]}, "limit"),
    (404, {"block_ids": ["block-123e4567-e89b-42d3-8456-426614174000"]}, "block-123e4567"),
    (400, {"tool_ids": ["tool-none"]}, "Tools not found by id"),
    (400, {"tools": ["none"]}, "Tools not found by name"),
    (400, {"max_files_open": 1001}, "max_files_open"),
    (400, {"per_file_view_window_char_limit": 2**31}, "per_file_view_window_char_limit"),
    (422, {"tool_rules": [{"type": "unheard_of", "tool_name": "a"}]}, "type"),
    (422, {"tool_rules": [{"type": "exit_loop", "tool_name": "a", "extra": 1}]}, "extra"),
    (422, {"tool_rules": [{"type": "exit_loop"}]}, "tool_name"),
    (422, {"tool_rules": [RULES[1] | {"child_arg_nodes": [{"name": "z"}]}]}, "z"),
    (422, {"tool_rules": [RULES[2] | {"child_output_mapping": {}}]}, "child_output_mapping"),
    (400, {"tool_rules": [RULES[0], RULES[0] | {"tool_name": "b"}]}, "run_first"),
    (422, {"compaction_settings": {"sliding_window_percentage": 1.5}}, "sliding_window_percentage"),
    (422, {"secrets": {"A=B": "x"}}, "A=B"),
    (422, {"secrets": {"A": 1}}, "secrets"),
    (404, {"folder_ids": ["source-1"]}, "source-1"),
    (501, {"include_default_source": True}, "folder_ids"),
    (404, {"identity_ids": ["identity-1"]}, "identity-1"),
    (501, {"include_multi_agent_tools": True}, "include_multi_agent_tools"),
    (501, {"agent_type": "voice_convo_agent", "enable_sleeptime": True}, "enable_sleeptime"),
    (422, {"system": "a\x00b"}, "NUL"),
    (422, {"tags": [""]}, "tags"),
]


async def test_a_bad_request_is_refused_with_a_sentence_and_leaves_nothing(served: Served) -> None:
    good = {"memory_blocks": [{"label": "kept", "value": ""}], "tags": ["t"], "secrets": {"K": "v"}}
    for status, body, fragment in BAD:
        detail = await served.refused(status, "POST", "/v1/agents/", good | body)
        assert fragment in detail, body
        assert await served.ok("GET", "/v1/agents/count") == 0
        assert await served.ok("GET", "/v1/blocks/count") == 0


async def test_a_refused_change_changes_nothing(served: Served) -> None:
    made = await served.create(memory_blocks=[{"label": "a", "value": ""}], tags=["t"], name="Ada")
    other = await served.create_block("a")
    path = f"/v1/agents/{made['id']}"
    own = made["blocks"][0]["id"]
    before = await served.ok("GET", path, include=EVERYTHING)
    refusals: list[tuple[int, dict[str, Any]]] = [
        (409, {"name": "Eva", "tags": [], "block_ids": [own, other["id"]]}),
        (404, {"tags": [], "block_ids": ["block-123e4567-e89b-42d3-8456-426614174000"]}),
        (400, {"block_ids": [], "tool_ids": ["tool-x"]}),
        (422, {"name": "tab\there"}),
        (422, {"timezone": "Nowhere"}),
        (404, {"model": "acme/none"}),
        (400, {"context_window_limit": 10**7}),
        (501, {"message_ids": []}),
    ]
    for status, change in refusals:
        await served.refused(status, "PATCH", path, change)
        assert await served.ok("GET", path, include=EVERYTHING) == before


async def test_a_change_tells_null_from_absent(served: Served) -> None:
    made = await served.create(
        name="Ada", description="d", metadata={"k": 1}, max_tokens=77, tags=["t"], secrets={"A": "1", "B": "2"}
    )
    path = f"/v1/agents/{made['id']}"
    same = await served.ok("PATCH", path, {"message_ids": made["message_ids"]})  # as it was read
    assert (same["description"], same["metadata"], same["llm_config"]["max_tokens"]) == ("d", {"k": 1}, 77)
    assert (same["tags"], len(same["tools"])) == (["t"], 3)
    assert [secret["value"] for secret in same["secrets"]] == ["********", "********"]
    cleared = await served.ok("PATCH", path, {"description": None, "metadata": None, "max_tokens": None, "name": None})
    assert (cleared["description"], cleared["metadata"], cleared["name"]) == (None, None, "Ada")
    assert cleared["llm_config"]["max_tokens"] == 16_384
    changed = await served.ok("PATCH", path, {"tags": [], "tool_ids": [], "secrets": {"B": "2", "C": "3"}})
    assert (changed["tags"], changed["tools"]) == ([], [])
    assert {secret["key"]: secret["value"] for secret in changed["secrets"]} == {"B": "2", "C": "3"}
    kept = {secret["key"]: secret["id"] for secret in changed["secrets"]}
    assert kept["B"] == next(secret["id"] for secret in same["secrets"] if secret["key"] == "B")


async def test_the_client_changes_an_agent(served: Served) -> None:
    made = await served.client.agents.create(name="Ada")
    block = await served.client.blocks.create(label="human", value="v")
    changed = await served.client.agents.update(
        made.id, name="Eva O'Neil-2", system="s", block_ids=[block.id], timezone="Asia/Tokyo", parallel_tool_calls=True
    )
    assert (changed.name, changed.system, changed.timezone) == ("Eva O'Neil-2", "s", "Asia/Tokyo")
    assert [each.id for each in changed.blocks] == [block.id]
    assert changed.llm_config.parallel_tool_calls is True
    assert changed.updated_at is not None
    assert made.updated_at is not None
    assert changed.updated_at > made.updated_at


async def test_another_model_brings_its_own_window(served: Served) -> None:
    made = await served.create(context_window_limit=9_000, parallel_tool_calls=True)
    path = f"/v1/agents/{made['id']}"
    moved = await served.ok("PATCH", path, {"model": "acme/large"})
    assert (moved["model"], moved["llm_config"]["context_window"]) == ("acme/large", 128_000)
    assert moved["llm_config"]["parallel_tool_calls"] is True
    limited = await served.ok("PATCH", path, {"context_window_limit": 200_000})
    assert limited["llm_config"]["context_window"] == 200_000
    patched = await served.ok("PATCH", path, {"model_settings": {"provider_type": "anthropic", "temperature": 0.1}})
    assert (patched["llm_config"]["temperature"], patched["llm_config"]["context_window"]) == (0.1, 200_000)


async def test_compaction_settings_merge_and_another_mode_resets_the_prompt(served: Served) -> None:
    made = await served.create(compaction_settings={"prompt": "Mine.", "clip_chars": 9})
    assert (made["compaction_settings"]["prompt"], made["compaction_settings"]["clip_chars"]) == ("Mine.", 9)
    path = f"/v1/agents/{made['id']}"
    kept = await served.ok("PATCH", path, {"compaction_settings": {"clip_chars": 10}})
    assert (kept["compaction_settings"]["prompt"], kept["compaction_settings"]["clip_chars"]) == ("Mine.", 10)
    other = await served.ok("PATCH", path, {"compaction_settings": {"mode": "all"}})
    assert other["compaction_settings"]["prompt"] not in ("Mine.", None)
    assert other["compaction_settings"]["clip_chars"] == 10


async def test_compaction_settings_that_are_written_back_still_follow_the_agent_s_model(served: Served) -> None:
    made = await served.create()
    path = f"/v1/agents/{made['id']}"
    read = await served.client.agents.retrieve(made["id"])
    back: Any = read.compaction_settings
    await served.client.agents.update(made["id"], compaction_settings=back)
    moved = await served.ok("PATCH", path, {"model": "acme/large", "compaction_settings": {"mode": "all"}})
    fresh = await served.create(model="acme/large", compaction_settings={"mode": "all"})
    assert moved["compaction_settings"] == fresh["compaction_settings"]


async def test_ids_that_are_malformed_or_unknown(served: Served) -> None:
    answer = await served.http.get("/v1/agents/agent-1")
    assert answer.status_code == 422
    assert answer.json()["examples"]
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/core-memory"),
        ("GET", "/core-memory/blocks"),
        ("GET", "/core-memory/blocks/human"),
        ("GET", "/tools"),
    ):
        assert await served.refused(404, method, f"/v1/agents/{STRANGER}{path}") == "Agent not found"
    assert await served.refused(404, "PATCH", f"/v1/agents/{STRANGER}", {}) == "Agent not found"
    assert await served.refused(404, "GET", "/v1/agents/", after=STRANGER)
    assert await served.refused(422, "GET", "/v1/agents/", limit=0)
    assert await served.refused(422, "GET", "/v1/agents/", include="agent.unknown")


async def test_the_client_walks_the_list_and_meets_every_agent_once(served: Served) -> None:
    made = [await served.create(name=f"Agent {index}") for index in range(5)]
    seen = [agent.id async for agent in served.client.agents.list(limit=2)]
    assert seen == [agent["id"] for agent in reversed(made)]
    rising = [agent.id async for agent in served.client.agents.list(limit=2, order="asc", order_by="updated_at")]
    assert rising == seen[::-1]


async def test_lists_and_counts_take_the_same_filters(served: Served) -> None:
    await served.create(name="One", tags=["x", "y"], project_id="p")
    await served.create(name="Two", tags=["x"])
    await served.create(name="Sub", tags=["role:subagent"])

    async def names(**query: Any) -> set[str]:
        found = {agent["name"] for agent in await served.ok("GET", "/v1/agents/", **query)}
        assert await served.ok("GET", "/v1/agents/count", **query) == len(found)
        return found

    assert await names() == {"One", "Two"}
    assert await names(show_hidden_agents=True) == {"One", "Two", "Sub"}
    assert await names(tags=["x", "y"]) == {"One", "Two"}
    assert await names(tags=["x", "y"], match_all_tags=True) == {"One"}
    assert await names(query_text="tw") == {"Two"}
    assert await names(name="One") == await names(project_id="p") == {"One"}
    assert await names(identity_id="identity-1") == await names(created_by_id="user-1") == set()
    assert await names(created_by_id=ids.DEFAULT_USER) == {"One", "Two"}
    assert await names(last_stop_reason="end_turn") == set()


async def test_a_deleted_agent_is_gone_and_its_blocks_stay(served: Served) -> None:
    made = await served.create(memory_blocks=[{"label": "a", "value": ""}])
    gone = await served.ok("DELETE", f"/v1/agents/{made['id']}")
    assert gone == {"message": f"Agent id={made['id']} successfully deleted"}
    assert await served.refused(404, "GET", f"/v1/agents/{made['id']}") == "Agent not found"
    assert await served.ok("GET", "/v1/blocks/count") == 1


async def test_core_memory_shows_every_block(served: Served) -> None:
    made = await served.create(memory_blocks=[{"label": "a", "value": "v"}])
    memory = await served.ok("GET", f"/v1/agents/{made['id']}/core-memory")
    assert [block["value"] for block in memory["blocks"]] == ["v"]
    assert (memory["agent_type"], memory["file_blocks"]) == ("letta_v1_agent", [])


async def test_tools_are_attached_and_detached_with_their_approval(served: Served) -> None:
    roll = await served.create_tool(default_requires_approval=True)
    made = await served.create(include_base_tools=False)
    tools = served.client.agents.tools
    for _ in range(2):
        assert await tools.attach(roll["id"], agent_id=made["id"]) is None
    assert [tool.name async for tool in tools.list(made["id"])] == ["roll_dice"]
    rules = (await served.ok("GET", f"/v1/agents/{made['id']}"))["tool_rules"]
    assert rules == [{"type": "requires_approval", "tool_name": "roll_dice", "prompt_template": None}]
    for _ in range(2):
        assert await tools.detach(roll["id"], agent_id=made["id"]) is None
    state = await served.ok("GET", f"/v1/agents/{made['id']}", include=EVERYTHING)
    assert (state["tools"], state["tool_rules"]) == ([], [])
    unknown = "tool-123e4567-e89b-42d3-8456-426614174000"
    await served.refused(404, "PATCH", f"/v1/agents/{made['id']}/tools/attach/{unknown}")
    await served.refused(404, "PATCH", f"/v1/agents/{STRANGER}/tools/attach/{roll['id']}")
    await served.refused(422, "PATCH", f"/v1/agents/{made['id']}/tools/attach/tool-1")


async def test_approval_is_switched_by_the_body_or_the_query(served: Served) -> None:
    made = await served.create()
    path = f"/v1/agents/{made['id']}/tools/approval/roll_dice"

    async def rules() -> list[Any]:
        return (await served.ok("GET", f"/v1/agents/{made['id']}"))["tool_rules"]

    tools = served.client.agents.tools
    assert await tools.update_approval("roll_dice", agent_id=made["id"], body_requires_approval=True) is None
    assert await tools.update_approval("roll_dice", agent_id=made["id"], body_requires_approval=True) is None
    assert len(await rules()) == 1
    await served.ok("PATCH", path, requires_approval=False)
    assert await rules() == []
    await served.refused(422, "PATCH", path)
    await served.refused(422, "PATCH", path, {"requires_approval": True, "extra": 1})


async def test_a_call_that_waits_for_consent_is_shown_when_asked_for(served: Served) -> None:
    roll = await served.create_tool(default_requires_approval=True)
    made = await served.create(tool_ids=[roll["id"]], include_base_tools=False)
    said = {"messages": [{"role": "user", "content": "Call roll_dice with 6 sides."}]}
    await served.ok("POST", f"/v1/agents/{made['id']}/messages", said)
    agent = await served.client.agents.retrieve(made["id"], include=["agent.pending_approval"])
    assert agent.last_stop_reason == "requires_approval"
    assert agent.pending_approval is not None
    assert agent.pending_approval.tool_call.name == "roll_dice"
    assert agent.message_ids is not None
    assert agent.pending_approval.id == agent.message_ids[-1]
    assert (await served.client.agents.retrieve(made["id"])).pending_approval is None


async def test_changes_made_at_once_all_last(served: Served) -> None:
    made = await served.create(include_base_tools=False)
    names = [f"tool_{index}" for index in range(8)]
    await asyncio.gather(
        *(
            served.ok("PATCH", f"/v1/agents/{made['id']}/tools/approval/{name}", {"requires_approval": True})
            for name in names
        ),
        served.ok("PATCH", f"/v1/agents/{made['id']}", {"name": "Eva"}),
        served.ok("PATCH", f"/v1/agents/{made['id']}", {"description": "d"}),
    )
    state = await served.ok("GET", f"/v1/agents/{made['id']}")
    assert sorted(rule["tool_name"] for rule in state["tool_rules"]) == names
    assert (state["name"], state["description"]) == ("Eva", "d")


async def test_secrets_are_stored_nowhere_in_clear(served: Served) -> None:
    made = await served.create(secrets={"TOKEN": "a-very-secret-value"})
    await served.ok("PATCH", f"/v1/agents/{made['id']}", {"secrets": {"TOKEN": "another-secret-value"}})

    async def everything(tx: Transaction) -> str:
        rows = [row for table in metadata.sorted_tables for row in await tx.fetch_all(select(table))]
        return "\n".join(repr(dict(row)) for row in rows)

    stored = await served.deps.database.read(everything)
    assert made["id"] in stored
    assert "TOKEN" in stored
    assert "secret-value" not in stored
    assert b"secret-value".hex() not in stored.lower()


class Counting:
    """A transaction that counts what it is asked."""

    def __init__(self, tx: Transaction) -> None:
        self.asked = 0
        self._tx = tx

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._tx, name)


async def test_a_page_takes_as_many_queries_for_fifty_agents_as_for_two(served: Served) -> None:
    blocks = [{"label": "a", "value": ""}]
    await asyncio.gather(*(served.create(memory_blocks=blocks, tags=["t"], secrets={"A": "1"}) for _ in range(50)))

    async def queries(limit: int) -> int:
        async def read(tx: Transaction) -> int:
            counting: Any = Counting(tx)
            found = await agent_rows.list_agents(counting, AgentFilter(), Page(limit=limit))
            states = await agent_states(counting, found, frozenset(EVERYTHING), served.deps.secretbox)
            assert len(states) == limit
            return counting.asked

        return await served.deps.database.read(read)

    assert await queries(2) == await queries(50) <= 10


async def _only_message(served: Served, agent_id: str) -> str:
    from_wire = await served.ok("GET", f"/v1/agents/{agent_id}/messages")
    assert [message["message_type"] for message in from_wire] == ["system_message"]
    return from_wire[0]["content"]


async def test_an_older_agent_can_be_told_not_to_write_its_thoughts_down(served: Served) -> None:
    made = await served.create(agent_type="memgpt_v2_agent")
    path = f"/v1/agents/{made['id']}"
    config = made["llm_config"]
    assert config["put_inner_thoughts_in_kwargs"] is True
    without = {**config, "put_inner_thoughts_in_kwargs": False}
    changed = (await served.ok("PATCH", path, {"llm_config": without}))["llm_config"]
    assert changed == without
    assert (await served.ok("PATCH", path, {"llm_config": changed}))["llm_config"] == changed
    payload = await served.ok("POST", f"{path}/messages/preview-raw-payload", {"input": "hi"})
    assert "thinking" not in str(payload["tools"])
    assert (await served.ok("PATCH", path, {"llm_config": config}))["llm_config"] == config
    described = await served.create(agent_type="memgpt_v2_agent", llm_config=without)
    assert described["llm_config"]["put_inner_thoughts_in_kwargs"] is True


async def test_agents_are_counted_with_and_without_the_hidden_ones(served: Served) -> None:
    for hidden in (False, True, None):
        await served.create(hidden=hidden)
    assert await served.ok("GET", "/v1/_internal_agents/count") == 2
    assert await served.ok("GET", "/v1/_internal_agents/count", exclude_hidden=False) == 3

"""All tools that come with the server: how they are listed and described, and what those say that have no file yet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from ..served import ServedClient, served

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
STRINGS = {"type": "array", "items": STRING}
CATEGORIES = [
    "company",
    "research paper",
    "news",
    "pdf",
    "github",
    "tweet",
    "personal site",
    "linkedin profile",
    "financial report",
]


def one_of(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def list_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": properties, "required": list(required)}}


def strings(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, STRING)


# By type: the parameters of each tool, those that are required, and whether calls may run side by side.
TOOLS: dict[str, dict[str, tuple[dict[str, Any], list[str], bool]]] = {
    "letta_core": {
        "send_message": (strings("message"), ["message"], False),
        "conversation_search": (
            {
                "query": STRING,
                "roles": {"type": "array", "items": one_of("assistant", "user", "tool")},
                "limit": INTEGER,
                **strings("start_date", "end_date"),
            },
            [],
            True,
        ),
        "archival_memory_insert": ({"content": STRING, "tags": STRINGS}, ["content"], False),
        "archival_memory_search": (
            {
                "query": STRING,
                "tags": STRINGS,
                "tag_match_mode": one_of("any", "all"),
                "top_k": INTEGER,
                **strings("start_datetime", "end_datetime"),
            },
            ["query"],
            True,
        ),
    },
    "letta_memory_core": {
        "core_memory_append": (strings("label", "content"), ["label", "content"], False),
        "core_memory_replace": (
            strings("label", "old_content", "new_content"),
            ["label", "old_content", "new_content"],
            False,
        ),
        "memory": (
            {
                **strings("command", "path", "file_text", "description", "old_string", "new_string"),
                "insert_line": INTEGER,
                **strings("insert_text", "old_path", "new_path"),
            },
            ["command"],
            False,
        ),
        "memory_apply_patch": (strings("label", "patch"), ["label", "patch"], False),
    },
    "letta_sleeptime_core": {
        "memory_insert": (
            {**strings("label", "new_string"), "insert_line": INTEGER},
            ["label", "new_string"],
            False,
        ),
        "memory_replace": (
            strings("label", "old_string", "new_string"),
            ["label", "old_string", "new_string"],
            False,
        ),
        "memory_rethink": (strings("label", "new_memory"), ["label", "new_memory"], False),
        "memory_finish_edits": ({}, [], False),
    },
    "letta_builtin": {
        "run_code": (
            {"code": STRING, "language": one_of("python", "js", "ts", "r", "java")},
            ["code", "language"],
            True,
        ),
        "run_code_with_tools": (strings("code"), ["code"], False),
        "web_search": (
            {
                "query": STRING,
                "num_results": INTEGER,
                "category": one_of(*CATEGORIES),
                "include_text": BOOLEAN,
                "include_domains": STRINGS,
                "exclude_domains": STRINGS,
                **strings("start_published_date", "end_published_date", "user_location"),
            },
            ["query"],
            True,
        ),
        "fetch_webpage": (strings("url"), ["url"], True),
    },
    "letta_files_core": {
        "open_files": (
            {
                "file_requests": list_of({"file_name": STRING, "offset": INTEGER, "length": INTEGER}, "file_name"),
                "close_all_others": BOOLEAN,
            },
            ["file_requests"],
            False,
        ),
        "grep_files": (
            {**strings("pattern", "include"), "context_lines": INTEGER, "offset": INTEGER},
            ["pattern"],
            True,
        ),
        "semantic_search_files": ({"query": STRING, "limit": INTEGER}, ["query"], True),
    },
    "letta_multi_agent_core": {
        "send_message_to_agent_and_wait_for_reply": (
            strings("message", "other_agent_id"),
            ["message", "other_agent_id"],
            False,
        ),
        "send_message_to_agent_async": (strings("message", "other_agent_id"), ["message", "other_agent_id"], False),
        "send_message_to_agents_matching_tags": (
            {"message": STRING, "match_all": STRINGS, "match_some": STRINGS},
            ["message", "match_all", "match_some"],
            False,
        ),
    },
    "letta_voice_sleeptime_core": {
        "store_memories": (
            {
                "chunks": list_of(
                    {"start_index": INTEGER, "end_index": INTEGER, "context": STRING},
                    "start_index",
                    "end_index",
                    "context",
                )
            },
            ["chunks"],
            False,
        ),
        "rethink_user_memory": (strings("new_memory"), ["new_memory"], False),
        "finish_rethinking_memory": ({}, [], False),
        "search_memory": (
            {"convo_keyword_queries": STRINGS, "start_minutes_ago": INTEGER, "end_minutes_ago": INTEGER},
            [],
            False,
        ),
    },
}
TYPE_OF = {name: tool_type for tool_type, tools in TOOLS.items() for name in tools}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


def bare(schema: Any, *, names: bool = False) -> Any:
    """Without descriptions, which are the server's own words. `names`: its keys are names of arguments."""
    if isinstance(schema, list):
        return [bare(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    known = cast("dict[str, Any]", schema)
    kept = {key: each for key, each in known.items() if names or key != "description"}
    return {key: bare(each, names=key == "properties" and not names) for key, each in kept.items()}


def expected(name: str) -> dict[str, Any]:
    properties, required, parallel = TOOLS[TYPE_OF[name]][name]
    return {
        "name": name,
        "tool_type": TYPE_OF[name],
        "tags": [TYPE_OF[name]],
        "source_type": "python",
        "source_code": None,
        "args_json_schema": None,
        "return_char_limit": 50_000,
        "pip_requirements": None,
        "npm_requirements": None,
        "default_requires_approval": None,
        "enable_parallel_execution": parallel,
        "metadata_": {},
        "json_schema": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def told(tool: dict[str, Any]) -> dict[str, Any]:
    assert tool["description"] == tool["json_schema"]["description"]
    own = {"id", "description", "project_id", "created_by_id", "last_updated_by_id"}
    shown = {key: value for key, value in tool.items() if key not in own}
    return shown | {"json_schema": bare(tool["json_schema"])}


async def test_all_26_are_listed_with_exactly_these_schemas(client: ServedClient) -> None:
    assert len(TYPE_OF) == 26
    listed = {tool["name"]: tool for tool in await client.ask("GET", "/v1/tools/")}
    assert {name: told(tool) for name, tool in listed.items()} == {name: expected(name) for name in TYPE_OF}
    for tool in listed.values():  # the order of arguments, too
        wanted = TOOLS[tool["tool_type"]][tool["name"]][0]
        assert list(tool["json_schema"]["parameters"]["properties"]) == list(wanted)
    added = await client.ask("POST", "/v1/tools/add-base-tools")
    assert {tool["name"]: tool for tool in added} == listed
    assert await client.ask("GET", "/v1/tools/count", return_only_letta_tools=True) == 26


async def test_filters_find_them_by_type_and_by_name(client: ServedClient) -> None:
    async def names(**query: Any) -> set[str]:
        return {tool["name"] for tool in await client.ask("GET", "/v1/tools/", **query)}

    for tool_type, tools in TOOLS.items():
        assert await names(tool_types=tool_type) == set(tools)
        assert await names(exclude_tool_types=tool_type) == TYPE_OF.keys() - set(tools)
    both = ["letta_files_core", "letta_voice_sleeptime_core"]
    assert await names(tool_types=both) == await names(tool_types=",".join(both)) == {*TOOLS[both[0]], *TOOLS[both[1]]}
    for name in TYPE_OF:
        assert await names(name=name) == {name}
    assert await names(names=["open_files", "search_memory", "none"]) == {"open_files", "search_memory"}


async def test_all_can_be_attached_by_name_and_by_id(client: ServedClient) -> None:
    by_name = await client.agent(tools=list(TYPE_OF))
    listed = await client.ask("GET", "/v1/tools/")
    by_id = await client.agent(tool_ids=[tool["id"] for tool in listed])
    one_by_one = await client.agent()
    for tool in listed:
        await client.ask("PATCH", f"/v1/agents/{one_by_one.id}/tools/attach/{tool['id']}")
    for agent in (by_name, by_id, one_by_one):
        attached = await client.ask("GET", f"/v1/agents/{agent.id}/tools", limit=100)
        assert {tool["name"] for tool in attached} == TYPE_OF.keys()


async def run(client: ServedClient, agent_id: str, name: str, args: dict[str, Any]) -> tuple[str, str]:
    """What a call in a run returns; by hand it is the same."""
    ran = await client.ask("POST", f"/v1/agents/{agent_id}/tools/{name}/run", {"args": args})
    answer = await client.say(agent_id, f"Call {name} with {json.dumps(args)}")
    returned = next(each for each in answer.messages if each.message_type == "tool_return_message")
    by_hand = ran["func_return"] if ran["status"] == "success" else "".join(ran["stderr"])
    assert (ran["status"], by_hand) == (returned.status, returned.tool_return)
    return returned.status, returned.tool_return


NOT_ATTACHED = (
    "a.txt not attached - did you get the filename correct? Currently you have the following files attached: []"
)


@pytest.mark.parametrize(
    ("name", "args", "status", "text"),
    [
        ("open_files", {"file_requests": [{"file_name": "a.txt"}]}, "error", NOT_ATTACHED),
        ("open_files", {"file_requests": []}, "error", "No file requests provided"),
        ("open_files", {"file_requests": [{"name": "a.txt"}]}, "error", "The arguments do not fit the tool"),
        ("open_files", {}, "error", "The arguments do not fit the tool"),
        ("grep_files", {"pattern": "x"}, "success", "No files are currently attached to search"),
        ("grep_files", {"pattern": "x" * 1_001}, "error", "pattern must have from 1 to 1000 characters"),
        ("grep_files", {"pattern": "x", "offset": -1}, "error", "offset must be at least 0"),
        ("semantic_search_files", {"query": "x"}, "success", "No semantic matches found for query: 'x'"),
        ("semantic_search_files", {"query": "x", "limit": 0}, "error", "limit must be at least 1"),
    ],
)
async def test_without_folders_the_file_tools_say_that_there_are_no_files(
    client: ServedClient, name: str, args: dict[str, Any], status: str, text: str
) -> None:
    agent = await client.agent(tools=[name])
    returned = await run(client, agent.id, name, args)
    assert (returned[0], text in returned[1]) == (status, True), returned

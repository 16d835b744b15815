"""Agent files with more than one agent in them: groups, sleeptime, folders with files, MCP servers, identities. The
whole server, on both databases; what is imported is talked to."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.ids import DEFAULT_USER, UUID4_PATTERN
from tests.api import old_files as old
from tests.api.resources import Served
from tests.api.test_agent_files import counts
from tests.api.test_sleeptime import all_done
from tests.invariants import assert_invariants
from tests.mcp_servers.servers import Tools, served_mcp, server_of, stdio_config
from tests.served import ServedClient, served

LOG = "".join(f"day {day}: the tide was {'high' if day == 7 else 'low'}\n" for day in range(1, 31))


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url, allowed_hosts=("127.0.0.1",), queue_wait_s=5) as opened:
        yield opened


async def post(client: ServedClient, content: Any, **form: Any) -> httpx.Response:
    return await client.http.post(
        "/v1/agents/import", files={"file": ("agent.af", json.dumps(content).encode())}, data=form
    )


async def imported(client: ServedClient, content: Any, **form: Any) -> dict[str, Any]:
    answer = await post(client, content, **form)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def exported(client: ServedClient, agent_id: str, **query: Any) -> dict[str, Any]:
    return await client.ask("GET", f"/v1/agents/{agent_id}/export", **query)


async def whole(client: ServedClient, agent_id: str) -> dict[str, Any]:
    include = ["agent.blocks", "agent.tools", "agent.managed_group", "agent.sources", "agent.identities"]
    return await client.ask("GET", f"/v1/agents/{agent_id}", include=include)


async def answers(client: ServedClient, agent_id: str) -> None:
    """An agent that works says something, and nothing is left pending."""
    told = await client.say(agent_id, "Hello!")
    assert told.stop_reason.stop_reason in ("end_turn", "tool_rule"), told
    await assert_invariants(client.deps.database)


def ids_in(told: dict[str, Any]) -> set[str]:
    """Of this server. Prompts may name things by their ids, and so may what was said: they are passed over."""
    agents: list[dict[str, Any]] = [{**agent, "messages": []} for agent in told["agents"]]
    return set(re.findall(UUID4_PATTERN, json.dumps(told | {"agents": agents}))) - {DEFAULT_USER.removeprefix("user-")}


# --- sleeptime -------------------------------------------------------------------------------------------------------


async def looked_after(client: ServedClient, **fields: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"name": "main", "memory_blocks": [{"label": "human", "value": "Ada."}]}
    return await client.ask("POST", "/v1/agents/", known | {"enable_sleeptime": True} | fields)


async def test_an_agent_with_sleeptime_is_exported_with_the_agent_that_looks_after_it(client: ServedClient) -> None:
    main = await looked_after(client)
    told = await exported(client, main["id"])
    assert [(agent["id"], agent["name"]) for agent in told["agents"]] == [
        ("agent-0", "main"),
        ("agent-1", "main-sleeptime"),
    ]
    [group] = told["groups"]
    assert group == {
        "id": "group-0",
        "agent_ids": ["agent-1"],
        "description": "",
        "manager_config": {
            "manager_type": "sleeptime",
            "manager_agent_id": "agent-0",
            "sleeptime_agent_frequency": 5,
        },
        "project_id": None,
        "shared_block_ids": [],
        "hidden": None,
        "enable_sleeptime": True,
    }
    first, second = told["agents"]
    assert (first["group_ids"], second["group_ids"]) == (["group-0"], [])
    assert first["enable_sleeptime"] is False, "a reader that saw it here, too, would make a second group"
    assert set(first["block_ids"]) < set(second["block_ids"])
    assert ids_in(told) == set()


async def test_an_imported_pair_is_wired_to_each_other_and_works(client: ServedClient) -> None:
    main = await looked_after(client)
    await client.say(main["id"], "Hello!")
    await all_done(client)
    answer = await imported(client, await exported(client, main["id"]), name="copy")
    assert (answer["repairs"], answer["warnings"]) == ([], [])
    first, second = [await whole(client, agent_id) for agent_id in answer["agent_ids"]]
    assert (first["name"], second["name"], second["agent_type"]) == ("copy", "copy-sleeptime", "sleeptime_agent")
    assert first["enable_sleeptime"] is True
    group = first["managed_group"]
    assert (group["agent_ids"], group["turns_counter"]) == ([second["id"]], -1)
    assert group["id"] != main["managed_group"]["id"]
    [shared] = first["blocks"]
    assert shared["id"] in [block["id"] for block in second["blocks"]]
    assert shared["id"] != main["blocks"][0]["id"]
    await answers(client, first["id"])
    await all_done(client)
    runs = await client.ask("GET", "/v1/runs/", agent_id=second["id"])
    assert len(runs) == 1, "it is set to work after the first turn"
    await answers(client, second["id"])
    await client.ask("DELETE", f"/v1/agents/{first['id']}")
    await client.refusal(404, "GET", f"/v1/agents/{second['id']}")
    await whole(client, main["id"])


async def test_what_was_said_in_a_group_names_the_imported_group(client: ServedClient) -> None:
    main = await looked_after(client)
    await client.say(main["id"], "Hello!")
    await all_done(client)
    answer = await imported(client, await exported(client, main["id"]))
    again = await exported(client, answer["agent_ids"][0])
    [shown] = [message for message in again["agents"][1]["messages"] if message["role"] == "user"]
    assert shown["group_id"] == "group-0" and "Hello!" in json.dumps(shown)


async def test_sleeptime_that_was_switched_off_stays_off(client: ServedClient) -> None:
    main = await looked_after(client)
    await client.ask("PATCH", f"/v1/agents/{main['id']}", {"enable_sleeptime": False})
    told = await exported(client, main["id"])
    assert told["groups"][0]["enable_sleeptime"] is False
    answer = await imported(client, told)
    copy = await whole(client, answer["agent_ids"][0])
    assert copy["enable_sleeptime"] is False
    assert copy["managed_group"]["agent_ids"] == [answer["agent_ids"][1]]
    await answers(client, copy["id"])
    await all_done(client)
    assert await client.ask("GET", "/v1/runs/", agent_id=answer["agent_ids"][1]) == []


async def test_a_pair_of_the_old_server_which_tells_sleeptime_by_its_group_is_imported(client: ServedClient) -> None:
    group = {
        "id": "group-0",
        "agent_ids": ["agent-1"],
        "description": "",
        "manager_config": {"manager_type": "sleeptime", "manager_agent_id": "agent-0", "sleeptime_agent_frequency": 2},
        "project_id": None,
        "shared_block_ids": [],
        "hidden": None,
    }
    content = old.file(
        old.agent(block_ids=["block-0"], group_ids=["group-0"]),
        old.agent(
            number=1,
            name="harbour-sleeptime",
            agent_type="sleeptime_agent",
            block_ids=["block-0", "block-1"],
            tool_ids=["tool-0"],
        ),
        groups=[group],
        blocks=[old.block(0), old.block(1, "memory_persona", "I look after it.")],
        tools=[old.built_in(0)],
    )
    answer = await imported(client, content)
    first, second = [await whole(client, agent_id) for agent_id in answer["agent_ids"]]
    assert first["enable_sleeptime"] is True
    assert first["managed_group"]["sleeptime_agent_frequency"] == 2
    assert {block["id"] for block in first["blocks"]} < {block["id"] for block in second["blocks"]}
    await answers(client, first["id"])
    await all_done(client)
    assert len(await client.ask("GET", "/v1/runs/", agent_id=second["id"])) == 1


async def test_an_agent_that_is_said_to_have_sleeptime_gets_the_agent_that_the_file_lacks(client: ServedClient) -> None:
    content = old.file(old.agent(enable_sleeptime=True, block_ids=["block-0"]), blocks=[old.block(0)])
    answer = await imported(client, content)
    first, second = [await whole(client, agent_id) for agent_id in answer["agent_ids"]]
    assert (first["enable_sleeptime"], first["managed_group"]["agent_ids"]) == (True, [second["id"]])
    assert second["name"] == "harbour_copy-sleeptime"
    await answers(client, second["id"])


async def test_a_voice_agent_is_imported_without_sleeptime_and_that_is_told(client: ServedClient) -> None:
    content = old.file(old.agent(agent_type="voice_convo_agent", enable_sleeptime=True))
    answer = await imported(client, content)
    assert [warning.partition(".")[0] for warning in answer["warnings"]] == [
        "agents[0] 'harbour': it is imported without sleeptime"
    ]
    assert (await whole(client, answer["agent_ids"][0]))["enable_sleeptime"] is None


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"manager_type": "dynamic", "termination_token": "ENOUGH", "max_turns": 2},
        {"manager_type": "supervisor"},
    ],
)
async def test_the_agents_of_a_group_come_with_the_agent_that_manages_it(
    client: ServedClient, config: dict[str, Any]
) -> None:
    block = await client.ask("POST", "/v1/blocks/", {"label": "board", "value": "Buy rope."})
    main = await client.agent(name="chair")
    members = [await client.agent(name=name) for name in ("zoe", "abe")]
    pattern = config | {"manager_agent_id": main.id}
    wanted = {
        "agent_ids": [member.id for member in members],
        "description": "The crew",
        "manager_config": pattern,
        "shared_block_ids": [block["id"]],
    }
    group = await client.ask("POST", "/v1/groups/", wanted)
    told = await exported(client, main.id)
    assert [agent["name"] for agent in told["agents"]] == ["chair", "zoe", "abe"]
    assert told["groups"][0]["shared_block_ids"] == ["block-0"]
    assert ids_in(told) == set()
    answer = await imported(client, told, append_copy_suffix="false")
    assert answer["warnings"] == []
    made = (await whole(client, answer["agent_ids"][0]))["managed_group"]
    unlike = ("id", "agent_ids", "shared_block_ids", "manager_agent_id")
    assert {name: made[name] for name in made if name not in unlike} == {
        name: group[name] for name in group if name not in unlike
    }
    assert (made["manager_agent_id"], made["agent_ids"]) == (answer["agent_ids"][0], answer["agent_ids"][1:])
    for agent_id in answer["agent_ids"]:
        copy = await whole(client, agent_id)
        assert [each["id"] for each in copy["blocks"]] == made["shared_block_ids"]
        await answers(client, agent_id)
    said = await client.ask("POST", f"/v1/groups/{made['id']}/messages", {"input": "What is on the board?"})
    assert said["stop_reason"]["stop_reason"] == "end_turn"


async def test_agents_that_manage_each_other_are_exported_once(client: ServedClient) -> None:
    first, second = await client.agent(name="one"), await client.agent(name="two")
    for manager, member in ((first, second), (second, first)):
        config = {"manager_type": "supervisor", "manager_agent_id": manager.id}
        body = {"agent_ids": [member.id], "description": "", "manager_config": config}
        await client.ask("POST", "/v1/groups/", body)
    told = await exported(client, first.id)
    assert ([agent["name"] for agent in told["agents"]], len(told["groups"])) == (["one", "two"], 2)
    answer = await imported(client, told)
    for agent_id, member in zip(answer["agent_ids"], reversed(answer["agent_ids"]), strict=True):
        assert (await whole(client, agent_id))["managed_group"]["agent_ids"] == [member]


async def test_a_group_without_a_manager_is_read(client: ServedClient) -> None:
    group = {"id": "group-0", "agent_ids": ["agent-1", "agent-0"], "description": "Watch", "manager_config": None}
    content = old.file(old.agent(), old.agent(number=1, name="mate"), groups=[group])
    answer = await imported(client, content)
    [made] = await client.ask("GET", "/v1/groups/")
    assert (made["manager_type"], made["agent_ids"]) == ("round_robin", answer["agent_ids"][::-1])


# --- folders and files -----------------------------------------------------------------------------------------------


async def a_folder(client: ServedClient, name: str = "logs", **files: str) -> dict[str, Any]:
    folder = await client.ask(
        "POST", "/v1/folders/", {"name": name, "description": "Of the harbour", "instructions": "Look it up"}
    )
    for file, content in files.items():
        await upload(client, folder["id"], file.replace("_", "."), content)
    await all_done(client)
    return folder


async def upload(client: ServedClient, folder_id: str, name: str, content: str) -> dict[str, Any]:
    answer = await client.http.post(f"/v1/folders/{folder_id}/upload", files={"file": (name, content.encode())})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def reader(client: ServedClient, folder: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await client.ask("POST", "/v1/agents/", {"name": "reader", "folder_ids": [folder["id"]], **fields})


async def seen(client: ServedClient, agent_id: str) -> dict[str, tuple[bool, int | None, int | None]]:
    page = await client.ask("GET", f"/v1/agents/{agent_id}/files")
    return {file["file_name"]: (file["is_open"], file["start_line"], file["end_line"]) for file in page["files"]}


async def found(client: ServedClient, agent_id: str, pattern: str) -> str:
    body = {"args": {"pattern": pattern}}
    return (await client.ask("POST", f"/v1/agents/{agent_id}/tools/grep_files/run", body))["func_return"]


async def test_files_come_along_with_their_text_and_are_found_again(client: ServedClient) -> None:
    folder = await a_folder(client, log_txt=LOG, page_html="<h1>Tides</h1><p>1 &lt; 2</p>", empty_txt="")
    agent = await reader(client, folder)
    body = {"args": {"file_requests": [{"file_name": "logs/log.txt", "offset": 4, "length": 5}]}}
    await client.ask("POST", f"/v1/agents/{agent['id']}/tools/open_files/run", body)
    before = await seen(client, agent["id"])
    told = await exported(client, agent["id"])
    assert [source["name"] for source in told["sources"]] == ["logs"]
    assert {file["file_name"] for file in told["files"]} == {"logs/log.txt", "logs/page.html", "logs/empty.txt"}
    assert next(file["content"] for file in told["files"] if file["file_name"] == "logs/log.txt") == LOG
    assert ids_in(told) == set()
    await client.http.delete(f"/v1/folders/{folder['id']}")
    answer = await imported(client, told)
    assert answer["warnings"] == []
    await all_done(client)
    [copy_id] = answer["agent_ids"]
    copy = await whole(client, copy_id)
    [made] = copy["sources"]
    assert (made["name"], made["instructions"]) == ("logs", "Look it up") and made["id"] != folder["id"]
    assert await seen(client, copy_id) == before
    files = await client.ask("GET", f"/v1/folders/{made['id']}/files", include_content=True)
    assert {file["processing_status"] for file in files} == {"completed"}
    texts = {file["file_name"]: (file["content"], file["file_size"], file["file_type"]) for file in files}
    assert texts["log.txt"] == (LOG, len(LOG), "text/plain")
    assert "1 < 2" in texts["page.html"][0], "the text of a page is not read as a page once more"
    assert len(await client.ask("GET", f"/v1/folders/{made['id']}/passages")) > 0
    assert "day 7" in await found(client, copy_id, "high")
    await answers(client, copy_id)
    again = await exported(client, copy_id)
    assert [_undated(file) for file in again["files"]] == [_undated(file) for file in told["files"]]


def _undated(file: dict[str, Any]) -> dict[str, Any]:
    return {**file, "last_accessed_at": None}


async def test_a_folder_that_is_here_with_the_same_files_is_shared(client: ServedClient) -> None:
    folder = await a_folder(client, log_txt=LOG)
    agent = await reader(client, folder)
    answer = await imported(client, await exported(client, agent["id"]))
    assert answer["warnings"] == []
    assert (await whole(client, answer["agent_ids"][0]))["sources"][0]["id"] == folder["id"]
    assert len(await client.ask("GET", f"/v1/folders/{folder['id']}/files")) == 1


async def test_a_folder_with_other_files_is_left_alone_and_another_is_made(client: ServedClient) -> None:
    folder = await a_folder(client, log_txt=LOG)
    agent = await reader(client, folder)
    told = await exported(client, agent["id"])
    await upload(client, folder["id"], "more.txt", "More.")
    await all_done(client)
    answer = await imported(client, told)
    assert answer["warnings"] == [
        "sources[0] 'logs': a folder of this name with other files is here; this one is 'logs_(1)'"
    ]
    await all_done(client)
    assert set(await seen(client, answer["agent_ids"][0])) == {"logs_(1)/log.txt"}
    assert set(await seen(client, agent["id"])) == {"logs/log.txt", "logs/more.txt"}


async def test_files_of_the_old_server_are_imported_as_it_named_and_opened_them(client: ServedClient) -> None:
    source = {"id": "source-0", "name": "manuals", "description": "How things work", "embedding_chunk_size": None}
    plain = {"source_id": "source-0", "file_path": None, "processing_status": "completed", "error_message": None}
    files = [
        {"id": "file-2", "file_name": "manuals/readme_(1).md", "original_file_name": "readme.md", "content": "second"},
        {"id": "file-1", "file_name": "manuals/readme.md", "original_file_name": "readme.md", "content": "# First\r\n"},
        {"id": "file-0", "file_name": "manuals/engine.bin", "file_type": "x/y", "content": "Oil."},
    ]
    views = [
        {"file_id": f"file-{number}", "agent_id": "agent-0", "source_id": "source-0", "is_open": number != 1}
        for number in range(3)
    ]
    content = old.file(
        old.agent(source_ids=["source-0"], files_agents=views),
        sources=[source],
        files=[{**plain, **file} for file in files],
    )
    answer = await imported(client, content)
    await all_done(client)
    [agent_id] = answer["agent_ids"]
    assert await seen(client, agent_id) == {
        "manuals/engine.bin": (True, None, None),
        "manuals/readme.md": (False, None, None),
        "manuals/readme_(1).md": (True, None, None),
    }
    assert {tool["name"] for tool in (await whole(client, agent_id))["tools"]} == {
        "open_files",
        "grep_files",
        "semantic_search_files",
    }
    assert "engine.bin" in await found(client, agent_id, "oil")
    await answers(client, agent_id)


async def test_a_file_without_its_text_is_kept_and_that_is_told(client: ServedClient) -> None:
    there = {"source_id": "source-0"}
    content = old.file(
        old.agent(folder_ids=["source-0"]),
        sources=[{"id": "source-0", "name": "manuals"}],
        files=[
            {"id": "file-0", "file_name": "a.txt", "processing_status": "parsing", **there},
            {"id": "file-1", "file_name": "b.pdf", "processing_status": "error", "error_message": "No.", **there},
        ],
    )
    answer = await imported(client, content)
    assert answer["warnings"] == ["files[0] 'a.txt': the file does not hold its text; upload it again"]
    folder = (await whole(client, answer["agent_ids"][0]))["sources"][0]["id"]
    files = await client.ask("GET", f"/v1/folders/{folder}/files", order="asc")
    assert [(file["processing_status"], file["error_message"]) for file in files] == [
        ("error", "The agent file does not hold its text. Upload the file again."),
        ("error", "No."),
    ]
    await answers(client, answer["agent_ids"][0])


async def test_folders_can_be_exported_without_their_files(client: ServedClient, tmp_path: Path) -> None:
    folder = await a_folder(client, log_txt=LOG)
    agent = await reader(client, folder)
    told = await exported(client, agent["id"], include_files=False)
    assert (told["files"], told["agents"][0]["files_agents"]) == ([], [])
    assert [source["name"] for source in told["sources"]] == ["logs"]
    by_post = await client.ask("POST", f"/v1/agents/{agent['id']}/export", {"include_files": False})
    assert by_post | {"created_at": None} == told | {"created_at": None}


async def test_more_text_than_a_server_would_take_in_is_not_written(tmp_path: Path) -> None:
    async with served(tmp_path, max_body_bytes=2_000) as client:
        folder = await a_folder(client, one_txt="a" * 900, two_txt="b" * 1_200)
        agent = await client.ask("POST", "/v1/agents/", {"folder_ids": [folder["id"]]})
        told = await client.refusal(400, "GET", f"/v1/agents/{agent['id']}/export")
        assert "logs/two.txt" in told and "include_files=false" in told
        await exported(client, agent["id"], include_files=False)


# --- MCP servers -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def harbour() -> AsyncIterator[str]:
    async with served_mcp(server_of(Tools())) as url:
        yield url


async def caller(client: ServedClient, url: str, **config: Any) -> dict[str, Any]:
    """An agent with the tools of an MCP server."""
    server = await client.ask(
        "POST",
        "/v1/mcp-servers/",
        {"server_name": "harbour", "config": {"mcp_server_type": "streamable_http", "server_url": url, **config}},
    )
    tools = await client.ask("GET", f"/v1/mcp-servers/{server['id']}/tools")
    ids = [tool["id"] for tool in tools if tool["name"] in ("add", "book")]
    return await client.ask("POST", "/v1/agents/", {"name": "caller", "tool_ids": ids, "include_base_tools": False})


async def forget_servers(client: ServedClient) -> None:
    for server in await client.ask("GET", "/v1/mcp-servers/"):
        assert (await client.http.delete(f"/v1/mcp-servers/{server['id']}")).status_code == 204


@pytest.mark.slow
async def test_a_server_comes_without_secrets_and_its_tools_call_it(client: ServedClient, harbour: str) -> None:
    headers = {"X-Port": "hush-hush", "X-User": "{{ USER_NAME }}"}
    agent = await caller(client, harbour, auth_token="hush-token", custom_headers=headers)
    told = await exported(client, agent["id"])
    assert "hush" not in json.dumps(told)
    assert told["mcp_servers"] == [
        {
            "id": "mcp_server-0",
            "server_type": "streamable_http",
            "server_name": "harbour",
            "server_url": harbour,
            "stdio_config": None,
            "metadata_": {},
            "access": {"auth_token": "", "custom_headers": {"X-Port": "", "X-User": "{{ USER_NAME }}"}},
        }
    ]
    assert {tool["metadata_"]["mcp"]["server_id"] for tool in told["tools"]} == {"mcp_server-0"}
    assert ids_in(told) == set()
    await forget_servers(client)
    answer = await imported(client, told)
    assert answer["warnings"] == [
        "mcp_servers[0] 'harbour': it has no auth_token, header X-Port yet, because no file holds secrets: set them"
    ]
    [server] = await client.ask("GET", "/v1/mcp-servers/")
    assert (server["auth_token"], server["custom_headers"]) == (None, {"X-User": "{{ USER_NAME }}"})
    copy = await whole(client, answer["agent_ids"][0])
    assert {tool["metadata_"]["mcp"]["server_id"] for tool in copy["tools"]} == {server["id"]}
    said = await client.say(copy["id"], 'Call add with {"a": 2, "b": 3}')
    assert any(getattr(message, "tool_return", None) == "5" for message in said.messages), said
    before = {tool["name"]: tool["id"] for tool in copy["tools"]}
    changed = await client.ask("PATCH", f"/v1/mcp-servers/{server['id']}/refresh")
    assert not set(changed["deleted"]) and not set(changed["added"]) & before.keys()
    after = {tool["name"]: tool["id"] for tool in (await whole(client, copy["id"]))["tools"]}
    assert after == before, "tools keep their ids over a refresh"


@pytest.mark.slow
async def test_a_server_that_is_here_stays_as_it_is(client: ServedClient, harbour: str) -> None:
    agent = await caller(client, harbour, auth_token="hush-token")
    told = await exported(client, agent["id"])
    told["mcp_servers"][0]["server_url"] = "http://127.0.0.1:9/elsewhere"
    answer = await imported(client, told)
    assert [warning.partition(";")[0] for warning in answer["warnings"]] == [
        "mcp_servers[0] 'harbour': the MCP server of this name that is here has another address or command"
    ]
    [server] = await client.ask("GET", "/v1/mcp-servers/")
    assert (server["server_url"], server["auth_token"]) == (harbour, "********")
    copy = await whole(client, answer["agent_ids"][0])
    assert [tool["id"] for tool in copy["tools"]] == [
        tool["id"] for tool in (await whole(client, agent["id"]))["tools"]
    ]


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ({"server_type": "stdio", "stdio_config": {"command": "python3", "args": ["-m", "tides"]}}, "MCP stdio"),
        ({"server_type": "sse", "server_url": "http://10.0.0.7/sse"}, "10.0.0.7"),
        ({"server_type": "sse", "server_url": "ftp://tides.example/sse"}, "http"),
    ],
)  # fmt: skip
async def test_a_server_that_cannot_be_here_is_left_out_and_its_tools_wait_for_it(
    client: ServedClient, server: dict[str, Any], reason: str
) -> None:
    tool = old.tool(0, "tide", "def tide(**kwargs): ...", tool_type="external_mcp", tags=["mcp:tides"])
    content = old.file(
        old.agent(tool_ids=["tool-0"]),
        tools=[tool],
        mcp_servers=[{"id": "mcp_server-0", "server_name": "tides", **server}],
    )
    answer = await imported(client, content)
    told = " | ".join(answer["warnings"])
    assert "mcp_servers[0] 'tides': it is left out, and its tools come without it" in told and reason in told
    assert "tools[0] 'tide': it is a tool of an MCP server that is not here" in told
    assert await client.ask("GET", "/v1/mcp-servers/") == []
    await answers(client, answer["agent_ids"][0])


async def test_a_program_is_imported_where_programs_are_allowed(tmp_path: Path) -> None:
    config = stdio_config()
    tool = old.tool(0, "add", "def add(**kwargs): ...", tool_type="external_mcp", tags=["mcp:harbour"])
    told = {"command": config["command"], "args": config["args"]}
    content = old.file(
        old.agent(tool_ids=["tool-0"]),
        tools=[tool],
        mcp_servers=[
            {"id": "mcp_server-0", "server_name": "harbour", "server_type": "stdio", "stdio_config": told},
        ],
    )
    async with served(tmp_path, mcp_stdio=True) as client:
        answer = await imported(client, content)
        assert answer["warnings"] == []
        [server] = await client.ask("GET", "/v1/mcp-servers/")
        assert (server["command"], server["args"]) == (config["command"], config["args"])
        again = await exported(client, answer["agent_ids"][0])
        assert again["mcp_servers"][0]["stdio_config"] == told | {"server_name": "harbour", "type": "stdio"}


@pytest.mark.slow
async def test_a_tool_whose_server_is_here_and_not_in_the_file_is_linked_to_it(
    client: ServedClient, harbour: str
) -> None:
    agent = await caller(client, harbour)
    told = await exported(client, agent["id"])
    told["mcp_servers"] = []
    answer = await imported(client, told)
    assert answer["warnings"] == []
    said = await client.say(answer["agent_ids"][0], 'Call add with {"a": 2, "b": 3}')
    assert any(getattr(message, "tool_return", None) == "5" for message in said.messages), said


# --- identities ------------------------------------------------------------------------------------------------------


async def known_person(client: ServedClient) -> tuple[dict[str, Any], dict[str, Any]]:
    block = {"label": "human", "value": "Ada"}
    agent = await client.ask("POST", "/v1/agents/", {"name": "of ada", "memory_blocks": [block]})
    identity = await client.ask(
        "POST",
        "/v1/identities/",
        {
            "identifier_key": "ada-1",
            "name": "Ada",
            "identity_type": "user",
            "properties": [{"key": "plan", "value": "gold", "type": "string"}],
            "agent_ids": [agent["id"]],
            "block_ids": [agent["blocks"][0]["id"]],
        },
    )
    return agent, identity


async def test_identities_come_along_when_they_are_asked_for(client: ServedClient) -> None:
    agent, identity = await known_person(client)
    assert "identities" not in await exported(client, agent["id"]), "people are not written unasked"
    told = await exported(client, agent["id"], include_identities=True)
    assert told["identities"] == [
        {
            "id": "identity-0",
            "identifier_key": "ada-1",
            "name": "Ada",
            "identity_type": "user",
            "properties": [{"key": "plan", "value": "gold", "type": "string"}],
            "agent_ids": ["agent-0"],
            "block_ids": ["block-0"],
        }
    ]
    await client.ask("DELETE", f"/v1/identities/{identity['id']}")
    answer = await imported(client, told)
    assert answer["warnings"] == []
    copy = await whole(client, answer["agent_ids"][0])
    [made] = copy["identities"]
    assert made["id"] != identity["id"]
    assert (made["agent_ids"], made["block_ids"]) == ([copy["id"]], [copy["blocks"][0]["id"]])
    assert (made["name"], made["properties"]) == (identity["name"], identity["properties"])
    await answers(client, copy["id"])


async def test_an_identity_that_is_here_is_not_changed_by_a_file(client: ServedClient) -> None:
    agent, identity = await known_person(client)
    told = await exported(client, agent["id"], include_identities=True)
    told["identities"][0]["name"] = "Mallory"
    answer = await imported(client, told)
    assert [warning.partition(",")[0] for warning in answer["warnings"]] == [
        "identities[0] 'Mallory': there is an identity with its key"
    ]
    now = await client.ask("GET", f"/v1/identities/{identity['id']}")
    assert (now["name"], set(now["agent_ids"])) == ("Ada", {agent["id"], *answer["agent_ids"]})


# --- what is wrong ---------------------------------------------------------------------------------------------------


def pair(**changes: Any) -> dict[str, Any]:
    group: dict[str, Any] = {"id": "group-0", "agent_ids": ["agent-1"], "description": "Crew"}
    config = {"manager_type": "sleeptime", "manager_agent_id": "agent-0"}
    return old.file(
        old.agent(), old.agent(number=1, name="mate"), groups=[{**group, "manager_config": config, **changes}]
    )


def with_file(**changes: Any) -> dict[str, Any]:
    file = {"id": "file-0", "source_id": "source-0", "file_name": "a.txt", "content": "text", **changes}
    return old.file(old.agent(source_ids=["source-0"]), sources=[{"id": "source-0", "name": "manuals"}], files=[file])


def with_server(**changes: Any) -> dict[str, Any]:
    server = {"id": "mcp_server-0", "server_name": "tides", "server_type": "sse", "server_url": "http://a.example/"}
    return old.file(old.agent(), mcp_servers=[server | changes])


def with_identity(**changes: Any) -> dict[str, Any]:
    identity = {"id": "identity-0", "identifier_key": "k", "name": "Ada", "identity_type": "user", **changes}
    return old.file(old.agent(), identities=[identity])


SLEEPTIME = {"manager_type": "sleeptime", "manager_agent_id": "agent-0"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (pair(agent_ids=["agent-7"]), "groups[0]: its agent agent-7 is not in the file"),
        (pair(shared_block_ids=["block-7"]), "groups[0]: its block block-7 is not in the file"),
        (pair(manager_config={**SLEEPTIME, "manager_agent_id": "agent-7"}), "its manager agent-7 is not in the file"),
        (pair(agent_ids=[]), "groups[0]: a group needs at least one agent"),
        (pair(agent_ids=["agent-0"]), "groups[0]: the agent that manages a group is not one of its members"),
        (pair(manager_config={"manager_type": "sleeptime"}), "groups[0]: a group of the kind sleeptime needs"),
        (pair(manager_config={**SLEEPTIME, "sleeptime_agent_frequency": 0}), "sleeptime_agent_frequency"),
        (pair(id="crew"), "groups[0]: its id must look like group-0"),
        (pair(agent_ids="agent-1"), "groups[0]: agent_ids"),
        (
            pair() | {"groups": [*pair()["groups"], *pair(id="group-1")["groups"]]},
            "groups[1]: another group of the file looks after the same agent",
        ),
        (
            pair()
            | {
                "groups": [
                    *pair()["groups"],
                    *pair(
                        id="group-1",
                        agent_ids=["agent-0"],
                        manager_config={"manager_type": "sleeptime", "manager_agent_id": "agent-1"},
                    )["groups"],
                ]
            },
            "the agent that it looks after looks after another one itself",
        ),
        (with_file(source_id="source-7"), "files[0] 'a.txt': its folder source-7 is not in the file"),
        (with_file(file_name=None), "files[0]: it has no name"),
        (with_file(file_name="manuals/" + "a" * 600), "its name has 600 characters"),
        (with_file(content=["text"]), "files[0] 'a.txt': content"),
        (with_file(content="a\x00b"), "NUL"),
        (old.file(old.agent(source_ids=["source-0"])), "agents[0] 'harbour': its folder source-0 is not in the file"),
        (old.file(old.agent(files_agents=[{"file_id": "file-3"}])), "its file file-3 is not in the file"),
        (old.file(old.agent(), sources=[{"id": "source-0", "name": ""}]), "sources[0]: name"),
        (old.file(old.agent(), sources=[{"id": "source-0", "name": "a", "embedding_chunk_size": 1}]), "chunk_size"),
        (with_server(server_type="telex"), "mcp_servers[0] 'tides': server_type"),
        (with_server(server_url=None), "mcp_servers[0] 'tides': a server of type sse needs its `server_url`"),
        (with_server(server_type="stdio"), "needs its command in `stdio_config`"),
        (with_server(server_name=""), "mcp_servers[0]: server_name"),
        (with_server(access={"custom_headers": {"a b": "c"}}), "mcp_servers[0] 'tides': access.custom_headers"),
        (with_identity(agent_ids=["agent-7"]), "identities[0] 'Ada': its agent agent-7 is not in the file"),
        (with_identity(block_ids=["block-7"]), "identities[0] 'Ada': its block block-7 is not in the file"),
        (with_identity(identity_type="cat"), "identities[0] 'Ada': identity_type"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_section_is_named_and_nothing_is_left_behind(
    tmp_path: Path, content: Any, sentence: str
) -> None:
    async with served(tmp_path) as client:
        watched = Served(client.deps, client.http, client)
        before = await counts(watched)
        answer = await post(client, content)
        assert answer.status_code == 400, answer.text
        assert sentence in answer.json()["detail"]
        assert await counts(watched) == before


async def test_a_fault_in_the_last_section_undoes_all_the_others(client: ServedClient) -> None:
    """The blocks that a group shares collide with one that its agent has: only the database finds that."""
    content = old.file(
        old.agent(block_ids=["block-0"], source_ids=["source-0"]),
        old.agent(number=1, name="mate"),
        blocks=[old.block(0), old.block(1)],
        groups=[{**pair()["groups"][0], "shared_block_ids": ["block-1"]}],
        sources=[{"id": "source-0", "name": "manuals"}],
        files=[{"id": "file-0", "source_id": "source-0", "file_name": "a.txt", "content": "text"}],
        mcp_servers=with_server(server_url="http://127.0.0.1:9/")["mcp_servers"],
        identities=with_identity()["identities"],
    )
    watched = Served(client.deps, client.http, client)
    before = await counts(watched)
    answer = await post(client, content)
    assert answer.status_code == 400, answer.text
    assert answer.json()["detail"].startswith("groups[0]: The agent")
    assert await counts(watched) == before
    content["groups"] = []
    await imported(client, content)

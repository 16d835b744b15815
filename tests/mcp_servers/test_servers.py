"""MCP servers by id: what is kept of them, what is shown, what a refresh changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from letta_client.types import StreamableHTTPMcpServer

from holdfast import ids
from tests.api.test_providers import bytes_below
from tests.served import ServedClient, served

from .asking import SERVERS, add, over_http, refresh, run, tools_of
from .conftest import LOOPBACK
from .servers import Kind, Tools, served_mcp, server_of

TOKEN = "a-token-of-mine"
MASK = "********"
OFFERED = ["add", "book", "wait", "fail", "photograph", "nothing"]
NOBODY = "http://127.0.0.1:9/mcp"


async def test_the_unmodified_client_keeps_a_server_and_runs_its_tools(client: ServedClient, url: str) -> None:
    created = await client.mcp_servers.create(
        server_name="harbour", config={"mcp_server_type": "streamable_http", "server_url": url}
    )
    assert isinstance(created, StreamableHTTPMcpServer)
    assert created.id is not None
    assert ids.is_id("mcp_server", created.id)
    assert await client.mcp_servers.retrieve(created.id) == created
    assert await client.mcp_servers.list() == [created]
    listed = await client.mcp_servers.tools.list(created.id)
    assert [tool.name for tool in listed] == OFFERED
    assert {(tool.tool_type, tuple(tool.tags or ())) for tool in listed} == {("external_mcp", ("mcp:harbour",))}
    one = await client.mcp_servers.tools.retrieve(listed[0].id or "", mcp_server_id=created.id)
    assert one == listed[0]
    result = await client.mcp_servers.tools.run(one.id or "", mcp_server_id=created.id, args={"a": 1, "b": 2})
    assert (result.status, result.func_return) == ("success", "3")
    renamed = await client.mcp_servers.update(
        created.id, server_name="port", config={"mcp_server_type": "streamable_http", "server_url": url}
    )
    assert renamed.server_name == "port"
    assert await client.mcp_servers.refresh(created.id) == {"deleted": [], "updated": [], "added": []}
    await client.mcp_servers.delete(created.id)
    assert await client.mcp_servers.list() == []


@pytest.mark.parametrize("kind", ["sse", "streamable_http"])
async def test_both_http_transports_list_and_call(on_sqlite: ServedClient, tools: Tools, kind: Kind) -> None:
    async with served_mcp(server_of(tools), kind) as url:
        server = await add(on_sqlite, url, mcp_server_type=kind)
        assert server["sync_error"] is None
        listed = await tools_of(on_sqlite, server)
        assert list(listed) == OFFERED
        assert (await run(on_sqlite, server, listed["add"], a=2, b=3))["func_return"] == "5"
        failed = await run(on_sqlite, server, listed["fail"])
        assert (failed["status"], failed["func_return"]) == ("error", None)
        assert "fail" in failed["stderr"][0]
        pictured = await run(on_sqlite, server, listed["photograph"])
        assert [part["type"] for part in pictured["func_return"]] == ["text", "image"]
        assert (await run(on_sqlite, server, listed["nothing"]))["func_return"] == "Empty response from tool"


async def test_a_server_that_cannot_be_reached_is_kept_and_says_why_it_has_no_tools(client: ServedClient) -> None:
    server = await add(client, NOBODY)
    assert "could not be talked to" in server["sync_error"]
    assert server["last_synced_at"] is None
    assert await tools_of(client, server) == {}
    detail = await client.refusal(404, "PATCH", f"{SERVERS}{server['id']}/refresh")
    assert (detail["code"], detail["mcp_server_name"]) == ("MCPServerUnavailable", "harbour")


async def test_a_name_belongs_to_one_server(client: ServedClient) -> None:
    await add(client, NOBODY)
    other = await add(client, NOBODY, "other")
    body = {"server_name": "harbour", "config": over_http(NOBODY)}
    assert "harbour" in await client.refusal(409, "POST", SERVERS, body)
    assert "harbour" in await client.refusal(409, "PATCH", SERVERS + other["id"], body)


async def test_a_tool_keeps_its_id_when_it_is_synced_again_and_when_it_comes_back(
    client: ServedClient, tools: Tools
) -> None:
    server_program = server_of(tools)
    async with served_mcp(server_program) as url:
        server = await add(client, url)
        before = await tools_of(client, server)
        agent = await client.agent(tool_ids=[before["book"]["id"], before["add"]["id"]])
        await client.ask("PATCH", f"/v1/tools/{before['add']['id']}", {"return_char_limit": 77})

        def book(berth: str, ship: str) -> str:
            """Books a berth for a ship."""
            return f"{berth} {ship}"

        def sink(ship: str) -> str:
            return ship

        server_program.remove_tool("book")
        server_program.add_tool(book)
        server_program.remove_tool("fail")
        server_program.add_tool(sink)
        assert await refresh(client, server) == {"deleted": ["fail"], "updated": ["book"], "added": ["sink"]}
        after = await tools_of(client, server)
        assert {name: tool["id"] for name, tool in after.items() if name in before} == {
            name: tool["id"] for name, tool in before.items() if name != "fail"
        }
        assert list(after["book"]["json_schema"]["parameters"]["properties"]) == ["berth", "ship"]
        assert after["add"]["return_char_limit"] == 77
        attached = [tool.id for tool in [tool async for tool in client.agents.tools.list(agent.id)]]
        assert set(attached) == {before["book"]["id"], before["add"]["id"]}

        def fail() -> str:
            return "not any more"

        server_program.add_tool(fail)
        assert (await refresh(client, server))["added"] == ["fail"]
        assert (await tools_of(client, server))["fail"]["id"] == before["fail"]["id"]


async def test_two_servers_with_one_tool_name_do_not_take_it_from_each_other(
    client: ServedClient, url: str, tools: Tools
) -> None:
    other_tools = Tools()
    async with served_mcp(server_of(other_tools)) as other_url:
        first, second = await add(client, url), await add(client, other_url, "the other: one")
        first_tools, second_tools = await tools_of(client, first), await tools_of(client, second)
        assert first_tools["add"]["name"] == "add"
        assert second_tools["add"]["name"] == "the_other__one__add"
        assert second_tools["add"]["json_schema"]["name"] == "the_other__one__add"
        await run(client, second, second_tools["add"], a=1, b=1)
        assert (tools.calls, other_tools.calls) == ([], [("add", {"a": 1, "b": 1})])
        assert await refresh(client, second) == {"deleted": [], "updated": [], "added": []}
        # Neither does a server take the name of a tool that ships with this one, or that a user wrote.
        missing = f"{SERVERS}{first['id']}/tools/{second_tools['add']['id']}"
        assert "not one of" in await client.refusal(404, "GET", missing)
        assert "not one of" in await client.refusal(404, "POST", f"{missing}/run", {"args": {}})


async def test_a_server_can_be_renamed_and_its_tools_work_on(client: ServedClient, url: str) -> None:
    server = await add(client, url)
    before = await tools_of(client, server)
    await client.ask("PATCH", SERVERS + server["id"], {"server_name": "a: b", "config": over_http(url)})
    after = await tools_of(client, server)
    assert after["add"]["id"] == before["add"]["id"]
    assert after["add"]["tags"] == ["mcp:a: b"]
    assert after["add"]["metadata_"]["mcp"]["server_name"] == "a: b"
    assert (await run(client, server, after["add"], a=1, b=1))["func_return"] == "2"


async def test_a_deleted_server_takes_its_tools_with_it(client: ServedClient, url: str) -> None:
    server = await add(client, url)
    listed = await tools_of(client, server)
    agent = await client.agent(tool_ids=[listed["add"]["id"]])
    deleted = await client.http.delete(SERVERS + server["id"])
    assert (deleted.status_code, deleted.content) == (204, b"")
    for method, path in (("GET", ""), ("DELETE", ""), ("PATCH", "/refresh"), ("GET", "/tools")):
        assert "not found" in await client.refusal(404, method, SERVERS + server["id"] + path)
    assert "not found" in await client.refusal(404, "GET", f"/v1/tools/{listed['add']['id']}")
    assert [tool async for tool in client.agents.tools.list(agent.id)] == []
    again = await add(client, url)
    assert again["id"] != server["id"]
    assert (await tools_of(client, again))["add"]["id"] != listed["add"]["id"]


async def test_secrets_are_masked_and_what_was_read_can_be_sent_back(
    client: ServedClient, url: str, tools: Tools
) -> None:
    secrets: dict[str, Any] = {
        "auth_token": f"Bearer {TOKEN}",
        "custom_headers": {"X-Key": "another-secret", "X-Of": "{{ KEY }}"},
    }
    server = await add(client, url, **secrets)
    assert (server["auth_header"], server["auth_token"]) == ("Authorization", MASK)
    assert server["custom_headers"] == {"X-Key": MASK, "X-Of": "{{ KEY }}"}
    names = ("mcp_server_type", "server_url", "auth_header", "auth_token", "custom_headers")
    read = {name: server[name] for name in names}
    updated = await client.ask("PATCH", SERVERS + server["id"], {"config": read})
    assert {name: updated[name] for name in names} == read
    listed = await tools_of(client, server)
    await run(client, server, listed["add"], a=1, b=1)
    assert tools.headers[-1]["authorization"] == f"Bearer {TOKEN}"
    assert tools.headers[-1]["x-key"] == "another-secret"
    one_less = {**read, "custom_headers": {"X-Key": MASK}, "auth_token": None}
    updated = await client.ask("PATCH", SERVERS + server["id"], {"config": one_less})
    assert (updated["auth_token"], updated["custom_headers"]) == (None, {"X-Key": MASK})
    await run(client, server, listed["add"], a=1, b=1)
    assert "authorization" not in tools.headers[-1]
    assert (tools.headers[-1]["x-key"], tools.headers[-1].get("x-of")) == ("another-secret", None)


async def test_a_token_of_another_header_is_sent_as_it_is(on_sqlite: ServedClient, url: str, tools: Tools) -> None:
    server = await add(on_sqlite, url, auth_header="X-Api-Key", auth_token="Bearer of news")
    listed = await tools_of(on_sqlite, server)
    await run(on_sqlite, server, listed["add"], a=1, b=1)
    assert tools.headers[-1]["x-api-key"] == "Bearer of news"
    assert (server["auth_header"], server["auth_token"]) == ("X-Api-Key", MASK)


async def test_a_kept_secret_is_not_sent_to_a_new_address(on_sqlite: ServedClient, url: str) -> None:
    server = await add(on_sqlite, url, auth_token=TOKEN)
    path, elsewhere = SERVERS + server["id"], "http://127.0.0.1:9/mcp"
    for kept in ({}, {"auth_token": MASK}):
        refused = await on_sqlite.refusal(400, "PATCH", path, {"config": over_http(elsewhere, **kept)})
        assert "auth_token" in refused
    assert (await on_sqlite.ask("GET", path))["server_url"] == url
    moved = await on_sqlite.ask("PATCH", path, {"config": over_http(elsewhere, auth_token="given again")})
    assert (moved["server_url"], moved["auth_token"]) == (elsewhere, MASK)


async def test_secrets_are_not_stored_as_they_are(tmp_path: Path) -> None:
    async with served(tmp_path, allowed_hosts=LOOPBACK, mcp_stdio=True) as client:
        await add(client, NOBODY, auth_token=TOKEN, custom_headers={"X": "another-secret"})
        stdio: dict[str, Any] = {
            "mcp_server_type": "stdio",
            "command": "false",
            "args": [],
            "env": {"KEY": "a-third-secret"},
        }
        shown = await client.ask("POST", SERVERS, {"server_name": "p", "config": stdio})
        assert shown["env"] == {"KEY": MASK}
    stored = bytes_below(tmp_path)
    assert b"mcp_server-" in stored
    for secret in (TOKEN, "another-secret", "a-third-secret"):
        assert secret.encode() not in stored


@pytest.mark.parametrize(
    "config",
    [
        {"mcp_server_type": "carrier-pigeon", "server_url": NOBODY},
        {"mcp_server_type": "sse"},
        over_http("ftp://example.org/mcp"),
        over_http("not a url"),
        over_http("http://user:password@example.org/mcp"),
        over_http(NOBODY, auth_token="two\nlines"),
        over_http(NOBODY, custom_headers={"Host": "example.org"}),
        over_http(NOBODY, custom_headers={"no header": "x"}),
        over_http(NOBODY, custom_headers={"X": MASK}),
        over_http(NOBODY, auth_token=MASK),
        over_http(NOBODY, unknown="field"),
    ],
)
async def test_what_cannot_be_a_server_is_refused(on_sqlite: ServedClient, config: dict[str, Any]) -> None:
    assert await on_sqlite.refusal(422, "POST", SERVERS, {"server_name": "x", "config": config})
    assert await on_sqlite.ask("GET", SERVERS) == []


async def test_a_change_says_of_which_type_the_server_is(on_sqlite: ServedClient) -> None:
    server = await add(on_sqlite, NOBODY, mcp_server_type="sse")
    for config in ({}, {"server_url": NOBODY}, {"mcp_server_type": "stdio"}, 5):
        answer = await on_sqlite.http.patch(SERVERS + server["id"], json={"config": config})
        assert answer.status_code in (400, 422), answer.text
    assert (await on_sqlite.ask("GET", SERVERS + server["id"])) == server
    changed = await on_sqlite.ask("PATCH", SERVERS + server["id"], {"config": over_http(NOBODY)})
    assert changed["mcp_server_type"] == "streamable_http"


async def test_a_refresh_for_an_agent_that_is_not_there_is_refused(on_sqlite: ServedClient, url: str) -> None:
    server = await add(on_sqlite, url)
    path = f"{SERVERS}{server['id']}/refresh"
    assert "Agent not found" in await on_sqlite.refusal(404, "PATCH", path, agent_id=ids.new("agent"))


async def test_a_tool_of_a_server_is_not_changed_behind_its_back(on_sqlite: ServedClient, url: str) -> None:
    server = await add(on_sqlite, url)
    tool = (await tools_of(on_sqlite, server))["book"]
    source = (
        'def book(berth: str) -> str:\n    """Books.\n\n    Args:\n        berth: where\n    """\n    return berth\n'
    )
    assert "MCP server" in await on_sqlite.refusal(400, "PUT", "/v1/tools/", {"source_code": source})
    changed: dict[str, Any] = {"json_schema": {"name": "book", "parameters": {"type": "object", "properties": {}}}}
    assert "described by its MCP server" in await on_sqlite.refusal(400, "PATCH", f"/v1/tools/{tool['id']}", changed)
    tuned = await on_sqlite.ask("PATCH", f"/v1/tools/{tool['id']}", {"default_requires_approval": True})
    assert tuned["default_requires_approval"] is True


def test_without_the_sdk_a_sentence_says_what_to_install() -> None:
    """In a process of its own: in this one it is loaded."""
    program = """
import sys
sys.modules["mcp"] = None
from holdfast.engine.mcp_servers import McpServers
from holdfast.ssrf_guard import Guard
from holdfast.tools.mcp.values import Limits
try:
    McpServers(None, None, None, Guard(), Limits(), stdio=False, redirect_uri="")._load()
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.startswith("Unsupported ")
    assert "pip install 'holdfast[mcp]'" in told.stdout

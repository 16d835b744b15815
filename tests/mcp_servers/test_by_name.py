"""MCP servers by name, as clients before 1.0 know them."""

from __future__ import annotations

from holdfast import ids
from tests.served import ServedClient

from .asking import SERVERS, Json, add
from .servers import Tools

NAMED = "/v1/tools/mcp/servers"
NOBODY = "http://127.0.0.1:9/mcp"


def config(url: str, name: str = "harbour", **fields: object) -> Json:
    return {"server_name": name, "type": "streamable_http", "server_url": url, **fields}


async def test_servers_are_added_listed_changed_and_deleted_by_name(client: ServedClient, url: str) -> None:
    assert await client.ask("GET", NAMED) == {}
    listed = await client.ask("PUT", NAMED, config(url, auth_header="Authorization", auth_token="secret"))
    shown = {**config(url), "auth_header": "Authorization", "auth_token": "********", "custom_headers": None}
    assert listed == [shown]
    assert await client.ask("GET", NAMED) == {"harbour": shown}
    assert "harbour" in await client.refusal(409, "PUT", NAMED, config(url))
    changed = await client.ask("PATCH", f"{NAMED}/harbour", {"token": None, "custom_headers": {"X": "1"}})
    assert (changed["auth_token"], changed["custom_headers"]) == (None, {"X": "********"})
    assert await client.ask("DELETE", f"{NAMED}/harbour") == []
    for method, path in (("PATCH", ""), ("DELETE", ""), ("GET", "/tools"), ("POST", "/resync"), ("POST", "/add")):
        body: Json | None = None if method == "GET" else {}
        assert "not found" in await client.refusal(404, method, f"{NAMED}/harbour{path}", body)


async def test_its_tools_are_listed_live_and_one_can_be_registered(
    client: ServedClient, url: str, tools: Tools
) -> None:
    await client.ask("PUT", NAMED, config(url))
    live = {tool["name"]: tool for tool in await client.ask("GET", f"{NAMED}/harbour/tools")}
    assert live["add"]["health"] == {"status": "STRICT_COMPLIANT", "reasons": []}
    assert live["book"]["health"]["status"] == "NON_STRICT_ONLY"
    assert live["add"]["inputSchema"]["required"] == ["a", "b"]
    registered = await client.ask("POST", f"{NAMED}/harbour/add")
    assert (registered["name"], registered["tool_type"], registered["tags"]) == ("add", "external_mcp", ["mcp:harbour"])
    assert await client.ask("POST", f"{NAMED}/harbour/add") == registered
    assert "no tool" in await client.refusal(404, "POST", f"{NAMED}/harbour/subtract")
    done = await client.ask("POST", f"{NAMED}/harbour/tools/add/execute", {"args": {"a": 4, "b": 5}})
    assert done == {"result": "9", "success": True}
    failed = await client.ask("POST", f"{NAMED}/harbour/tools/fail/execute", {"args": {}})
    assert failed["success"] is False
    assert await client.ask("POST", f"{NAMED}/harbour/resync") == {"deleted": [], "updated": [], "added": []}


async def test_live_tools_of_a_server_that_is_not_there_are_a_502(on_sqlite: ServedClient) -> None:
    await on_sqlite.ask("PUT", NAMED, config(NOBODY))
    for method, path in (("GET", f"{NAMED}/harbour/tools"), ("POST", f"{NAMED}/harbour/tools/add/execute")):
        answer = await on_sqlite.http.request(method, path)
        assert answer.status_code == 502
        assert answer.json()["error"]["type"] == "mcp_connection_error"
        assert answer.headers["x-should-retry"] == "false"


async def test_a_configuration_can_be_tried_without_being_stored(on_sqlite: ServedClient, url: str) -> None:
    tried = await on_sqlite.ask("POST", f"{NAMED}/test", config(url))
    assert tried["status"] == "success"
    assert "add" in [tool["name"] for tool in tried["tools"]]
    assert (await on_sqlite.http.post(f"{NAMED}/test", json=config(NOBODY))).status_code == 502
    assert await on_sqlite.refusal(422, "POST", f"{NAMED}/test", {"server_name": "x", "type": "sse"})
    assert await on_sqlite.ask("GET", NAMED) == {}


async def test_a_connection_is_told_as_events(on_sqlite: ServedClient, url: str) -> None:
    told = await on_sqlite.events(f"{NAMED}/connect", config(url))
    assert [event["event"] for event in told if isinstance(event, dict)] == ["connection_attempt", "success"]
    told = await on_sqlite.events(f"{NAMED}/connect", config(NOBODY))
    assert [event["event"] for event in told if isinstance(event, dict)] == ["connection_attempt", "error"]
    assert await on_sqlite.ask("GET", NAMED) == {}


async def test_a_server_is_the_same_by_id_and_by_name(on_sqlite: ServedClient, url: str) -> None:
    server = await add(on_sqlite, url)
    assert list(await on_sqlite.ask("GET", NAMED)) == ["harbour"]
    registered = await on_sqlite.ask("POST", f"{NAMED}/harbour/add")
    by_id = await on_sqlite.ask("GET", f"{SERVERS}{server['id']}/tools/{registered['id']}")
    assert by_id == registered
    assert ids.is_id("tool", registered["id"])

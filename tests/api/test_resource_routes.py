"""Folders, groups, identities and MCP servers, all their routes alike: answers have the shapes of the old server
(`shapes-0.16.8.json`), ids of another kind are told from unknown ones, and lists can be walked while they grow."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from holdfast import ids
from holdfast.api.server import ROUTERS
from tests.api.test_folders import ingest
from tests.mcp_servers.servers import Tools, served_mcp, server_of
from tests.served import ServedClient
from tests.served import served as whole_server

from .resources import Served, serving

SHAPES: dict[str, Any] = json.loads((Path(__file__).parent / "shapes-0.16.8.json").read_text())
# Without what forbids further fields: those are counted by hand.
OPEN = {
    name: {key: value for key, value in shape.items() if key != "additionalProperties"}
    for name, shape in SHAPES.items()
}
PREFIXES = ("/v1/folders", "/v1/sources", "/v1/groups", "/v1/identities", "/v1/mcp-servers")
OF_AGENTS = re.compile(r"/v1/agents/\{agent_id\}/(folders|sources|files|identities|groups|export)\b")
KINDS = {
    "agent_id": "agent",
    "block_id": "block",
    "file_id": "file",
    "folder_id": "source",
    "source_id": "source",
    "group_id": "group",
    "identity_id": "identity",
    "mcp_server_id": "mcp_server",
    "message_id": "message",
    "tool_id": "tool",
}
# Bodies without which a request would be refused for another reason.
BODIES: dict[str, Any] = {
    "PUT /v1/identities/{identity_id}/properties": [],
    "PATCH /v1/mcp-servers/{mcp_server_id}": {"config": {"mcp_server_type": "sse"}},
    "POST /v1/groups/{group_id}/messages": {"input": "Hello"},
    "POST /v1/groups/{group_id}/messages/stream": {"input": "Hello"},
    "PATCH /v1/groups/{group_id}/messages/{message_id}": {"message_type": "user_message", "content": "Hello"},
}
# The old server did not look at the form of ids there.
OF_ANY_FORM = "/v1/mcp-servers/"
# Refused whatever the ids are: these are no operations of this server.
REFUSED = {501}


def routes() -> list[str]:
    found = {
        f"{method} {route.path}"
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route) and (route.path.startswith(PREFIXES) or OF_AGENTS.match(route.path))
        for method in route.methods or ()
        if method != "HEAD"
    }
    return sorted(found)


WITH_IDS = [name for name in routes() if "_id}" in name]


async def answered(served: Served, name: str, **values: str) -> tuple[int, Any]:
    method, path = name.split(" ")
    body = BODIES.get(name, {} if method in ("POST", "PATCH", "PUT") else None)
    upload = {"file": ("a.txt", b"text")} if path.endswith("/upload") else None
    sent: dict[str, Any] = {"files": upload} if upload else {"json": body}
    answer = await served.http.request(method, path.format(**values), **sent)
    return answer.status_code, answer.json() if answer.content else None


@pytest.fixture
async def on_sqlite(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """For what does not depend on the database."""
    async with serving(sqlite_url, tmp_path) as opened:
        yield opened


async def test_ids_of_another_kind_are_unprocessable_and_unknown_ones_not_found(on_sqlite: Served) -> None:
    wrong: dict[str, Any] = {}
    for name in WITH_IDS:
        parameters = re.findall(r"\{(\w+_id)\}", name)
        unknown = {parameter: ids.new(KINDS[parameter]) for parameter in parameters}
        status, told = await answered(on_sqlite, name, **unknown)
        if status != 404 and status not in REFUSED:
            wrong[f"unknown: {name}"] = status, told
        for parameter in parameters if status not in REFUSED else ():
            for other in ("run", "7"):
                status, told = await answered(on_sqlite, name, **unknown | {parameter: ids.new(other)})
                refusals = (404,) if OF_ANY_FORM in name else (400, 422)
                if status not in refusals or not told["detail"]:
                    wrong[f"{parameter} of another kind: {name}"] = status, told
    assert wrong == {}


async def test_a_record_is_not_found_through_another_that_it_does_not_belong_to(served: Served) -> None:
    first, second = [await served.ok("POST", "/v1/folders/", {"name": name}) for name in ("first", "second")]
    upload = await served.http.post(f"/v1/folders/{first['id']}/upload", files={"file": ("a.txt", b"text")})
    file = upload.json()["id"]
    agent = await served.create(folder_ids=[second["id"]])
    await served.refused(404, "GET", f"/v1/folders/{second['id']}/files/{file}")
    await served.refused(404, "DELETE", f"/v1/folders/{second['id']}/{file}")
    await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/files/{file}/open")
    other = await served.create(name="other")
    body = {"agent_ids": [other["id"]], "description": ""}
    group = await served.ok("POST", "/v1/groups/", body)
    assert await served.ok("GET", f"/v1/agents/{agent['id']}/groups") == []
    block = await served.create_block()
    await served.refused(404, "PATCH", f"/v1/groups/{group['id']}/blocks/detach/{block['id']}")


# --- shapes ----------------------------------------------------------------------------------------------------------


# Fields that only this server has.
OURS: dict[str, set[str]] = {
    "Folder": {"vector_db_provider"},  # of a source, which is the same record
    "GroupSchema": {"enable_sleeptime"},
    "ImportedAgentsResponse": {"repairs", "warnings"},
    "MCPServerSchema": {"access"},
    "SSEMCPServer": {"last_synced_at", "sync_error", "skipped_tools"},
    "StdioMCPServer": {"last_synced_at", "sync_error", "skipped_tools"},
    "StreamableHTTPMCPServer": {"last_synced_at", "sync_error", "skipped_tools"},
}


def check(shape: str, value: Any, *, many: bool = False) -> None:
    """Every field that the old server answers with is there, and of its type; others are known."""
    one = {"$ref": f"#/$defs/{shape}"}
    validator: Any = Draft202012Validator({**({"type": "array", "items": one} if many else one), "$defs": OPEN})
    problems = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(value)]
    assert problems == []
    fields = SHAPES[shape]["properties"].keys()
    for each in value if many else [value]:
        assert fields - each.keys() == set(), "some are missing"
        assert each.keys() - fields - OURS.get(shape, set()) == set(), "some are new"
    assert not many or value, "an empty list shows nothing"


async def test_folders_and_files_have_the_shapes_of_the_old_server(served: Served) -> None:
    folder = await served.ok("POST", "/v1/folders/", {"name": "docs", "embedding": "acme/vectors"})
    path = f"/v1/folders/{folder['id']}"
    file = (await served.http.post(f"{path}/upload", files={"file": ("a.txt", b"tea\n" * 50)})).json()
    check("FileMetadata", file)
    await ingest(served)
    agent = await served.create(folder_ids=[folder["id"]])
    check("Folder", folder)
    check("Folder", await served.ok("GET", path))
    check("Folder", await served.ok("PATCH", path, {"description": "Notes"}))
    check("Folder", await served.ok("GET", "/v1/folders/"), many=True)
    check("Source", await served.ok("GET", "/v1/sources/"), many=True)
    check("Source", await served.ok("GET", f"/v1/agents/{agent['id']}/folders"), many=True)
    check("FileMetadata", await served.ok("GET", f"{path}/files"), many=True)
    check("FileMetadata", await served.ok("GET", f"{path}/files/{file['id']}"))
    check("Passage", await served.ok("GET", f"{path}/passages"), many=True)
    check("OrganizationSourcesStats", await served.ok("GET", "/v1/folders/metadata", include_detailed_per_source_metadata=True))  # fmt: skip  # noqa: E501
    page = await served.ok("GET", f"/v1/agents/{agent['id']}/files")
    check("PaginatedAgentFiles", page)
    check("AgentFileAttachment", page["files"], many=True)
    assert await served.ok("GET", "/v1/folders/count") == 1
    assert await served.ok("GET", "/v1/folders/name/docs") == folder["id"]
    assert await served.ok("GET", f"{path}/agents") == [agent["id"]]
    assert await served.ok("PATCH", f"/v1/agents/{agent['id']}/files/{file['id']}/open") == []
    assert await served.ok("PATCH", f"/v1/agents/{agent['id']}/files/close-all") == ["docs/a.txt"]


async def test_groups_and_identities_have_the_shapes_of_the_old_server(served: Served) -> None:
    agents = [await served.create(name=name) for name in ("a", "b")]
    config = {"manager_type": "supervisor", "manager_agent_id": agents[1]["id"]}
    body = {"agent_ids": [agents[0]["id"]], "description": "Crew", "manager_config": config}
    group = await served.ok("POST", "/v1/groups/", body)
    for shown in (group, await served.ok("GET", f"/v1/groups/{group['id']}")):
        check("Group", shown)
    check("Group", await served.ok("PATCH", f"/v1/groups/{group['id']}", {"description": "The crew"}))
    check("Group", await served.ok("GET", "/v1/groups/"), many=True)
    check("Group", await served.ok("GET", f"/v1/agents/{agents[0]['id']}/groups"), many=True)
    assert await served.ok("GET", "/v1/groups/count") == 1
    properties = [{"key": "plan", "value": "gold", "type": "string"}]
    body = {"identifier_key": "k", "name": "Ada", "identity_type": "user", "properties": properties}
    identity = await served.ok("POST", "/v1/identities/", body)
    check("Identity", identity)
    check("Identity", await served.ok("PUT", "/v1/identities/", body))
    check("Identity", await served.ok("PATCH", f"/v1/identities/{identity['id']}", {"name": "Ada L."}))
    check("Identity", await served.ok("GET", f"/v1/identities/{identity['id']}"))
    check("Identity", await served.ok("GET", "/v1/identities/"), many=True)


@pytest.mark.slow
async def test_mcp_servers_and_their_tools_have_the_shapes_of_the_old_server(tmp_path: Path) -> None:
    async with (
        served_mcp(server_of(Tools())) as url,
        whole_server(tmp_path, allowed_hosts=("127.0.0.1",), mcp_stdio=True) as client,
    ):
        http = {"mcp_server_type": "streamable_http", "server_url": url}
        server = await _add(client, "harbour", http)
        check("StreamableHTTPMCPServer", server)
        check(
            "SSEMCPServer", await _add(client, "tides", {"mcp_server_type": "sse", "server_url": "http://127.0.0.1:9/"})
        )
        check("StdioMCPServer", await _add(client, "local", {"mcp_server_type": "stdio", "command": "/nowhere"}))
        path = f"/v1/mcp-servers/{server['id']}"
        check("StreamableHTTPMCPServer", await client.ask("GET", path))
        check("StreamableHTTPMCPServer", await client.ask("PATCH", path, {"config": http}))
        tools = await client.ask("GET", f"{path}/tools")
        check("Tool", tools, many=True)
        add = next(tool for tool in tools if tool["name"] == "add")
        check("Tool", await client.ask("GET", f"{path}/tools/{add['id']}"))
        ran = await client.ask("POST", f"{path}/tools/{add['id']}/run", {"args": {"a": 1, "b": 2}})
        check("ToolExecutionResult", ran)
        changed = await client.ask("PATCH", f"{path}/refresh")
        assert changed.keys() == {"deleted", "updated", "added"}


async def _add(client: ServedClient, name: str, config: dict[str, Any]) -> dict[str, Any]:
    return await client.ask("POST", "/v1/mcp-servers/", {"server_name": name, "config": config})


async def test_agent_files_have_the_shape_of_the_format(tmp_path: Path) -> None:
    async with (
        served_mcp(server_of(Tools())) as url,
        whole_server(tmp_path, allowed_hosts=("127.0.0.1",)) as client,
    ):
        server = await _add(client, "harbour", {"mcp_server_type": "streamable_http", "server_url": url})
        tools = await client.ask("GET", f"/v1/mcp-servers/{server['id']}/tools")
        folder = await client.ask("POST", "/v1/folders/", {"name": "docs"})
        await client.http.post(f"/v1/folders/{folder['id']}/upload", files={"file": ("a.txt", b"tea")})
        fields = {"tool_ids": [tools[0]["id"]], "folder_ids": [folder["id"]], "enable_sleeptime": True}
        agent = await client.ask("POST", "/v1/agents/", {"memory_blocks": [{"label": "a", "value": "b"}], **fields})
        told = await client.ask("GET", f"/v1/agents/{agent['id']}/export")
        check("AgentFileSchema", told)
        assert told["agents"] and told["blocks"]
        check("GroupSchema", told["groups"], many=True)
        check("FileSchema", told["files"], many=True)
        check("SourceSchema", told["sources"], many=True)
        check("letta__schemas__agent_file__ToolSchema", told["tools"], many=True)
        check("MCPServerSchema", told["mcp_servers"], many=True)
        check("FileAgentSchema", told["agents"][0]["files_agents"], many=True)
        upload = {"file": ("a.af", json.dumps(told).encode())}
        check("ImportedAgentsResponse", (await client.http.post("/v1/agents/import", files=upload)).json())


# --- lists -----------------------------------------------------------------------------------------------------------

Make = Callable[[int], Awaitable[str]]


async def _passages(served: Served, folder_id: str) -> set[str]:
    return {one["id"] for one in await served.ok("GET", f"/v1/folders/{folder_id}/passages", limit=1_000)}


async def _list(served: Served, what: str) -> tuple[str, Make, str]:
    """The path of a list, how an item is added to it, and in which field of the answer its items are."""
    agent = await served.create(name="main", include_base_tools=False)
    folder = await served.ok("POST", "/v1/folders/", {"name": "docs"})
    identity = await served.ok(
        "POST", "/v1/identities/", {"identifier_key": "main", "name": "Ada", "identity_type": "user"}
    )

    async def a_folder(number: int) -> str:
        return (await served.ok("POST", "/v1/folders/", {"name": f"folder {number}"}))["id"]

    async def an_attached_folder(number: int) -> str:
        made = await a_folder(number)
        await served.ok("PATCH", f"/v1/agents/{agent['id']}/folders/attach/{made}")
        return made

    async def a_file(number: int) -> str:
        upload = {"file": (f"{number}.txt", b"text")}
        return (await served.http.post(f"/v1/folders/{folder['id']}/upload", files=upload)).json()["id"]

    async def a_passage(number: int) -> str:
        known = await _passages(served, folder["id"])
        await a_file(number)
        await ingest(served)
        [new] = await _passages(served, folder["id"]) - known
        return new

    async def a_group(number: int) -> str:
        body = {"agent_ids": [agent["id"]], "description": f"group {number}"}
        return (await served.ok("POST", "/v1/groups/", body))["id"]

    async def an_identity(number: int) -> str:
        body = {"identifier_key": f"key {number}", "name": "Ada", "identity_type": "user"}
        return (await served.ok("POST", "/v1/identities/", body))["id"]

    async def an_owned_agent(number: int) -> str:
        fields: dict[str, Any] = {"name": f"agent {number}", "include_base_tools": False}
        return (await served.create(**fields, identity_ids=[identity["id"]], folder_ids=[folder["id"]]))["id"]

    async def an_owned_block(number: int) -> str:
        block = (await served.create_block(f"block{number}"))["id"]
        await served.ok("PATCH", f"/v1/identities/{identity['id']}", {"block_ids": [block]})
        return block

    await served.ok("PATCH", f"/v1/agents/{agent['id']}/folders/attach/{folder['id']}")
    lists: dict[str, tuple[str, Make, str]] = {
        "folders": ("/v1/folders/", a_folder, "id"),
        "sources": ("/v1/sources/", a_folder, "id"),
        "files": (f"/v1/folders/{folder['id']}/files", a_file, "id"),
        "passages": (f"/v1/folders/{folder['id']}/passages", a_passage, "id"),
        "agents of a folder": (f"/v1/folders/{folder['id']}/agents", an_owned_agent, ""),
        "folders of an agent": (f"/v1/agents/{agent['id']}/folders", an_attached_folder, "id"),
        "files of an agent": (f"/v1/agents/{agent['id']}/files", a_file, "file_id"),
        "groups": ("/v1/groups/", a_group, "id"),
        "groups of an agent": (f"/v1/agents/{agent['id']}/groups", a_group, "id"),
        "identities": ("/v1/identities/", an_identity, "id"),
        "agents of an identity": (f"/v1/identities/{identity['id']}/agents", an_owned_agent, "id"),
        "blocks of an identity": (f"/v1/identities/{identity['id']}/blocks", an_owned_block, "id"),
    }
    return lists[what]


NAMES = (
    *("folders", "sources", "files", "passages", "agents of a folder", "folders of an agent", "files of an agent"),
    *("groups", "groups of an agent", "identities", "agents of an identity", "blocks of an identity"),
)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("what", NAMES)
async def test_a_list_yields_each_item_once_while_items_are_inserted(
    served: Served, what: str, limit: int, order: str
) -> None:
    if what == "sources":
        order = "asc"  # the retired name has no other
    path, make, key = await _list(served, what)
    there = [await make(number) for number in range(8)]
    met: list[str] = []
    cursor: dict[str, str] = {}
    number = 100
    while True:
        page = await served.ok("GET", path, limit=limit, order=order, **cursor)
        items: list[Any] = page["files"] if key == "file_id" else page
        assert len(items) <= limit
        if not items:
            break
        met += [item[key] if key else item for item in items]
        cursor = {"after": items[-1]["id"] if key else items[-1]}
        if number < 103:
            await make(number)
            number += 1
    assert len(set(met)) == len(met), "no item twice"
    walked = [item for item in met if item in there]
    assert walked == (there if order == "asc" else there[::-1]), "and none left out, in the order of their ages"


async def test_mcp_servers_are_listed_whole(served: Served) -> None:
    """Their list has no pages; each is in it once, the oldest first, whoever adds others meanwhile."""
    config = {"mcp_server_type": "streamable_http", "server_url": "http://192.0.2.1/{{ PATH }}"}
    made = await asyncio.gather(
        *(served.ok("POST", "/v1/mcp-servers/", {"server_name": f"s{number}", "config": config}) for number in range(5))
    )
    listed = [server["id"] for server in await served.ok("GET", "/v1/mcp-servers/")]
    assert sorted(listed) == sorted(server["id"] for server in made)

"""A server that hangs or talks nonsense costs its callers a bounded time, and nobody else anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.served import ServedClient, served

from .asking import SERVERS, add, refresh, run, tools_of
from .conftest import LOOPBACK
from .hostile import Answer, hostile, listing, polite, reply, result
from .servers import Tools, served_mcp, server_of

SHORT: dict[str, Any] = {
    "mcp_connect_timeout_s": 0.5,
    "mcp_list_timeout_s": 2.0,
    "mcp_call_timeout_s": 0.5,
    "mcp_answer_bytes": 200_000,
}
GOOD = {"name": "good", "inputSchema": {"type": "object", "properties": {"x": {"type": "string"}}}}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, allowed_hosts=LOOPBACK, **SHORT) as opened:
        yield opened


def silent(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    pass


def silent_once_connected(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    polite(asked, writer)


def nonsense(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    reply(writer, b"\xff\x00 this is not JSON")


def failing(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    reply(writer, b"no", "500 Internal Server Error")


def nonsense_for_tools(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if not polite(asked, writer):
        reply(writer, b'{"jsonrpc": "2.0", "id": {}, "result": 5}')


def tools_of_no_kind(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if not polite(asked, writer):
        result(writer, asked, {"tools": "none of your business"})


def hangs_up(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.close()


def endless(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if not polite(asked, writer):
        result(writer, asked, {"tools": [], "nextCursor": "more"})


def too_long(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    if not polite(asked, writer):
        result(writer, asked, {"tools": [{**GOOD, "description": "x" * 300_000}]})


@pytest.mark.parametrize(
    ("answer", "because"),
    [
        (silent, "did not connect within 0.5 seconds"),
        (silent_once_connected, "did not list its tools within 2 seconds"),
        (nonsense, "could not be talked to"),
        (failing, "it answered 500"),
        (nonsense_for_tools, ""),
        (tools_of_no_kind, "not what the protocol says"),
        (hangs_up, "could not be talked to"),
        (endless, "does not end"),
        (too_long, "larger than 200000 bytes"),
    ],
)
async def test_its_tools_are_not_listed_and_the_reason_is_told(
    client: ServedClient, answer: Answer, because: str
) -> None:
    async with hostile(answer) as server:
        began = asyncio.get_running_loop().time()
        kept = await add(client, server.url)
        took_s = asyncio.get_running_loop().time() - began
    assert kept["sync_error"]
    assert because in kept["sync_error"]
    assert took_s < 10
    assert await tools_of(client, kept) == {}


async def test_a_call_that_hangs_ends_with_its_time_and_others_go_on_meanwhile(client: ServedClient) -> None:
    tools = Tools()

    def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked.get("method") != "tools/call":
            listing([GOOD])(asked, writer)

    async with hostile(answer) as server, served_mcp(server_of(tools)) as url:
        hanging, healthy = await add(client, server.url, "hanging"), await add(client, url, "healthy")
        good = (await tools_of(client, hanging))["good"]
        call = asyncio.create_task(run(client, hanging, good))
        added = await run(client, healthy, (await tools_of(client, healthy))["add"], a=1, b=2)
        assert added["func_return"] == "3"
        told = await call
        assert told["status"] == "error"
        assert "did not answer within 0.5 seconds. Whether it was carried out is not known." in told["stderr"][0]
        assert server.asked[-1]["method"] == "tools/call"  # and it was not asked again
        assert sum(asked["method"] == "tools/call" for asked in server.asked) == 1


async def test_a_cancel_does_not_wait_for_a_server_that_hears_nothing(tmp_path: Path) -> None:
    called = asyncio.Event()

    def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked.get("method") == "tools/call":
            called.set()
        elif asked.get("method") != "notifications/cancelled":
            listing([GOOD])(asked, writer)

    async with hostile(answer) as server, served(tmp_path, allowed_hosts=LOOPBACK) as client:
        good = (await tools_of(client, await add(client, server.url)))["good"]
        agent = await client.agent(tool_ids=[good["id"]])
        asking = asyncio.create_task(client.say(agent.id, "[[call:good {}]] [[say:Done.]]"))
        await called.wait()
        began = asyncio.get_running_loop().time()
        await client.agents.messages.cancel(agent.id)
        assert (await asking).stop_reason.stop_reason == "cancelled"
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_tool_that_is_malformed_is_left_out_and_the_others_are_there(client: ServedClient) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"x": deep}}
    offered: list[Any] = [
        GOOD,
        "not a tool",
        {"inputSchema": {"type": "object"}},
        {"name": "no schema"},
        {"name": "a list", "inputSchema": {"type": "array"}},
        {"name": "odd properties", "inputSchema": {"type": "object", "properties": [1, 2]}},
        {"name": "odd requirements", "inputSchema": {"type": "object", "required": "x"}},
        {"name": "too deep", "inputSchema": deep},
        {"name": "too large", "inputSchema": {"type": "object", "description": "x" * 150_000, "title": "y" * 150_000}},
        {"name": "odd words", "description": 5, "annotations": "none", "inputSchema": {"type": "object"}},
    ]
    del offered[8]  # larger than what this server's answers may be; see tests/tools/test_mcp_schema.py
    async with hostile(listing(offered)) as server:
        kept = await add(client, server.url)
        assert kept["sync_error"] is None
        assert list(await tools_of(client, kept)) == ["good", "odd words"]
        assert list(kept["skipped_tools"]) == [
            "tool 2",
            "tool 3",
            "no schema",
            "a list",
            "odd properties",
            "odd requirements",
            "too deep",
        ]
        live = await client.ask("GET", "/v1/tools/mcp/servers/harbour/tools")
        health = {tool["name"]: tool["health"]["status"] for tool in live}
        assert (health["good"], health["a list"], health["no schema"]) == ("NON_STRICT_ONLY", "INVALID", "INVALID")


async def test_a_tool_whose_description_breaks_later_stays_as_it_was(client: ServedClient) -> None:
    offered: list[Any] = [GOOD]
    async with hostile(lambda asked, writer: listing(offered)(asked, writer)) as server:
        kept = await add(client, server.url)
        before = await tools_of(client, kept)
        offered[0] = {**GOOD, "inputSchema": {"type": "string"}}
        assert await refresh(client, kept) == {"deleted": [], "updated": [], "added": []}
        assert await tools_of(client, kept) == before
        shown = await client.ask("GET", SERVERS + kept["id"])
        assert "string" in shown["skipped_tools"]["good"]


async def test_a_server_cannot_have_thousands_of_tools(client: ServedClient) -> None:
    many = [{"name": f"t{number}", "inputSchema": {"type": "object"}} for number in range(1_001)]
    async with hostile(listing(many)) as server:
        kept = await add(client, server.url)
    assert "more than 1000 tools" in kept["sync_error"]


async def test_a_name_that_no_vendor_takes_is_spelt_so_that_they_do(client: ServedClient) -> None:
    asked_for: list[str] = []

    def answer(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked.get("method") == "tools/call":
            asked_for.append(asked["params"]["name"])
            result(writer, asked, {"content": [{"type": "text", "text": "done"}]})
        else:
            listing([{**GOOD, "name": "1/files.read it"}])(asked, writer)

    async with hostile(answer) as server:
        kept = await add(client, server.url)
        tool = (await tools_of(client, kept))["1/files.read it"]
        assert tool["name"] == "_1_files_read_it"
        assert (await run(client, kept, tool))["func_return"] == "done"
        assert asked_for == ["1/files.read it"]

"""Logins at MCP servers: a person agrees in a browser, and the tokens are kept, sealed and refreshed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from holdfast.store import mcp_servers as server_rows
from holdfast.store.transaction import Transaction
from tests.api.test_providers import bytes_below
from tests.served import ServedClient, served

from .asking import SERVERS, Json, add, run, tools_of
from .conftest import LOOPBACK
from .oauth import Guarded
from .servers import Tools, served_app

CALLBACK = "/v1/tools/mcp/oauth/callback"
PUBLIC = "http://holdfast.example"


@asynccontextmanager
async def guarded(tools: Tools) -> AsyncGenerator[Guarded]:
    login = Guarded(tools)
    async with served_app(login.app) as url:
        login.url = url
        yield login


@pytest.fixture
async def login(tools: Tools) -> AsyncIterator[Guarded]:
    async with guarded(tools) as opened:
        yield opened


@asynccontextmanager
async def holdfast(directory: Path, **settings: Any) -> AsyncGenerator[ServedClient]:
    async with served(directory, allowed_hosts=LOOPBACK, public_url=PUBLIC, **settings) as client:
        yield client


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with holdfast(tmp_path, database_url=database_url) as opened:
        yield opened


@asynccontextmanager
async def connecting(client: ServedClient, server: Json) -> AsyncGenerator[AsyncIterator[Json]]:
    async with client.http.stream("GET", f"{SERVERS}connect/{server['id']}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[Json]:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

        yield events()


async def begin(events: AsyncIterator[Json]) -> Json:
    told = [await anext(events) for _ in range(4)]
    names = [event["event"] for event in told]
    assert names == ["connection_attempt", "oauth_required", "authorization_url", "waiting_for_auth"]
    return told[2]


async def agree(url: str) -> str:
    """As a browser does. What it comes back with: a path of ours."""
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(url)
    assert answer.status_code == 307, answer.text
    back = urlsplit(answer.headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == PUBLIC + CALLBACK
    return f"{back.path}?{back.query}"


async def logged_in(client: ServedClient, login: Guarded) -> Json:
    server = await add(client, f"{login.url}/mcp")
    async with connecting(client, server) as events:
        opened = await begin(events)
        assert (await client.http.get(await agree(opened["url"]))).status_code == 200
        last = await asyncio.wait_for(anext(events), 20)
        assert last["event"] == "success", last
        assert "add" in [tool["name"] for tool in last["tools"]]
    return server


async def test_a_person_logs_in_and_from_then_on_tools_can_be_called(client: ServedClient, login: Guarded) -> None:
    server = await add(client, f"{login.url}/mcp")
    assert "wants a login" in server["sync_error"]
    server = await logged_in_again(client, login, server)
    listed = await tools_of(client, server)
    assert (await run(client, server, listed["add"], a=1, b=2))["func_return"] == "3"
    assert login.registered[0]["redirect_uris"] == [PUBLIC + CALLBACK]
    assert len(login.registered) == 1


async def logged_in_again(client: ServedClient, login: Guarded, server: Json) -> Json:
    async with connecting(client, server) as events:
        opened = await begin(events)
        assert opened["session_id"].startswith("mcp-oauth-")
        await client.http.get(await agree(opened["url"]))
        assert (await asyncio.wait_for(anext(events), 20))["event"] == "success"
    return server


async def test_the_callback_needs_no_key_and_its_state_is_good_once(tmp_path: Path, login: Guarded) -> None:
    async with holdfast(tmp_path, api_key="key") as client:
        client.http.headers["authorization"] = "Bearer key"
        server = await add(client, f"{login.url}/mcp")
        async with connecting(client, server) as events:
            path = await agree((await begin(events))["url"])
            del client.http.headers["authorization"]
            answer = await client.http.get(path)
            assert (answer.status_code, "login is done" in answer.text) == (200, True)
            assert (await asyncio.wait_for(anext(events), 20))["event"] == "success"
        assert (await client.http.get(path)).status_code == 404
        for nonsense in ("", "?state=", "?state=guessed&code=x", "?code=x"):
            assert (await client.http.get(CALLBACK + nonsense)).status_code == 404
        assert (await client.http.get(SERVERS)).status_code == 401


async def test_a_refusal_is_told_to_whoever_waits(client: ServedClient, login: Guarded) -> None:
    login.refuses = True
    server = await add(client, f"{login.url}/mcp")
    async with connecting(client, server) as events:
        answer = await client.http.get(await agree((await begin(events))["url"]))
        assert answer.status_code == 400
        assert "&lt;b&gt;no&lt;/b&gt;" in answer.text
        last = await asyncio.wait_for(anext(events), 20)
    assert (last["event"], "access_denied" in last["message"]) == ("error", True)


async def test_a_login_outlives_a_restart_between_its_steps(tmp_path: Path, login: Guarded) -> None:
    async with holdfast(tmp_path) as client:
        server = await add(client, f"{login.url}/mcp")
        async with connecting(client, server) as events:
            opened = await begin(events)
    async with holdfast(tmp_path) as client:
        assert (await client.http.get(await agree(opened["url"]))).status_code == 200
        assert (await client.ask("PATCH", f"{SERVERS}{server['id']}/refresh"))["added"]
    stored = bytes_below(tmp_path)
    assert b"mcp-oauth-" in stored
    assert not any(token.encode() in stored for token in login.tokens)


async def expire(client: ServedClient, server: Json) -> None:
    """As if an hour had passed since the token was given."""
    servers = client.deps.mcp

    async def write(tx: Transaction) -> None:
        known = await server_rows.find_login(tx, server["id"])
        assert known is not None
        past = msgspec.structs.replace(servers._opened(known), expires_at=1.0)
        sealed = servers._sealed(past)
        await server_rows.save_login(tx, msgspec.structs.replace(known, secrets=sealed))

    await client.deps.database.write(write)


async def test_a_token_that_has_expired_is_refreshed_and_the_new_one_is_kept(
    client: ServedClient, login: Guarded
) -> None:
    server = await logged_in(client, login)
    tool = (await tools_of(client, server))["add"]
    login.revoke()
    await expire(client, server)
    for _ in range(2):
        assert (await run(client, server, tool, a=1, b=1))["func_return"] == "2"
    assert login.refreshed == 1


async def test_a_login_that_no_longer_counts_is_said_to_be_needed(client: ServedClient, login: Guarded) -> None:
    server = await logged_in(client, login)
    tool = (await tools_of(client, server))["add"]
    login.revoke()
    told = await run(client, server, tool, a=1, b=1)
    assert told["status"] == "error"
    assert "a person has to do it" in told["stderr"][0]
    await logged_in_again(client, login, server)
    assert (await run(client, server, tool, a=1, b=1))["func_return"] == "2"
    assert len(login.registered) == 1


async def test_a_login_is_forgotten_with_its_server_and_with_its_address(client: ServedClient, login: Guarded) -> None:
    server = await logged_in(client, login)

    async def has_login() -> bool:
        return await client.deps.mcp.login_of(server["id"]) is not None

    assert await has_login()
    elsewhere = {"mcp_server_type": "streamable_http", "server_url": f"{login.url}/other"}
    await client.ask("PATCH", SERVERS + server["id"], {"config": elsewhere})
    assert not await has_login()


async def test_connecting_to_a_server_that_wants_no_login_stores_its_tools(
    client: ServedClient, url: str, tools: Tools
) -> None:
    server = await add(client, url)
    async with connecting(client, server) as events:
        told = [event async for event in events]
    assert [event["event"] for event in told] == ["connection_attempt", "success"]
    assert "not found" in await client.refusal(404, "GET", f"{SERVERS}connect/unknown")

"""The address of an MCP server is written by a user, and must not lead this server into its own network.

As in tests/api: two servers on one port, at an address that is allowed and stands for the internet, and at one that is
not. The second is never connected to.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.names import PRIVATE, PUBLIC, Names, one_port_on
from tests.served import served

from .asking import SERVERS, add, over_http, refresh
from .hostile import Answer, Hostile, listing

NAME = "harbour.example"
GOOD = {"name": "good", "inputSchema": {"type": "object"}}


@asynccontextmanager
async def network(outside: Answer) -> AsyncGenerator[tuple[Hostile, Hostile, int]]:
    """The allowed server, the other, and their port."""
    with one_port_on(PUBLIC, PRIVATE) as sockets:
        servers = [Hostile(outside), Hostile(listing([GOOD]))]
        listening = [
            await asyncio.start_server(server.serve, sock=each) for server, each in zip(servers, sockets, strict=True)
        ]
        try:
            yield servers[0], servers[1], sockets[0].getsockname()[1]
        finally:
            for each in listening:
                each.close()
            for task in [task for server in servers for task in server.connections]:
                task.cancel()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "10.1.2.3", "[::1]", "169.254.169.254", "[fd00:ec2::254]", "0.0.0.0", "2130706433"],
)
async def test_a_private_address_is_refused_when_it_is_written(tmp_path: Path, host: str) -> None:
    async with served(tmp_path) as client:
        body = {"server_name": "x", "config": over_http(f"http://{host}:9/mcp")}
        assert "not a public address" in await client.refusal(422, "POST", SERVERS, body)
        assert await client.ask("GET", SERVERS) == []


@pytest.mark.parametrize("settings", [{"allowed_hosts": ("127.0.0.1",)}, {"allow_private_addresses": True}])
async def test_a_private_address_is_reached_when_the_operator_allows_it(
    tmp_path: Path, url: str, settings: dict[str, Any]
) -> None:
    async with served(tmp_path, **settings) as client:
        assert (await add(client, url))["sync_error"] is None


async def test_credentials_of_clouds_are_never_reached(tmp_path: Path, names: Names) -> None:
    names.point("metadata.example", ["169.254.169.254"])
    allowed = ("169.254.0.0/16", "metadata.example")
    async with served(tmp_path, allow_private_addresses=True, allowed_hosts=allowed) as client:
        for host in ("169.254.169.254", "metadata.example", "[::ffff:169.254.169.254]"):
            body = {"server_name": "x", "config": over_http(f"http://{host}/latest")}
            assert "never connected to" in await client.refusal(422, "POST", SERVERS, body)


async def test_a_name_that_leads_elsewhere_later_is_not_followed_there(tmp_path: Path, names: Names) -> None:
    async with network(listing([GOOD])) as (outside, inside, port), served(tmp_path, allowed_hosts=(PUBLIC,)) as client:
        names.point(NAME, [PUBLIC], [PRIVATE])
        server = await add(client, f"http://{NAME}:{port}/mcp")
        assert "not a public address" in server["sync_error"]
        names.point(NAME, [PUBLIC])
        assert (await refresh(client, server))["added"] == ["good"]
        names.point(NAME, [PRIVATE])
        refused = await client.refusal(404, "PATCH", f"{SERVERS}{server['id']}/refresh")
        assert "not a public address" in refused["message"]
        assert (bool(outside.asked), inside.asked) == (True, [])


async def test_a_redirect_into_the_network_is_not_followed(tmp_path: Path) -> None:
    def redirecting(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        where = f"http://{PRIVATE}:{port}/mcp"
        head = f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {where}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())

    async with network(redirecting) as (outside, inside, port), served(tmp_path, allowed_hosts=(PUBLIC,)) as client:
        server = await add(client, f"http://{PUBLIC}:{port}/mcp")
        assert "not followed" in server["sync_error"]
        assert outside.asked
        assert inside.asked == []


async def test_a_name_that_cannot_be_looked_up_now_may_be_there_later(tmp_path: Path, names: Names) -> None:
    names.fail_for_now(NAME)
    async with network(listing([GOOD])) as (_, _, port), served(tmp_path, allowed_hosts=(PUBLIC,)) as client:
        server = await add(client, f"http://{NAME}:{port}/mcp")
        assert server["sync_error"]
        names._failing.clear()
        names.point(NAME, [PUBLIC])
        assert (await refresh(client, server))["added"] == ["good"]


async def test_an_address_that_a_secret_fills_in_is_judged_when_it_is_connected_to(tmp_path: Path) -> None:
    async with network(listing([GOOD])) as (outside, inside, port), served(tmp_path, allowed_hosts=(PUBLIC,)) as client:
        server = await add(client, f"http://{{{{ HOST | {PUBLIC} }}}}:{port}/mcp")
        assert server["sync_error"] is None, server
        agent = await client.agent(secrets={"HOST": PRIVATE})
        path = f"{SERVERS}{server['id']}/refresh"
        refused = await client.refusal(404, "PATCH", path, agent_id=agent.id)
        assert "not a public address" in refused["message"]
        assert (bool(outside.asked), inside.asked) == (True, [])

"""PostgreSQL is stopped with SIGSTOP: connections stay open and nobody answers. Nothing may wait for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.postgres import PostgresServer

from . import fleet

READY_WITHIN_S = 3.0  # one second is promised; the machine that tests may be busy
ANSWER_WITHIN_S = 45.0
DRAIN_S = 1.0
GRACE_S = 12.0
SLOW = "Hi [[no_reasoning]] [[tokens:60]] [[delay:0.02]]"

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def paused(server: PostgresServer) -> AsyncGenerator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


async def test_ready_says_within_a_second_that_the_database_hangs(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with fleet.running(tmp_path, postgres_url) as servers:
        async with paused(postgres_server), httpx.AsyncClient(base_url=servers.urls[0], timeout=60) as http:
            begun = time.monotonic()
            answers = [await http.get("/v1/ready/") for _ in range(2)]
            took_s = time.monotonic() - begun
            health = await http.get("/v1/health/")
        again = await fleet.get(servers.urls[0], "/v1/ready/", within_s=30)
    assert [answer.status_code for answer in answers] == [503, 503]
    assert took_s < 2 * READY_WITHIN_S
    assert health.status_code == 200
    assert again["status"] == "ok"


async def test_requests_fail_within_their_deadline_while_the_database_hangs_and_all_goes_on_afterwards(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with fleet.running(tmp_path, postgres_url, HOLDFAST_LEASE_TTL_S="2") as servers:
        url = servers.urls[0]
        agent_id = await fleet.make_agent(url)
        other_id = await fleet.make_agent(url)
        run_id = await fleet.begin(url, agent_id, SLOW)
        async with paused(postgres_server), httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S) as http:
            answers = await asyncio.gather(
                http.get("/v1/agents/"),
                http.post(f"/v1/agents/{other_id}/messages", json={"input": "Hello"}),
                http.post(f"/v1/agents/{other_id}/messages/stream", json={"input": "Hello"}),
            )
        servers.check_alive()
        run = await fleet.wait_for_end(url, run_id)
        assert [answer.status_code for answer in answers] == [503, 503, 503]
        assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        await fleet.wait_until_idle(url)
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            answer = await http.post(f"/v1/agents/{other_id}/messages", json={"input": "Hello [[say:Here I am.]]"})
        assert "Here I am." in answer.text
        await servers.read_database(idle=True)
        servers.check_logs()


async def test_sigterm_ends_the_server_within_the_drain_time_while_the_database_hangs(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with fleet.running(
        tmp_path, postgres_url, HOLDFAST_DRAIN_S=str(DRAIN_S), HOLDFAST_LEASE_TTL_S="2"
    ) as servers:
        url = servers.urls[0]
        run_id = await fleet.begin(url, await fleet.make_agent(url), SLOW)
        async with paused(postgres_server), httpx.AsyncClient(base_url=url, timeout=60) as http:
            waiting = asyncio.create_task(http.get("/v1/agents/"))
            await asyncio.sleep(0.2)  # it is inside by now; nothing would tell us
            await asyncio.to_thread(servers.servers[0].stop, DRAIN_S + GRACE_S)
            await asyncio.wait({waiting})
            waiting.exception()
        await asyncio.to_thread(servers.servers[0].start)
        run = await fleet.wait_for_end(url, run_id)
        assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        await servers.read_database(idle=True)

"""PostgreSQL ends sessions, or is restarted, under load. No server ends, no run fails, clients are told to retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.postgres import PostgresServer, Shutdown

from . import fleet
from .paid_model import REPLY, PaidModel
from .tally import Tally

CUTS = 15
RESTARTS = 3
LEASE_S = "2"

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def loaded_servers(directory: Path, url: str, size: int, seed: int) -> AsyncGenerator[None]:
    """Everything that is promised is checked at the end."""
    tally = Tally()
    async with tally.listening(), fleet.running(directory, url, size, HOLDFAST_LEASE_TTL_S=LEASE_S) as servers:
        async with fleet.busy_clients(servers, tally, seed) as clients:
            yield
        await fleet.check_all(servers, clients, tally)
        servers.check_logs()


@pytest.mark.parametrize("size", [1, 2])
async def test_sessions_that_postgresql_ends_neither_end_a_server_nor_fail_a_run(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str, size: int
) -> None:
    cut = 0
    async with loaded_servers(tmp_path, own_postgres_url, size, seed=20 + size):
        for _ in range(CUTS):
            await asyncio.sleep(0.3)  # so that some are cut at work and others while they wait in the pool
            cut += await own_postgres.cut_connections(own_postgres_url)
    assert cut >= CUTS


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_of_postgresql_neither_ends_a_server_nor_fails_a_run(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str, mode: Shutdown
) -> None:
    begun = own_postgres.started
    async with loaded_servers(tmp_path, own_postgres_url, size=1, seed=30):
        for _ in range(RESTARTS):
            await asyncio.sleep(1)
            await asyncio.to_thread(own_postgres.restart, mode)
    assert own_postgres.started == begun + RESTARTS


async def test_a_postgresql_that_is_down_for_a_while_fails_no_run(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    async with fleet.running(tmp_path, own_postgres_url, HOLDFAST_LEASE_TTL_S=LEASE_S) as servers:
        url = servers.urls[0]
        agents = [await fleet.make_agent(url) for _ in range(3)]
        runs = [await fleet.begin(url, agent, "Hi [[no_reasoning]] [[tokens:40]] [[delay:0.02]]") for agent in agents]
        await asyncio.to_thread(own_postgres.stop)
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            refused = await http.get("/v1/agents/")
            unready = await http.get("/v1/ready/")
        await asyncio.sleep(3)  # the replies are whole by now, and cannot be stored
        await asyncio.to_thread(own_postgres.start)
        ends = [await fleet.wait_for_end(url, run_id) for run_id in runs]
        servers.check_alive()
        assert (refused.status_code, unready.status_code) == (503, 503)
        assert [end["status"] for end in ends] == ["completed"] * 3
        await servers.read_database(idle=True)
        servers.check_logs()


@pytest.mark.parametrize("path", ["", "/stream", "/background"])
async def test_a_reply_that_was_paid_for_is_kept_when_the_connection_is_lost_before_it_is_stored(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str, path: str
) -> None:
    model = PaidModel()
    async with model.listening(), fleet.running(tmp_path, own_postgres_url, 1, [model.environment]) as servers:
        agent_id = await fleet.make_agent(servers.urls[0], model=model.handle)
        body = {"messages": [{"role": "user", "content": "Hello"}], "background": path == "/background"}
        address = f"/v1/agents/{agent_id}/messages{'/stream' if path else ''}"
        async with httpx.AsyncClient(base_url=servers.urls[0], timeout=60) as http:
            asking = asyncio.create_task(http.post(address, json=body))
            await asyncio.wait_for(model.answering.wait(), 60)
            assert await own_postgres.cut_connections(own_postgres_url)
            model.let_go.set()
            answer = await asking
        assert answer.status_code == 200, answer.text
        assert REPLY in answer.text
        snapshot = await servers.read_database(idle=True)
        assert [run.status for run in snapshot.runs.values()] == ["completed"]
    assert model.asked == 1

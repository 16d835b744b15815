"""PostgreSQL is stopped with SIGSTOP: connections stay open and nobody answers. Nothing may wait for ever."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from holdfast.store.database import TIMEOUT_S
from tests.postgres import PostgresServer

from . import fleet
from .paid_model import PaidModel

ANSWER_WITHIN_S = 60.0
DRAIN_S = 1.0
STOP_WITHIN_S = 30.0  # the drain time, the deadlines of the database, and a busy machine

pytestmark = pytest.mark.timeout(300)


async def test_ready_is_503_while_the_database_hangs_without_waiting_for_its_deadline(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    async with fleet.running(tmp_path, own_postgres_url) as servers:
        with own_postgres.paused():
            async with httpx.AsyncClient(base_url=servers.urls[0], timeout=60) as http:
                begun = time.monotonic()
                answers = [await http.get("/v1/ready/") for _ in range(2)]
                took_s = time.monotonic() - begun
                health = await http.get("/v1/health/")
        again = await fleet.get(servers.urls[0], "/v1/ready/")
    assert [answer.status_code for answer in answers] == [503, 503]
    assert took_s < TIMEOUT_S  # one second each is promised, but the machine may be busy
    assert health.status_code == 200
    assert again["status"] == "ok"


async def begin_run(url: str, model: PaidModel) -> str:
    """A run whose model has begun to reply, and waits."""
    run_id = await fleet.begin(url, await fleet.make_agent(url, model=model.handle), "Hello")
    await asyncio.wait_for(model.answering.wait(), 60)
    return run_id


async def test_requests_fail_within_their_deadline_while_the_database_hangs_and_runs_go_on_afterwards(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    model = PaidModel()
    async with (
        model.listening(),
        fleet.running(tmp_path, own_postgres_url, 1, [model.environment], HOLDFAST_LEASE_TTL_S="2") as servers,
    ):
        url = servers.urls[0]
        other_id = await fleet.make_agent(url)
        run_id = await begin_run(url, model)
        with own_postgres.paused():
            model.let_go.set()
            async with httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S) as http:
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
        assert "Here I am." in (await fleet.send(url, other_id, "Hello [[say:Here I am.]]")).text
        await servers.read_database(idle=True)
        servers.check_logs()


async def test_sigterm_ends_the_server_while_the_database_hangs_and_its_run_goes_on_after_a_restart(
    tmp_path: Path, own_postgres: PostgresServer, own_postgres_url: str
) -> None:
    model, settings = PaidModel(), {"HOLDFAST_DRAIN_S": str(DRAIN_S), "HOLDFAST_LEASE_TTL_S": "2"}
    async with (
        model.listening(),
        fleet.running(tmp_path, own_postgres_url, 1, [model.environment], **settings) as servers,
    ):
        url = servers.urls[0]
        run_id = await begin_run(url, model)
        with own_postgres.paused():
            model.let_go.set()
            async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                waiting = asyncio.create_task(http.get("/v1/agents/"))
                await asyncio.sleep(0.2)  # so that the server has most likely begun to answer; both cases must end
                await asyncio.to_thread(servers.servers[0].stop, STOP_WITHIN_S)
                await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.to_thread(servers.servers[0].start)
        run = await fleet.wait_for_end(url, run_id)
        assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        await servers.read_database(idle=True)

"""Servers that only serve, workers that only work, and several processes on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.exposition import parsed
from tests.serving import ServerProcess, WorkerProcess
from tests.surroundings import calm

from . import fleet

SHARED = {"HOLDFAST_LOG_LEVEL": "WARNING", "HOLDFAST_ENCRYPTION_KEY": "the key that the servers share"}
HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


@pytest.fixture
def environment(postgres_url: str) -> dict[str, str]:
    return SHARED | {"HOLDFAST_DATABASE_URL": postgres_url}


@pytest.fixture
def server(tmp_path: Path, environment: dict[str, str]) -> Iterator[ServerProcess]:
    """It leaves background runs to others."""
    with ServerProcess(tmp_path / "server", **environment, HOLDFAST_WORKER="no") as started:
        yield started


async def test_a_server_without_a_worker_answers_whoever_waits_and_leaves_background_runs_to_workers(
    tmp_path: Path, environment: dict[str, str], server: ServerProcess
) -> None:
    agent_id = await fleet.make_agent(server.url)
    assert (await fleet.send(server.url, agent_id, HELLO)).status_code == 200
    run_id = await fleet.begin(server.url, agent_id, HELLO)
    waiting = await fleet.get(server.url, f"/v1/runs/{run_id}")
    assert waiting["status"] == "created"
    with WorkerProcess(tmp_path / "worker", **environment) as worker:
        assert (await fleet.wait_for_end(server.url, run_id))["stop_reason"] == "end_turn"
        again = await fleet.begin(server.url, agent_id, HELLO)
        assert (await fleet.wait_for_end(server.url, again))["stop_reason"] == "end_turn"
        worker.stop()
        assert worker.exit_code == 0


async def test_runs_of_a_killed_worker_are_finished_by_another(
    tmp_path: Path, environment: dict[str, str], server: ServerProcess
) -> None:
    short = environment | {"HOLDFAST_LEASE_TTL_S": "1"}
    agent_id = await fleet.make_agent(server.url)
    with WorkerProcess(tmp_path / "first", **short) as first:
        run_id = await fleet.begin(server.url, agent_id, "Hi [[no_reasoning]] [[tokens:60]] [[delay:0.05]]")
        await fleet.wait_until_running(server.url, run_id)
        await asyncio.to_thread(first.kill)
        with WorkerProcess(tmp_path / "second", **short):
            assert (await fleet.wait_for_end(server.url, run_id))["stop_reason"] == "end_turn"


async def test_a_worker_with_a_port_serves_its_metrics_and_its_health_and_nothing_else(
    tmp_path: Path, environment: dict[str, str], server: ServerProcess
) -> None:
    worker = WorkerProcess(tmp_path / "worker", **environment, HOLDFAST_API_KEY="s3cret-key")
    worker.observed = True
    with worker:
        run_id = await fleet.begin(server.url, await fleet.make_agent(server.url), HELLO)
        await fleet.wait_for_end(server.url, run_id)
        async with httpx.AsyncClient(base_url=worker.url, timeout=60) as http:
            assert (await http.get("/v1/health/")).json()["status"] == "ok"
            assert (await http.get("/v1/ready")).status_code == 200
            assert (await http.get("/metrics")).status_code == 401
            http.headers["authorization"] = "Bearer s3cret-key"
            found = parsed((await http.get("/metrics")).text)
            assert found['holdfast_runs_started_total{process="0"}'] == 1
            for path in ("/v1/agents/", "/v1/runs/", "/", "/v1/folders/"):
                assert (await http.get(path)).status_code == 404, path
        worker.stop()
        assert worker.exit_code == 0


async def test_a_worker_whose_port_is_taken_says_so_and_does_not_start(
    tmp_path: Path, environment: dict[str, str], server: ServerProcess
) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "holdfast", "worker", "--port", str(server.port)],
        env=calm(os.environ) | environment | {"HOLDFAST_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "HOLDFAST_WORKER_PORT" in ended.stderr


def children_of(server: ServerProcess) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for child in psutil.Process(server.pid).children():
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "serve" in child.cmdline():
                found.append(child)
    return found


async def test_several_processes_share_a_port_and_one_that_dies_is_started_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with ServerProcess(tmp_path / "server", **environment, HOLDFAST_PROCESSES="3") as server:
        agent_id = await fleet.make_agent(server.url)
        before = children_of(server)
        assert len(before) == 3
        assert {child.environ()["HOLDFAST_PROCESS"] for child in before} == {"0", "1", "2"}, "a label of their metrics"
        os.kill(before[0].pid, signal.SIGKILL)

        async def restarted() -> bool | None:
            return len([child for child in children_of(server) if child not in before]) == 1 or None

        await fleet.poll(restarted)
        assert (await fleet.send(server.url, agent_id, HELLO)).status_code == 200
        running = children_of(server)
        server.stop()
        assert server.exit_code == 0
        assert not [child for child in running if child.is_running()]


async def test_processes_whose_parent_was_killed_stop_in_order(tmp_path: Path, environment: dict[str, str]) -> None:
    with ServerProcess(tmp_path / "server", **environment, HOLDFAST_PROCESSES="2") as server:
        children = children_of(server)
        server.kill()
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, 60)
        assert (len(gone), alive) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["worker"], "A worker needs PostgreSQL"),
        (["serve", "--no-worker", "--port", "0"], "drives no background runs needs PostgreSQL"),
        (["serve", "--processes", "2", "--port", "0"], "Serving with several processes needs PostgreSQL"),
    ],
)
def test_what_needs_postgresql_says_so_and_what_to_do(tmp_path: Path, arguments: list[str], what: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env=calm(os.environ) | {"HOLDFAST_DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert what in ended.stderr
    assert "HOLDFAST_DATABASE_URL=postgresql://" in ended.stderr

"""Two real servers, one of them with a wrong clock. Leases are judged by the database's clock alone.

Needs libfaketime. Where it is missing, `test_clock_skew_in_process.py` tests the same in one process.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from ..effort import EFFORT
from . import fleet
from .clocks import WrongClock
from .fleet import Fleet
from .tally import Tally

LEASE_S = 15.0  # shorter than the skews, and long enough for a busy machine to renew it
TOOL_S = 2.0
RUNS = 12
APART_S = 0.5  # all of them together last longer than the 5 s between two sweeps, so a sweep meets some

pytestmark = pytest.mark.timeout(180)


async def begin_runs(servers: Fleet, tally: Tally) -> list[str]:
    """Through the server with the wrong clock."""
    url, (mark, _) = servers.urls[0], await fleet.make_tools(servers.urls[0])
    runs: list[str] = []
    for number in range(RUNS):
        agent_id = await fleet.make_agent(url, tool_ids=[mark])
        runs.append(await fleet.begin(url, agent_id, tally.message("mark", f"tool-{number}", pause=TOOL_S)))
        await asyncio.sleep(APART_S)
    return runs


@pytest.mark.parametrize("ahead_s", [-30, 3600] if EFFORT == 1 else [-30, 30, 3600])
async def test_a_run_of_a_healthy_server_with_a_wrong_clock_is_not_taken_over(
    tmp_path: Path, postgres_url: str, ahead_s: int
) -> None:
    tally, clock = Tally(), WrongClock(tmp_path)
    clock.set(ahead_s)
    async with (
        tally.listening(),
        fleet.running(tmp_path, postgres_url, 2, [clock.environment], HOLDFAST_LEASE_TTL_S=str(LEASE_S)) as servers,
    ):
        runs = await begin_runs(servers, tally)
        ends = [await fleet.wait_for_end(servers.urls[1], run_id) for run_id in runs]
        snapshot = await servers.read_database(idle=True)
        assert [end["status"] for end in ends] == ["completed"] * RUNS
        assert {run.lease for run in snapshot.runs.values()} == {1}, "a run has changed its owner"
        fleet.check_marks(snapshot, tally, at_least=RUNS)


@pytest.mark.parametrize("ahead_s", [-30, 3600])
async def test_runs_of_a_dead_server_with_a_wrong_clock_are_finished_by_another(
    tmp_path: Path, postgres_url: str, ahead_s: int
) -> None:
    tally, clock = Tally(), WrongClock(tmp_path)
    clock.set(ahead_s)
    async with (
        tally.listening(),
        fleet.running(tmp_path, postgres_url, 2, [clock.environment], HOLDFAST_LEASE_TTL_S="1") as servers,
    ):
        runs = await begin_runs(servers, tally)
        await asyncio.to_thread(servers.servers[0].kill)
        ends = [await fleet.wait_for_end(servers.urls[1], run_id) for run_id in runs]
        assert [end["status"] for end in ends] == ["completed"] * RUNS
        await servers.read_database(idle=True)
    assert all(count == 1 for count in tally.marks.values())


async def test_ready_says_that_the_clock_is_wrong(tmp_path: Path, postgres_url: str) -> None:
    clock = WrongClock(tmp_path)
    clock.set(3600)
    async with (
        fleet.running(tmp_path, postgres_url, 2, [clock.environment]) as servers,
        httpx.AsyncClient(timeout=30) as http,
    ):
        wrong, right = [(await http.get(f"{url}/v1/ready/")).text for url in servers.urls]
    assert "clock" in wrong
    assert "clock" not in right


async def test_a_clock_that_jumps_during_runs_makes_none_of_them_change_owner(
    tmp_path: Path, postgres_url: str
) -> None:
    tally, clock = Tally(), WrongClock(tmp_path)
    async with (
        tally.listening(),
        fleet.running(tmp_path, postgres_url, 2, [clock.environment], HOLDFAST_LEASE_TTL_S=str(LEASE_S)) as servers,
    ):
        runs = await begin_runs(servers, tally)
        for ahead_s in (3600, -7200, 0):
            clock.set(ahead_s)
            await asyncio.sleep(1)
        ends = [await fleet.wait_for_end(servers.urls[1], run_id) for run_id in runs]
        snapshot = await servers.read_database(idle=True)
        assert [end["status"] for end in ends] == ["completed"] * RUNS
        assert {run.lease for run in snapshot.runs.values()} == {1}, "a run has changed its owner"

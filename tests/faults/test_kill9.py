"""Real servers under load are killed with SIGKILL, many times, at any moment. Nothing accepted may be lost.

On SQLite sixteen kills, spread over two servers so that they run in parallel, and two hundred with more effort.
On PostgreSQL fewer, with one, two and three servers on one database: any may be killed, and the others carry on. Each
trial has its own seed.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ..effort import EFFORT
from . import fleet
from .fleet import Fleet
from .tally import Tally

KILLS = 8 if EFFORT == 1 else 50
KILLS_ON_POSTGRES = 3 if EFFORT == 1 else 10
SEEDS = range(2 if EFFORT == 1 else 4)
LOOK_EVERY = 2  # kills: the database is read as the dead server left it
LONGEST_LIVES_S = (0.1, 0.4, 1.0)  # while it starts, just after, and at work
LEASE_S = "1"

pytestmark = [pytest.mark.kill9, pytest.mark.timeout(1_800)]


async def kill_repeatedly(servers: Fleet, kills: int, chance: random.Random) -> None:
    for kill in range(1, kills + 1):
        longest_s = chance.choice(LONGEST_LIVES_S)
        await asyncio.sleep(chance.uniform(0.0, longest_s))  # how long this one lives is what is being tested
        server = chance.choice(servers.servers)
        await asyncio.to_thread(server.kill)
        if kill % LOOK_EVERY == 0:
            await servers.read_database(idle=False)
        await asyncio.to_thread(server.start)


async def check_killed_servers(servers: Fleet, kills: int, seed: int) -> None:
    tally, chance = Tally(), random.Random(seed)
    async with tally.listening():
        async with fleet.busy_clients(servers, tally, seed) as clients:
            await kill_repeatedly(servers, kills, chance)
        await fleet.check_all(servers, clients, tally)
    servers.check_logs()


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_server_that_is_killed_many_times_loses_nothing_and_runs_no_tool_twice(
    tmp_path: Path, seed: int
) -> None:
    async with fleet.running(tmp_path, None) as servers:
        await check_killed_servers(servers, KILLS, seed)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_servers_on_postgresql_that_are_killed_many_times_lose_nothing_and_run_no_tool_twice(
    tmp_path: Path, postgres_url: str, size: int
) -> None:
    async with fleet.running(tmp_path, postgres_url, size, HOLDFAST_LEASE_TTL_S=LEASE_S) as servers:
        await check_killed_servers(servers, KILLS_ON_POSTGRES, seed=10 + size)

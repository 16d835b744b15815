"""A database that is slow now and then, in processes that die: every transaction, and every statement in it, may take
longer than a lease lasts. Leases run out under live workers, and what was sent by a dead one still arrives.

Each seed is a history of its own. `HOLDFAST_EFFORT=20` tries twenty times as many.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from holdfast.core.changes import Change
from holdfast.engine.worker import WorkerSettings
from holdfast.errors import HoldfastError
from holdfast.store.statements import Statement
from holdfast.store.transaction import Database, Dialect, Job, Parameters, Row, Transaction
from tests.effort import EFFORT
from tests.invariants import Snapshot, assert_invariants, take_snapshot
from tests.scenario import Crash, Node, World, world_at
from tests.wrapping import WrappedDatabase

T = TypeVar("T")
SEEDS = range(6 * EFFORT)
SHORT_LEASES = WorkerSettings(lease_ttl_s=0.3, flush_s=0.01, sweep_s=0.1, drain_s=0.0)
LONGEST_S = 0.5
THREADS, DEATHS = 5, 3
TEXTS = (
    "[[tokens:40]] [[delay:0.005]] [[no_reasoning]]",
    "[[tokens:10]] call the note tool",
    "call the lookup tool",
)
_LOOK_AGAIN_S = 0.05

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Slowness:
    def __init__(self, seed: float) -> None:
        self._chance = random.Random(seed)

    async def pause(self) -> None:
        """Mostly none or short, seldom longer than a lease."""
        drawn = self._chance.random()
        if drawn < 0.03:
            await asyncio.sleep(self._chance.uniform(0.0, LONGEST_S))
        elif drawn < 0.3:
            await asyncio.sleep(self._chance.uniform(0.0, 0.01))


class SlowTransaction:
    def __init__(self, inner: Transaction, slowness: Slowness) -> None:
        self.dialect: Dialect = inner.dialect
        self.changes: list[Change] = inner.changes
        self._inner = inner
        self._slowness = slowness

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        await self._slowness.pause()
        return await self._inner.execute(statement, parameters)

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        await self._slowness.pause()
        await self._inner.execute_many(statement, parameters)

    async def execute_one(self, statement: Statement, parameters: Parameters) -> bool:
        await self._slowness.pause()
        return await self._inner.execute_one(statement, parameters)

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        await self._slowness.pause()
        return await self._inner.fetch_all(statement, parameters)

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None:
        await self._slowness.pause()
        return await self._inner.fetch_one(statement, parameters)


class SlowDatabase(WrappedDatabase):
    def __init__(self, inner: Database, seed: float) -> None:
        super().__init__(inner)
        self._slowness = Slowness(seed)

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        await self._slowness.pause()
        written = await super().write(self._slowed(job), performed, settled)
        await self._slowness.pause()
        return written

    async def write_lease(self, job: Job[T]) -> T:
        await self._slowness.pause()
        return await super().write_lease(self._slowed(job))

    async def read(self, job: Job[T]) -> T:
        await self._slowness.pause()
        return await super().read(self._slowed(job))

    async def read_one(self, job: Job[T]) -> T:
        await self._slowness.pause()
        return await super().read_one(self._slowed(job))

    async def read_long(self, job: Job[T]) -> T:
        await self._slowness.pause()
        return await super().read_long(self._slowed(job))

    def _slowed(self, job: Job[T]) -> Job[T]:
        return lambda tx: job(SlowTransaction(tx, self._slowness))


class Fleet:
    """Servers in this process. One that dies is replaced."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._nodes: list[Node] = []
        self._working: list[asyncio.Task[None]] = []

    def start(self) -> None:
        node = Node(self._world, SHORT_LEASES, database=SlowDatabase(self._world.database, self._chance.random()))
        self._nodes.append(node)
        self._working.append(asyncio.create_task(node.worker.run_forever()))

    async def kill(self, number: int) -> None:
        node, working = self._nodes.pop(number), self._working.pop(number)
        working.cancel()
        await asyncio.wait([working])
        await node.die()

    async def kill_one(self) -> None:
        await self.kill(self._chance.randrange(len(self._nodes)))

    async def kill_all(self) -> None:
        while self._nodes:
            await self.kill(0)

    @property
    def any(self) -> Node:
        return self._chance.choice(self._nodes)


async def keep_sending(fleet: Fleet, thread_id: str, chance: random.Random, stop: asyncio.Event) -> None:
    """A server that refuses, or dies, is left alone: what it has accepted must come to its end all the same."""
    while not stop.is_set():
        node, tokens = fleet.any, chance.random() < 0.8
        try:
            sent = await node.send(
                chance.choice(TEXTS), thread=thread_id, background=True, stream_tokens=tokens, wait_s=20
            )
            if chance.random() < 0.15:
                await node.cancel.one(sent.run.id)
        except (HoldfastError, Crash):
            continue
        await asyncio.sleep(chance.uniform(0.0, 0.3))


async def kill_repeatedly(fleet: Fleet, world: World, chance: random.Random, stop: asyncio.Event) -> None:
    for _ in range(DEATHS):
        await asyncio.sleep(chance.uniform(0.1, 1.2))  # how long it lives is what is being tested
        fleet.start()
        await fleet.kill_one()
        await assert_invariants(world.database)
    stop.set()


async def until_idle(world: World) -> Snapshot:
    while True:
        snapshot = await take_snapshot(world.database)
        if not any(run.is_active for run in snapshot.runs.values()):
            return snapshot
        await asyncio.sleep(_LOOK_AGAIN_S)  # many processes write; there is no event for all of them


@pytest.mark.parametrize("seed", SEEDS)
async def test_workers_that_lose_their_leases_to_a_slow_database_lose_nothing(postgres_url: str, seed: int) -> None:
    chance = random.Random(seed)
    async with world_at(postgres_url) as world, asyncio.timeout(240):
        world.tools.let_go.set()
        fleet, stop = Fleet(world, chance), asyncio.Event()
        for _ in range(chance.choice((1, 2, 3))):
            fleet.start()
        threads = [await world.add_thread() for _ in range(THREADS)]
        clients = [keep_sending(fleet, thread_id, chance, stop) for thread_id in threads]
        await asyncio.gather(*clients, kill_repeatedly(fleet, world, chance, stop))
        ended = await until_idle(world)
        await fleet.kill_all()
        await assert_invariants(world.database, idle=True)
        assert {run.status for run in ended.runs.values()} <= {"completed", "cancelled"}
        assert len(ended.runs) >= THREADS

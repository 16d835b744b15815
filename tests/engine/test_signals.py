"""Servers that share a database wake each other: nobody has to look at the record again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.core.frames import StopFrame
from holdfast.engine import bus, worker
from holdfast.engine.worker import WorkerSettings
from holdfast.store.postgres_signals import PostgresSignals
from holdfast.store.signals import Signals

from ..invariants import assert_invariants
from ..scenario import Node, World, eventually, world_at

SELDOM = WorkerSettings(lease_ttl_s=600, sweep_s=3_600, drain_s=0.0)  # nothing is found but by a signal
ONLY_SERVES = WorkerSettings(lease_ttl_s=600, sweep_s=3_600, drain_s=0.0, takes_waiting=False)
NARROW = WorkerSettings(lease_ttl_s=600, sweep_s=3_600, drain_s=0.0, most_runs=1)
HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"


class Line:
    """What one process sends, all others hear."""

    def __init__(self, hub: list[Line]) -> None:
        self.connected = True
        self._hub = hub
        self._heard: Callable[[str], None] | None = None
        hub.append(self)

    def send(self, signal: str) -> None:
        for other in self._hub:
            if other is not self and other._heard is not None:
                asyncio.get_running_loop().call_soon(other._heard, signal)

    async def run_forever(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._heard = heard
        missed()
        await asyncio.Event().wait()


@asynccontextmanager
async def servers(world: World, *timings: WorkerSettings) -> AsyncGenerator[list[Node]]:
    hub: list[Line] = []
    nodes = [Node(world, timing, signals=Line(hub)) for timing in timings]
    async with running(nodes):
        await eventually(lambda: all(line._heard is not None for line in hub))
        yield nodes


@asynccontextmanager
async def running(nodes: list[Node]) -> AsyncGenerator[None]:
    forever = [asyncio.create_task(node.worker.run_forever()) for node in nodes]
    try:
        yield
    finally:
        for task in forever:
            task.cancel()
        for node in nodes:
            await node.die()


@pytest.fixture(autouse=True)
def without_a_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "NET_WITH_SIGNALS_S", 3_600.0)


async def test_a_cancel_reaches_a_run_that_another_server_drives(world: World) -> None:
    async with servers(world, SELDOM, SELDOM) as (driving, other):
        run_id = (await driving.send("[[call:slow {}]]")).run.id
        await world.tools.waiting.wait()
        assert await other.cancel.one(run_id) == "cancelled"
        assert sum(world.tools.killed.values()) == 1
        await driving.settled()
        await assert_invariants(world.database, idle=True)


async def test_a_reader_at_another_server_follows_a_run_to_its_end(world: World) -> None:
    async with servers(world, SELDOM, SELDOM) as (driving, other):
        run = (await driving.send("[[call:slow {}]] [[say:Done.]]", background=True, stream_tokens=True)).run
        reading = asyncio.create_task(_read(other, run.id))
        await world.tools.waiting.wait()
        world.tools.let_go.set()
        assert await reading == "end_turn"


async def _read(node: Node, run_id: str) -> str | None:
    run = await node.world.run(run_id)
    frames = [frame async for batch in node.reader.follow(run) for _, frame in batch]
    return next((frame.stop_reason for frame in frames if isinstance(frame, StopFrame)), None)


async def test_whoever_waits_for_the_end_of_a_run_at_another_server_is_woken(world: World) -> None:
    async with servers(world, SELDOM, SELDOM) as (driving, other):
        run_id = (await driving.send("[[call:slow {}]] [[say:Done.]]")).run.id
        await world.tools.waiting.wait()
        waiting = asyncio.create_task(other.reader.until_stopped(run_id))
        world.tools.let_go.set()
        assert (await waiting).stop_reason == "end_turn"


async def test_a_message_waits_for_a_thread_that_is_busy_at_another_server(world: World) -> None:
    async with servers(world, SELDOM, SELDOM) as (driving, other):
        await driving.send("[[call:slow {}]] [[say:Done.]]")
        await world.tools.waiting.wait()
        sending = asyncio.create_task(other.send(HELLO, wait_s=30))
        world.tools.let_go.set()
        accepted = await sending
        assert (await other.reader.until_stopped(accepted.run.id)).stop_reason == "end_turn"


async def test_a_run_for_which_there_is_no_room_is_taken_by_another_server(world: World) -> None:
    async with servers(world, NARROW, SELDOM) as (full, other):
        await full.send("[[call:slow {}]]", background=True)
        await world.tools.waiting.wait()
        run_id = (await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id
        assert (await full.reader.until_stopped(run_id)).stop_reason == "end_turn"
        await other.settled()


async def test_runs_that_come_one_by_one_wait_for_no_pause_between_sweeps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is for many that wait: it leaves other servers their share."""
    monkeypatch.setattr(worker, "BETWEEN_SWEEPS_S", 3_600.0)
    async with servers(world, ONLY_SERVES, SELDOM) as (serving, _), asyncio.timeout(60):
        for _ in range(3):
            run_id = (await serving.send(HELLO, background=True)).run.id
            assert (await serving.reader.until_stopped(run_id)).stop_reason == "end_turn"


async def test_a_run_that_is_handed_over_goes_on_at_another_server_at_once(world: World) -> None:
    async with servers(world, SELDOM, SELDOM) as (stopping, other):
        run_id = (await stopping.send("[[call:slow_lookup {}]] [[say:Done.]]", background=True)).run.id
        await world.tools.waiting.wait()
        world.tools.waiting.clear()
        await stopping.worker.drain()
        await world.tools.waiting.wait()  # a tool that may be repeated is run again, by the other
        world.tools.let_go.set()
        assert (await other.reader.until_stopped(run_id)).stop_reason == "end_turn"


@pytest.mark.postgres
async def test_by_notifications_alone_a_run_begins_at_another_server_is_read_and_cancelled_from_here(
    postgres_url: str,
) -> None:
    """As `serve --no-worker` and `worker` do it, with PostgreSQL between them."""
    async with world_at(postgres_url) as world:
        lines = [PostgresSignals(postgres_url) for _ in range(2)]
        front, driving = (
            Node(world, timing, signals=line) for timing, line in zip((ONLY_SERVES, SELDOM), lines, strict=True)
        )
        async with running([front, driving]):
            await eventually(lambda: all(line.connected for line in lines))
            run = (await front.send("[[call:slow {}]]", background=True, stream_tokens=True)).run
            reading = asyncio.create_task(_read(front, run.id))
            await world.tools.waiting.wait()
            assert (front.worker.owns(run.id), driving.worker.owns(run.id)) == (False, True)
            assert await front.cancel.one(run.id) == "cancelled"
            assert await reading == "cancelled"
            await driving.settled()
        await assert_invariants(world.database, idle=True)


def test_without_signals_the_record_is_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    line: Signals = Line([])
    assert bus.Bus(line).net_s > bus.Bus(None).net_s
    line.connected = False
    assert bus.Bus(line).net_s == bus.Bus(None).net_s

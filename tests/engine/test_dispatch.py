"""A run that is stored for nobody: whoever has room finds it by its id, claims it, loads it and drives it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.frames import StopFrame
from holdfast.engine.worker import WorkerSettings
from holdfast.store import runs
from holdfast.store.transaction import Job

from ..invariants import assert_invariants
from ..scenario import LONG, Node, World, eventually

NARROW = WorkerSettings(lease_ttl_s=600, drain_s=0.0, most_runs=1)
HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"


def claims_nothing(*, background: bool) -> bool:
    return False


@pytest.fixture
async def full(world: World) -> Node:
    """A server whose only place is taken by a slow tool."""
    node = world.node(NARROW)
    await node.send("[[call:slow {}]]", background=True)
    await world.tools.waiting.wait()
    return node


async def test_a_background_run_beyond_the_limit_is_stored_for_nobody(world: World, full: Node) -> None:
    thread = await world.add_thread()
    accepted = await full.send(HELLO, thread=thread, background=True)
    assert accepted.stream is None
    run = await world.run(accepted.run.id)
    assert (run.status, run.lease, run.lease_owner) == ("created", 0, None)
    assert not full.worker.owns(run.id)
    assert await full.worker.recover() == 0  # there is still no room
    await full.die()


async def test_a_run_that_waited_is_driven_when_there_is_room(world: World, full: Node) -> None:
    accepted = await full.send(HELLO, thread=await world.add_thread(), background=True)
    forever = asyncio.create_task(full.worker.run_forever())
    following = asyncio.create_task(anext_stop(full, accepted.run.id))
    world.tools.let_go.set()
    assert await following == "end_turn"
    forever.cancel()
    await full.settled()
    await assert_invariants(world.database, idle=True)


async def anext_stop(node: Node, run_id: str) -> str | None:
    run = await node.world.run(run_id)
    frames = [frame async for batch in node.reader.follow(run) for _, frame in batch]
    return next((frame.stop_reason for frame in frames if isinstance(frame, StopFrame)), None)


async def test_runs_that_wait_are_taken_in_the_order_in_which_they_came(world: World, full: Node) -> None:
    waiting = [(await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id for _ in range(3)]
    world.tools.let_go.set()
    await full.settled()
    taken: list[str] = []
    for _ in waiting:
        assert await full.worker.recover() == 1
        taken += [run_id for run_id in waiting if full.worker.owns(run_id)]
        await full.settled()
    assert taken == waiting


async def test_a_place_that_a_sweep_is_about_to_fill_is_not_given_to_a_new_run(
    world: World, full: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = (await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id
    world.tools.let_go.set()
    await full.settled()
    looking, go_on, read_one = asyncio.Event(), asyncio.Event(), world.database.read_one

    async def slowly(job: Job[Any]) -> Any:
        found = await read_one(job)
        looking.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(world.database, "read_one", slowly)
    sweep = asyncio.create_task(full.worker.recover())
    await looking.wait()
    monkeypatch.undo()  # only the sweep is slow
    late = await full.send(HELLO, thread=await world.add_thread(), background=True)
    assert late.stream is None, "there is one place, and the sweep has found whose it is"
    go_on.set()
    assert await sweep == 1
    assert full.worker.owns(waiting)
    assert not full.worker.owns(late.run.id)


async def test_a_new_run_does_not_overtake_one_that_waits(world: World, full: Node) -> None:
    waiting = (await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id
    world.tools.let_go.set()
    await full.settled()  # now there is room, and nobody has looked for what waits
    late = await full.send(HELLO, thread=await world.add_thread(), background=True)
    assert late.stream is None
    assert await full.worker.recover() == 1
    assert full.worker.owns(waiting)
    await full.settled()
    assert await full.worker.recover() == 1
    await full.settled()
    assert await full.worker.recover() == 0
    assert (await full.send(HELLO, thread=await world.add_thread(), background=True)).stream is not None
    await full.settled()


async def test_another_server_with_room_takes_a_run_that_waits(world: World, full: Node) -> None:
    run_id = (await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id
    other = world.node()
    assert await other.worker.recover() == 1
    await other.settled()
    assert (await world.run(run_id)).stop_reason == "end_turn"
    await full.die()


async def test_somebody_who_waits_for_the_answer_is_served_although_there_is_no_room(world: World, full: Node) -> None:
    run = await full.ask(HELLO, thread=await world.add_thread())
    assert run.stop_reason == "end_turn"
    await full.die()


async def test_a_run_that_waits_is_cancelled_at_once(world: World, full: Node) -> None:
    run_id = (await full.send(HELLO, thread=await world.add_thread(), background=True)).run.id
    assert await full.cancel.one(run_id) == "cancelled"
    run = await world.run(run_id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    await full.die()


async def test_many_interrupted_runs_are_carried_on_as_there_is_room(world: World) -> None:
    dead = world.node()
    for _ in range(5):
        await dead.send("[[stall]]", thread=await world.add_thread(), background=True)
    await dead.die()
    heir = world.node(WorkerSettings(lease_ttl_s=600, drain_s=0.0, most_runs=2))
    await heir.worker.expire_other_leases()
    assert await heir.worker.recover() == 2
    assert await heir.worker.recover() == 0
    await heir.die()


@pytest.mark.parametrize("stored_for_nobody", [False, True])
async def test_runs_that_come_at_once_are_not_more_than_there_is_room_for(
    world: World, monkeypatch: pytest.MonkeyPatch, stored_for_nobody: bool
) -> None:
    node = world.node(WorkerSettings(lease_ttl_s=600, drain_s=0.0, most_runs=3))
    if stored_for_nobody:
        monkeypatch.setattr(node.worker, "claims", claims_nothing)  # each is taken by a hint
    threads = [await world.add_thread() for _ in range(12)]
    await asyncio.gather(*(node.send("[[call:slow {}]]", thread=thread, background=True) for thread in threads))
    await eventually(lambda: len(world.tools.in_flight) == 3)
    hints = [task for task in node.worker._tasks if node.worker._owned.keys().isdisjoint({task.get_name()})]
    await asyncio.gather(*hints)
    assert node.worker.slots == (3, 3)
    await node.die()


class TestLimitOfAnAgent:
    """How many of its runs are driven at once, by all servers together."""

    TWO = WorkerSettings(lease_ttl_s=600, drain_s=0.0, sweep_s=3_600, most_runs_per_agent=2)

    @staticmethod
    async def begin(world: World, node: Node, count: int) -> list[str]:
        text = "[[call:slow {}]] [[say:Done.]]"
        return [(await node.send(text, thread=await world.add_thread(), background=True)).run.id for _ in range(count)]

    async def test_further_background_runs_wait_until_one_of_them_has_ended(self, world: World) -> None:
        node = world.node(self.TWO)
        forever = asyncio.create_task(node.worker.run_forever())
        begun = await self.begin(world, node, 5)
        await eventually(lambda: len(world.tools.in_flight) == 2)
        assert [run_id for run_id in begun if node.worker.owns(run_id)] == begun[:2]
        world.tools.let_go.set()
        for run_id in begun:
            assert (await node.reader.until_stopped(run_id)).stop_reason == "end_turn"
        forever.cancel()
        await node.settled()
        await assert_invariants(world.database, idle=True)

    async def test_it_holds_for_all_servers_together(self, world: World) -> None:
        nodes = [world.node(self.TWO), world.node(self.TWO)]
        begun = await self.begin(world, nodes[0], 5)
        await asyncio.gather(*(node.worker.recover() for node in nodes for _ in range(2)))
        driven = [run_id for run_id in begun if any(node.worker.owns(run_id) for node in nodes)]
        assert driven == begun[:2]
        for node in nodes:
            await node.die()

    async def test_somebody_who_waits_for_the_answer_is_served_all_the_same(self, world: World) -> None:
        node = world.node(self.TWO)
        await self.begin(world, node, 2)
        assert await node.worker.recover() == 2
        assert (await node.ask(HELLO)).stop_reason == "end_turn"
        await node.die()

    async def test_a_run_that_waits_because_of_it_is_cancelled_at_once(self, world: World) -> None:
        node = world.node(self.TWO)
        *_, last = await self.begin(world, node, 3)
        assert await node.worker.recover() == 2
        assert await node.cancel.one(last) == "cancelled"
        await node.die()


class TestDispatch:
    """By the id alone, without anything that the accepting process has in memory."""

    @pytest.fixture(autouse=True)
    def without_claims(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(node.worker, "claims", claims_nothing)

    @pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
    async def test_drives_a_run_that_nobody_has_claimed(self, world: World, node: Node, background: bool) -> None:
        accepted = await node.send("[[call:note {}]] [[say:Done.]]", background=background)
        run = await node.reader.until_stopped(accepted.run.id)
        assert (run.stop_reason, run.lease) == ("end_turn", 1)
        assert sum(world.tools.finished.values()) == 1
        await node.settled()
        await assert_invariants(world.database, idle=True)

    async def test_a_foreground_run_tells_whoever_sent_it_everything(self, node: Node) -> None:
        accepted = await node.send(HELLO)
        frames = await node.reader.frames_of(accepted.run.id)
        assert [type(frame).__name__ for frame in frames] == ["MessageFrame", "StopFrame", "UsageFrame"]

    async def test_numbers_frames_from_one(self, node: Node) -> None:
        accepted = await node.send(HELLO, background=True)
        numbers = [number async for batch in node.reader.follow(accepted.run) for number, _ in batch]
        assert numbers == list(range(1, len(numbers) + 1))

    async def test_a_hint_that_is_lost_is_made_good_by_a_sweep(
        self, world: World, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lose(run_id: str) -> None:
            pass

        monkeypatch.setattr(node.worker, "dispatch", lose)
        run_id = (await node.send(HELLO, background=True)).run.id
        assert await node.worker.recover() == 1
        await node.settled()
        assert (await world.run(run_id)).stop_reason == "end_turn"

    async def test_a_hint_that_comes_twice_starts_one_run(self, world: World, node: Node) -> None:
        run_id = (await node.send("[[call:note {}]] [[say:Done.]]", background=True)).run.id
        node.worker.dispatch(run_id)
        await node.settled()
        assert sum(world.tools.begun.values()) == 1
        assert (await world.run(run_id)).lease == 1

    async def test_a_hint_that_meets_a_lost_database_leaves_the_run_to_a_sweep(
        self, world: World, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        node.database.lose_write(2, "before")  # the acceptance is the first
        run_id = (await node.send(HELLO, background=True)).run.id
        await node.settled()
        assert "waits for a sweep" in caplog.text
        assert await node.worker.recover() == 1
        await node.settled()
        assert (await world.run(run_id)).stop_reason == "end_turn"

    async def test_a_server_that_stops_takes_no_further_run(self, world: World, node: Node) -> None:
        other = world.node(LONG)
        await node.worker.drain()
        await eventually(lambda: node.worker.draining)
        run_id = (await other.send("[[stall]]", background=True)).run.id
        await other.worker.drain()
        node.worker.dispatch(run_id)
        await node.settled()
        assert not node.worker.owns(run_id)
        assert (await world.database.read(lambda tx: runs.get(tx, run_id))).is_active

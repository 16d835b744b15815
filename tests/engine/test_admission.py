"""A server with enough to do refuses more, at once, and before anything of it is stored."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine import admission
from holdfast.engine.worker import WorkerSettings
from holdfast.errors import Busy, TooManyRuns
from holdfast.store import runs
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter

from ..scenario import LONG, Node, World

NARROW = WorkerSettings(lease_ttl_s=600, drain_s=0.0, most_runs=1)
HELLO = "Hello [[say:Good day.]] [[no_reasoning]]"


async def stored_runs(world: World) -> int:
    return len(await world.database.read(lambda tx: runs.list_runs(tx, RunFilter(), Page(limit=None))))


@pytest.fixture
async def busy(world: World) -> Node:
    """It answers two at once, and two wait for their answers."""
    node = Node(world, LONG, most_foreground=2)
    for _ in range(2):
        await node.send("[[stall]]", thread=await world.add_thread())
    return node


async def test_more_runs_than_may_be_waited_for_are_refused_and_leave_nothing_behind(world: World, busy: Node) -> None:
    before = await stored_runs(world)
    with pytest.raises(TooManyRuns, match="2 requests at once") as refusal:
        await busy.send(HELLO)
    assert refusal.value.retry_after_s == 1
    assert busy.admission.refused == {"foreground": 1}
    assert await stored_runs(world) == before
    await busy.die()


async def test_a_run_in_the_background_is_not_refused_because_of_those_that_are_waited_for(
    world: World, busy: Node
) -> None:
    accepted = await busy.send(HELLO, background=True)
    assert (await busy.reader.until_stopped(accepted.run.id)).stop_reason == "end_turn"
    await busy.die()


async def test_runs_in_the_background_do_not_count_as_waited_for(world: World) -> None:
    node = Node(world, LONG, most_foreground=1)
    for _ in range(3):
        await node.send("[[stall]]", thread=await world.add_thread(), background=True)
    assert (await node.ask(HELLO)).stop_reason == "end_turn"
    await node.die()


async def test_requests_that_come_at_once_are_counted_before_they_are_driven(world: World) -> None:
    node = Node(world, LONG, most_foreground=3)
    threads = [await world.add_thread() for _ in range(10)]
    answers = await asyncio.gather(
        *(node.send("[[stall]]", thread=thread) for thread in threads), return_exceptions=True
    )
    assert sum(isinstance(answer, TooManyRuns) for answer in answers) == 7
    assert node.worker.foreground_runs == 3
    await node.die()


async def test_a_run_that_ends_makes_room_for_the_next(world: World, busy: Node) -> None:
    run_id = next(iter(busy.worker._owned))
    await busy.cancel.one(run_id)
    assert (await busy.ask(HELLO)).stop_reason == "end_turn"
    await busy.die()


async def test_a_busy_thread_is_told_of_before_a_busy_server(world: World) -> None:
    node = Node(world, LONG, most_foreground=1)
    await node.send("[[stall]]")
    with pytest.raises(Busy):
        await node.send(HELLO)
    await node.die()


async def test_a_message_that_was_accepted_is_not_refused_when_it_comes_again(world: World) -> None:
    node = Node(world, LONG, most_foreground=1)
    accepted = await node.send("[[stall]]", otid="once")
    again = await node.send("[[stall]]", otid="once")
    assert again.run.id == accepted.run.id
    await node.die()


class TestQueue:
    """Of background runs that wait for a worker."""

    @pytest.fixture
    async def full(self, world: World) -> Node:
        """One run is driven, and two may wait."""
        node = Node(world, NARROW, most_waiting=2)
        await node.send("[[call:slow {}]]", background=True)
        await world.tools.waiting.wait()
        for _ in range(2):
            await node.send(HELLO, thread=await world.add_thread(), background=True)
        return node

    async def test_a_full_queue_takes_no_more(self, world: World, full: Node) -> None:
        before = await stored_runs(world)
        with pytest.raises(TooManyRuns, match="2 background runs wait") as refusal:
            await full.send(HELLO, thread=await world.add_thread(), background=True)
        assert refusal.value.retry_after_s == 2
        assert full.admission.refused == {"queue": 1}
        assert await stored_runs(world) == before
        await full.die()

    async def test_a_full_queue_refuses_nobody_who_waits_for_the_answer(self, world: World, full: Node) -> None:
        assert (await full.ask(HELLO, thread=await world.add_thread())).stop_reason == "end_turn"
        await full.die()

    async def test_it_is_counted_again_after_a_while(
        self, world: World, full: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "QUEUE_COUNTED_S", 0.0)
        full.admission._count_again_at = 0.0  # as if the while were over
        other = Node(world, NARROW)
        assert await other.worker.recover() == 1
        await other.settled()
        await full.send(HELLO, thread=await world.add_thread(), background=True)
        with pytest.raises(TooManyRuns):
            await full.send(HELLO, thread=await world.add_thread(), background=True)
        await full.die()

    async def test_other_processes_count_what_waits_too(self, world: World, full: Node) -> None:
        other = Node(world, WorkerSettings(lease_ttl_s=600, drain_s=0.0, takes_waiting=False), most_waiting=2)
        with pytest.raises(TooManyRuns):
            await other.send(HELLO, thread=await world.add_thread(), background=True)
        await full.die()

    async def test_a_worker_with_room_takes_a_run_whatever_waits(self, world: World, full: Node) -> None:
        roomy = Node(world, LONG, most_waiting=2)
        accepted = await roomy.send(HELLO, thread=await world.add_thread(), background=True)
        await roomy.settled()
        assert (await world.run(accepted.run.id)).stop_reason == "end_turn"
        await full.die()

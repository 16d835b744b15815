"""Lost connections to the database: no run fails because of one, no model is asked twice, nothing is stored twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Literal

import pytest

from holdfast.core.deltas import Delta
from holdfast.core.messages import Approve, ToolReturn
from holdfast.core.run import OpenCall
from holdfast.engine.worker import WorkerSettings
from holdfast.errors import Busy
from holdfast.llm.base import ModelRequest
from holdfast.llm.offline.model import OfflineModel
from holdfast.store import leases, runs, threads
from holdfast.store.transaction import DatabaseError

from ..invariants import assert_invariants
from ..scenario import Node, World, eventually

SCENES: dict[str, dict[str, Any]] = {
    "an answer": {"text": "hello"},
    "a tool": {"text": "call the note tool"},
    "two tools at once": {"text": "call the slow_lookup tool and call the slow tool"},
    "a background stream": {"text": "[[tokens:20]] call the note tool", "background": True, "stream_tokens": True},
}


class CountingModel(OfflineModel):
    def __init__(self) -> None:
        super().__init__()
        self.replies = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        async for delta in super().stream(request):
            yield delta
        self.replies += 1


def counting(node: Node) -> CountingModel:
    model = node.catalog.offline.model = CountingModel()
    return model


async def undisturbed(world: World, scene: dict[str, Any]) -> tuple[int, int, int]:
    """How many writes, reads of the driver and replies the scene takes."""
    node, thread = world.node(), await world.add_thread()
    model = counting(node)
    accepted = await node.send(**scene, thread=thread)
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"
    return node.database.writes, len(await world.window(thread)), model.replies


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_lost_at_any_checkpoint_neither_fails_the_run_nor_drops_a_reply(
    world: World, scene: str, when: Literal["before", "after"]
) -> None:
    """`after`: the commit has happened, and nobody was told."""
    world.tools.let_go.set()
    writes, rows, replies = await undisturbed(world, SCENES[scene])
    begun_before = world.tools.begun.total()
    tools = begun_before
    for write in range(2, writes + 1):  # the first is the acceptance
        node, thread = world.node(), await world.add_thread()
        model = counting(node)
        node.database.lose_write(write, when)
        accepted = await node.send(**SCENES[scene], thread=thread)
        await node.worker.stopped(accepted.run.id)
        run = await world.run(accepted.run.id)
        assert (run.status, run.stop_reason, run.lease) == ("completed", "end_turn", 1)
        assert (len(await world.window(thread)), model.replies, node.database.lost) == (rows, replies, 1)
        assert world.tools.begun.total() - begun_before == tools, "no tool is run twice"
        begun_before = world.tools.begun.total()
    await assert_invariants(world.database, idle=True)


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
async def test_a_read_that_fails_at_any_place_does_not_fail_the_run(world: World, scene: str) -> None:
    world.tools.let_go.set()
    _, rows, replies = await undisturbed(world, SCENES[scene])
    failed = 0
    for read in range(12):
        node, thread = world.node(), await world.add_thread()
        model = counting(node)
        accepted = await node.send(**SCENES[scene], thread=thread)
        node.database.fail_reads_after(read, once=True)
        await node.worker.stopped(accepted.run.id)
        run = await world.run(accepted.run.id)
        assert (run.status, run.stop_reason) == ("completed", "end_turn")
        assert (len(await world.window(thread)), model.replies) == (rows, replies)
        failed += node.database.lost
    assert failed or scene == "an answer", "the driver of this scene reads, and some read has failed"
    await assert_invariants(world.database, idle=True)


async def test_streams_end_while_the_run_waits_for_the_database_and_its_reply_is_kept(world: World) -> None:
    node = world.node()
    node.worker._runner._listeners_wait_s = 0.0
    model = counting(node)
    node.database.lose_write(2, "before", times=3)
    accepted = await node.send("hello", background=True, stream_tokens=True)
    assert accepted.stream is not None
    async for _ in accepted.stream.follow():
        pass
    assert not accepted.stream.has_ended, "nobody is told of an end that is not written down"
    await node.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"
    assert model.replies == 1
    await assert_invariants(world.database, idle=True)


async def test_frames_of_a_checkpoint_that_was_not_confirmed_are_kept_when_the_server_stops(world: World) -> None:
    """Whoever hands the run over stores what it believes not to be stored: the fragments of the reply. The checkpoint
    has stored them together with the return of the tool."""
    first, second = world.node(WorkerSettings(drain_s=0.0)), world.node()
    first.database.lose_write(3, "after", times=1_000)  # the reply, and the return of a tool that does not exist
    accepted = await first.send("[[call:missing {}]]", background=True, stream_tokens=True)
    await eventually(lambda: first.database.lost > 1)
    await first.worker.drain()
    await first.die()
    await second.take_over_all()
    await second.worker.stopped(accepted.run.id)
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_acceptance_whose_connection_was_lost_is_stored_once_and_not_refused(
    world: World, when: Literal["before", "after"]
) -> None:
    """`after`: it was stored, and the second try finds that out."""
    node = world.node()
    node.database.lose_write(1, when)
    run = await node.ask("hello")
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    assert [row.role for row in await world.window()] == ["system", "user", "assistant"]
    await assert_invariants(world.database, idle=True)


async def test_an_acceptance_that_was_not_committed_twice_is_refused_and_leaves_nothing(world: World) -> None:
    node = world.node()
    node.database.lose_write(1, "before", times=2)
    with pytest.raises(DatabaseError):
        await node.send("hello")
    assert [row.role for row in await world.window()] == ["system"]
    assert (await node.ask("hello")).stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


@pytest.mark.slow
async def test_a_sender_that_is_cancelled_at_any_moment_does_not_block_its_thread(world: World) -> None:
    node = world.node()
    for turns in range(1, 40):
        thread = await world.add_thread()
        sending = asyncio.create_task(node.send("hello", thread=thread))
        for _ in range(turns):
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        # What the sender had under way may still be written. Its run ends by itself, well before its lease would.
        assert (await node.ask("hello again", thread=thread, wait_s=10)).stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


async def test_a_stuck_checkpoint_keeps_no_other_run_waiting(world: World) -> None:
    node = world.node()
    text = "[[tokens:50]] [[delay:0.002]] hello"
    stuck = await node.send(text, thread=await world.add_thread(), background=True, stream_tokens=True)
    other = await node.send(text, thread=await world.add_thread(), background=True, stream_tokens=True)
    assert stuck.stream is not None
    assert other.stream is not None
    await stuck.stream.storing.acquire()  # as a checkpoint does that hangs in the database
    await other.stream.changed()
    async with asyncio.timeout(30):
        await node.streams.flush([stuck.run.id, other.run.id])
        await node.worker.stopped(other.run.id)
    assert (await world.run(other.run.id)).stop_reason == "end_turn"
    stuck.stream.storing.release()
    await node.worker.stopped(stuck.run.id)


async def test_a_window_is_not_remembered_over_a_tool_return_that_another_server_placed(world: World) -> None:
    first, second = world.node(), world.node()
    begun, hold_open = asyncio.Event(), asyncio.Event()

    async def slow(call: OpenCall) -> ToolReturn:
        begun.set()
        await hold_open.wait()
        return ToolReturn(call.call.id, "guarded", "success", "x")

    world.tools.answers["guarded"] = slow
    await first.ask("call the guarded tool")
    hold = await world.pending()
    assert hold is not None
    accepted = await first.send("and also this", decisions=[Approve(hold.hold.asked_ids[0])])
    await begun.wait()
    await world.database.write(lambda tx: runs.ask_cancel(tx, accepted.run.id, world.clock.now_us()))
    assert await second.take_over_all() == 1
    await second.worker.stopped(accepted.run.id)
    await first.worker.renew_leases()
    await first.worker.stopped(accepted.run.id)
    end = (await world.database.read(lambda tx: threads.head(tx, world.agent_id))).end
    remembered = first.worker.windows.of(world.agent_id, end)
    assert remembered is None or remembered == await world.window()


async def test_a_message_waits_in_line_for_a_thread_that_another_server_drives(world: World) -> None:
    first, second = world.node(), world.node()
    busy = await first.send("call the slow tool")
    await world.tools.waiting.wait()
    with pytest.raises(Busy):
        await second.send("no time to wait")
    waiting = asyncio.create_task(second.send("me next", wait_s=60))
    await asyncio.sleep(0)
    world.tools.let_go.set()
    accepted = await waiting
    await second.worker.stopped(accepted.run.id)
    assert (await world.run(busy.run.id)).stop_reason == "end_turn"
    assert (await world.run(accepted.run.id)).stop_reason == "end_turn"


async def test_a_process_that_takes_over_its_own_run_ends_the_drive_under_the_older_lease(world: World) -> None:
    """As one does that was stopped for longer than its lease."""
    node = world.node()
    accepted = await node.send("call the slow tool", background=True, stream_tokens=True)
    await world.tools.waiting.wait()
    owned = node.worker._owned.pop(accepted.run.id)  # a sweep that runs before the acceptance is known to the worker
    await world.database.write(lambda tx: leases.expire_other_leases(tx, "nobody"))
    assert await node.worker.recover() == 1
    world.tools.let_go.set()
    owned.scope.cancel("lease_lost")
    await owned.stopped.wait()
    await node.worker.stopped(accepted.run.id)
    run = await world.run(accepted.run.id)
    assert (run.status, run.stop_reason, run.lease) == ("completed", "end_turn", 2)
    assert await node.replay(accepted.run.id)
    await assert_invariants(world.database, idle=True)

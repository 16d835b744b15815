"""Who owns a run: leases, recovery, handing over, and the cancels that nobody pushed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import delete, update

from holdfast.actions.messages.send import Accepted
from holdfast.core.frames import ErrorFrame, StopFrame
from holdfast.core.messages import Approve, text_of
from holdfast.engine.worker import WorkerSettings
from holdfast.errors import HandedOver, ShuttingDown
from holdfast.store import agents, leases, runs
from holdfast.store.tables import run_events
from holdfast.store.tables import runs as run_rows
from holdfast.store.transaction import DatabaseError, Job, Transaction

from ..invariants import assert_invariants, take_snapshot
from ..scenario import Node, World, eventually


async def expire_leases(world: World) -> None:
    async def job(tx: Transaction) -> None:
        await tx.execute(update(run_rows).values(lease_expires_us=1).where(run_rows.c.lease_owner.is_not(None)))

    await world.database.write(job)


async def spoil_journal(world: World, run_id: str, text: str | None) -> None:
    async def job(tx: Transaction) -> None:
        this = run_events.c.run_id == run_id
        spoilt = update(run_events).where(this).values(event=text)
        await tx.execute(delete(run_events).where(this) if text is None else spoilt)

    await world.database.write(job)


async def stalled(node: Node, **options: Any) -> str:
    accepted = await node.send("[[stall]] hello", **options)
    model = node.catalog.offline.model
    await eventually(lambda: model.open_streams == 1)
    return accepted.run.id


# --- recovery --------------------------------------------------------------------------------------------------------


async def test_a_run_whose_process_died_is_carried_on_by_the_next(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("call the slow_lookup tool")).run.id
    await world.tools.waiting.wait()
    await first.die()
    assert await second.take_over_all() == 1
    world.tools.let_go.set()
    await second.worker.stopped(run_id)
    run = await world.run(run_id)
    assert (run.status, run.stop_reason, run.lease) == ("completed", "end_turn", 2)
    assert sum(world.tools.begun.values()) == 2, "a retry-safe tool was run again"
    assert len(world.tools.begun) == 1, "under the same key"
    await assert_invariants(world.database, idle=True)


async def test_a_tool_that_may_not_be_repeated_is_not_and_the_model_is_told(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("call the slow tool")).run.id
    await world.tools.waiting.wait()
    await first.die()
    await second.take_over_all()
    await second.worker.stopped(run_id)
    assert sum(world.tools.begun.values()) == 1
    rows = [row for row in await world.window() if row.role == "tool"]
    assert "outcome is unknown" in str(rows[0].returns[0].content)
    assert (await world.run(run_id)).stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


async def test_a_reply_that_is_on_record_is_not_paid_for_twice(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("call the slow_lookup tool")).run.id
    await world.tools.waiting.wait()
    await first.die()
    await second.take_over_all()
    world.tools.let_go.set()
    await second.worker.stopped(run_id)
    snapshot = await assert_invariants(world.database, idle=True)
    assert snapshot.states[run_id].model_calls == 2
    assert [step.number for step in snapshot.steps.values()] == [1, 2]


async def test_a_run_with_a_living_owner_is_left_alone(world: World, node: Node) -> None:
    run_id = await stalled(node)
    other = world.node()
    assert await other.worker.recover() == 0
    assert (await world.run(run_id)).lease == 1


async def test_a_worker_does_not_recover_what_it_drives_itself(world: World, node: Node) -> None:
    run_id = await stalled(node)
    await expire_leases(world)
    assert await node.worker.recover() == 0
    assert await node.take_over_all() == 0
    assert (await world.run(run_id)).lease == 1


async def test_two_recoveries_at_once_claim_a_run_once(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first)
    await first.die()
    assert sum(await asyncio.gather(*(second.take_over_all() for _ in range(3)))) == 1
    assert (await world.run(run_id)).lease == 2
    await second.die()


async def test_many_interrupted_runs_are_taken_over_some_at_a_time(world: World) -> None:
    first, second = world.node(), world.node()
    for _ in range(22):
        await first.send("[[stall]] hello", thread=await world.add_thread())
    await first.die()
    assert await second.take_over_all() == 16
    assert await second.worker.recover() == 6
    assert await second.worker.recover() == 0
    await second.die()


async def test_a_cancel_that_was_asked_while_nobody_drove_the_run_is_carried_out_at_recovery(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first)
    await first.die()
    await world.database.write(lambda tx: runs.ask_cancel(tx, run_id, 5))
    await second.take_over_all()
    await second.worker.stopped(run_id)
    assert (await world.run(run_id)).status == "cancelled"
    assert second.catalog.offline.model.open_streams == 0
    await assert_invariants(world.database, idle=True)


async def test_a_cancel_of_a_run_whose_owner_is_dead_ends_it(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first)
    await first.die()
    await expire_leases(world)
    assert await second.cancel.of_thread(world.agent_id) == {run_id: "cancelled"}
    await assert_invariants(world.database, idle=True)


@pytest.mark.parametrize("text", ['{"event":"exploded"}', "not json", '{"event":"resumed","by_run":"run-2"}', None])
async def test_a_run_whose_journal_cannot_be_read_fails_with_a_reason_and_frees_its_thread(
    world: World, text: str | None
) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first, background=True)
    await first.die()
    await spoil_journal(world, run_id, text)
    assert await second.take_over_all() == 0
    run = await world.run(run_id)
    assert (run.status, run.stop_reason) == ("failed", "error")
    assert run.metadata["error"]["run_id"] == run_id
    assert [type(frame) for _, frame in await second.replay(run_id)] == [StopFrame, ErrorFrame]
    agent = await world.database.read(lambda tx: agents.get(tx, world.agent_id))
    assert agent.last_stop_reason == "error"
    snapshot = await take_snapshot(world.database)
    assert {step.status for step in snapshot.steps.values()} == {"failed"}
    assert (run.total_duration_ns or 0) > 0
    assert all((step.step_ns or 0) > 0 for step in snapshot.steps.values())
    assert (await second.ask("hello")).stop_reason == "end_turn"


async def test_who_saw_more_than_is_stored_of_a_run_that_cannot_be_read_is_told_its_end(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("[[stall_after:4]] [[say:a b c d e f]]", background=True, stream_tokens=True)).run.id
    stream = first.streams.live(run_id)
    assert stream is not None
    while stream.last < 4:
        await stream.changed()
    await first.die()
    await spoil_journal(world, run_id, "not json")
    assert await second.take_over_all() == 0
    assert [type(frame) for _, frame in await second.replay(run_id, stream.last)] == [StopFrame, ErrorFrame]


async def test_a_run_that_cannot_be_read_and_was_taken_over_meanwhile_is_left_to_its_new_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first)
    await first.die()
    await spoil_journal(world, run_id, "not json")
    read_long = second.database.read_long

    async def overtaken(job: Job[Any]) -> Any:
        await world.database.write(lambda tx: leases.claim(tx, run_id, "worker-other", 2**62, 1))
        return await read_long(job)

    monkeypatch.setattr(second.database, "read_long", overtaken)
    assert await second.take_over_all() == 0
    assert (await world.run(run_id)).is_active


async def test_trouble_with_the_database_is_not_held_against_the_run(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first)
    await first.die()
    second.database.fail_reads_after(1)
    with pytest.raises(DatabaseError):
        await second.take_over_all()
    assert (await world.run(run_id)).is_active


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_has_lost_its_lease_stops_and_writes_nothing(world: World) -> None:
    old, new = world.node(), world.node()
    run_id = (await old.send("call the slow_lookup tool", background=True, stream_tokens=True)).run.id
    await world.tools.waiting.wait()
    await expire_leases(world)
    assert await new.worker.recover() == 1
    await eventually(lambda: len(world.tools.in_flight) == 1 and sum(world.tools.begun.values()) == 2)
    before = await take_snapshot(world.database)
    await old.worker.renew_leases()
    await old.worker.stopped(run_id)
    assert await take_snapshot(world.database) == before
    assert sum(world.tools.killed.values()) == 1
    world.tools.let_go.set()
    await new.worker.stopped(run_id)
    assert (await world.run(run_id)).stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


async def test_a_worker_that_does_not_know_yet_that_its_lease_is_gone_is_fenced_out_at_its_next_checkpoint(
    world: World,
) -> None:
    old, new = world.node(), world.node()
    run_id = (await old.send("call the slow_lookup tool", background=True, stream_tokens=True)).run.id
    await world.tools.waiting.wait()
    await expire_leases(world)
    await new.worker.recover()
    world.tools.let_go.set()
    await asyncio.gather(old.worker.stopped(run_id), new.worker.stopped(run_id))
    run = await world.run(run_id)
    assert (run.stop_reason, run.lease) == ("end_turn", 2)
    await assert_invariants(world.database, idle=True)


async def test_renewing_tells_of_a_cancel_whose_push_was_lost(world: World, node: Node) -> None:
    run_id = await stalled(node)
    await world.database.write(lambda tx: runs.ask_cancel(tx, run_id, 5))
    await node.worker.renew_leases()
    await node.worker.stopped(run_id)
    assert (await world.run(run_id)).status == "cancelled"


async def test_a_run_that_the_worker_has_lost_track_of_is_not_renewed_for_ever(world: World, node: Node) -> None:
    lost = await stalled(node)
    other = (await node.send("[[stall]]", thread=await world.add_thread())).run.id
    await expire_leases(world)
    del node.worker._owned[lost]
    await node.worker.renew_leases()
    now_us = world.clock.now_us()
    expired = await world.database.read(lambda tx: leases.waiting(tx, now_us, 10))
    assert expired == [lost]
    assert other != lost
    node.worker._owned[lost] = node.worker._owned[other]


# --- handing over ----------------------------------------------------------------------------------------------------


async def test_draining_hands_over_what_does_not_finish_in_time_and_writes_nothing_about_it(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await stalled(first, background=True)
    before = await take_snapshot(world.database)
    await first.worker.drain()
    after = await take_snapshot(world.database)
    assert after.journals == before.journals
    assert after.messages == before.messages
    run = await world.run(run_id)
    assert run.is_active
    assert run.lease_owner is None
    assert await second.worker.recover() == 1
    assert await second.cancel.one(run_id) == "cancelled"
    await assert_invariants(world.database, idle=True)


async def test_draining_waits_for_what_is_about_to_finish(world: World) -> None:
    node = world.node(WorkerSettings(lease_ttl_s=600, drain_s=30))
    run_id = (await node.send("call the slow tool")).run.id
    await world.tools.waiting.wait()
    drained = asyncio.create_task(node.worker.drain())
    await asyncio.sleep(0)
    world.tools.let_go.set()
    await drained
    assert (await world.run(run_id)).stop_reason == "end_turn"


async def test_a_draining_worker_takes_no_new_requests(world: World, node: Node) -> None:
    await node.worker.drain()
    with pytest.raises(ShuttingDown):
        await node.send("hello")
    assert not (await take_snapshot(world.database)).runs


async def test_a_tool_that_returned_while_the_worker_was_told_to_go_is_on_record(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("call the slow tool and the slow_lookup tool")).run.id
    await eventually(lambda: len(world.tools.in_flight) == 2)
    world.tools.let_go.set()
    await first.worker.drain()
    await second.worker.recover()
    await second.worker.stopped(run_id)
    assert (await world.run(run_id)).stop_reason == "end_turn"
    rows = [row for row in await world.window() if row.role == "tool"]
    assert {part.status for part in rows[0].returns} == {"success"}
    assert set(world.tools.begun.values()) == {1}
    await assert_invariants(world.database, idle=True)


# --- standing in line ------------------------------------------------------------------------------------------------


async def thread_queue(world: World, node: Node, text: str, place: int) -> asyncio.Task[Accepted]:
    """Sends what has to wait, and returns when it stands at that place of the line."""
    waiting = asyncio.create_task(node.send(text, wait_s=30))
    await eventually(lambda: node.worker.thread_queues.length(world.agent_id) == place)
    return waiting


async def test_requests_that_wait_for_a_busy_thread_go_in_the_order_they_came_in(world: World, node: Node) -> None:
    await node.send("call the slow tool")
    await world.tools.waiting.wait()
    waiting = [await thread_queue(world, node, f"number {number}", place=number + 1) for number in range(3)]
    world.tools.let_go.set()
    for accepted in await asyncio.gather(*waiting):
        await node.worker.stopped(accepted.run.id)
    said = [text_of(row.parts) for row in await world.window() if row.role == "user"]
    assert said == ["call the slow tool", "number 0", "number 1", "number 2"]
    assert node.worker.thread_queues.length(world.agent_id) == 0


async def test_whoever_gives_up_waiting_does_not_leave_the_line_blocked(world: World, node: Node) -> None:
    await node.send("call the slow tool")
    await world.tools.waiting.wait()
    first = await thread_queue(world, node, "gave up", place=1)
    second = await thread_queue(world, node, "still here", place=2)
    first.cancel()
    world.tools.let_go.set()
    await node.worker.stopped((await second).run.id)
    await asyncio.gather(first, return_exceptions=True)
    assert node.worker.thread_queues.length(world.agent_id) == 0
    await assert_invariants(world.database, idle=True)


async def test_an_approval_given_to_any_worker_carries_on_the_run_of_another(world: World) -> None:
    first, second = world.node(), world.node()
    await first.ask("call the guarded tool")
    await first.die()
    hold = await world.pending()
    assert hold is not None
    run = await second.ask(decisions=[Approve(call_id) for call_id in hold.hold.asked_ids])
    assert run.stop_reason == "end_turn"
    await assert_invariants(world.database, idle=True)


async def test_whoever_follows_a_run_elsewhere_that_has_shown_nothing_is_told_that_this_server_stops(
    world: World, node: Node
) -> None:
    accepted = await node.send("[[stall]]")
    other = world.node()
    await other.worker.drain()
    batches: list[object] = []
    with pytest.raises(HandedOver):
        async for batch in other.reader.follow(accepted.run):
            batches.append(batch)
    assert batches == []

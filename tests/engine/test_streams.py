"""Listeners: live, late, and long after. What is stored of a stream, and by whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from holdfast.core.failures import RetryPolicy
from holdfast.core.frames import (
    AbandonedFrame,
    CompactionFrame,
    Frame,
    ReasoningFrame,
    RetryFrame,
    StopFrame,
    TextFrame,
    UsageFrame,
)
from holdfast.core.usage import Usage
from holdfast.engine import streams as streams_module
from holdfast.engine.streams import Numbered, RunStream, Streams, without_abandoned
from holdfast.errors import HandedOver
from holdfast.store import frames, leases, runs

from ..invariants import assert_invariants
from ..scenario import Node, World, eventually

END: tuple[Frame, ...] = (StopFrame("end_turn"), UsageFrame(Usage(), 1))


def said(text: str, message_id: str = "message-1") -> TextFrame:
    return TextFrame(message_id, 0, "step-1", 0, text)


async def collect(stream: RunStream, after: int = 0) -> list[Numbered]:
    return [numbered async for batch in stream.follow(after) for numbered in batch]


@pytest.fixture
async def run_id(world: World, node: Node) -> str:
    """A background run that is held up in its model call, so that the test may play its worker."""
    accepted = await node.send("[[stall]]", background=True, stream_tokens=True)
    await node.die()
    return accepted.run.id


async def test_every_listener_gets_every_frame_in_order_numbered_from_one() -> None:
    stream = RunStream("run-1")
    early = [asyncio.create_task(collect(stream)) for _ in range(2)]
    await asyncio.sleep(0)
    stream.publish(said("a"))
    await asyncio.sleep(0)
    stream.publish(said("b"), *END)
    stream.finish()
    expected = list(enumerate([said("a"), said("b"), *END], 1))
    assert [await listener for listener in early] == [expected, expected]
    assert await collect(stream) == expected


async def test_a_listener_may_begin_anywhere_and_one_beyond_the_end_is_not_kept_waiting() -> None:
    stream = RunStream("run-1")
    stream.publish(said("a"), said("b"), *END)
    stream.finish()
    assert [number for number, _ in await collect(stream, 2)] == [3, 4]
    assert await collect(stream, 99) == []


async def test_a_listener_that_does_not_read_cannot_hold_up_the_run() -> None:
    stream = RunStream("run-1")
    slow = stream.follow()
    stream.publish(said("a"))
    assert len(await anext(slow)) == 1
    for _ in range(1_000):
        stream.publish(said("x"))
    assert len(await anext(slow)) == 1_000
    await slow.aclose()


async def test_what_is_published_after_the_lease_may_have_run_out_is_shown_once_it_is_known_to_be_held() -> None:
    stream = RunStream("run-1")
    stream.publish(said("a"))
    stream.lease_held(until_s=time.monotonic())
    stream.publish(said("b"), said("c"))
    listener = stream.follow()
    assert list(await anext(listener)) == [(1, said("a"))]
    waiting = asyncio.create_task(asyncio.wait_for(anext(listener), 10))
    await asyncio.sleep(0)
    stream.publish(said("d"))
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.lease_held(until_s=time.monotonic() + 600)
    assert list(await waiting) == [(2, said("b")), (3, said("c")), (4, said("d"))]
    stream.publish(said("e"))
    assert list(await anext(listener)) == [(5, said("e"))]
    await listener.aclose()


async def test_what_is_published_after_the_lease_ran_out_is_shown_to_nobody_when_the_run_is_let_go() -> None:
    stream = RunStream("run-1")
    stream.publish(said("a"))
    stream.lease_held(until_s=time.monotonic())
    stream.publish(said("b"))
    stream.finish()
    assert await collect(stream) == [(1, said("a"))]


async def test_frames_that_were_stored_are_shown_because_the_lease_was_held() -> None:
    stream = RunStream("run-1")
    stream.lease_held(until_s=time.monotonic())
    stream.publish(said("a"))
    stream.mark_stored(1)
    stream.finish()
    assert await collect(stream) == [(1, said("a"))]


async def test_a_late_listener_is_not_shown_an_attempt_that_was_given_up() -> None:
    stream = RunStream("run-1")
    stream.publish(said("half", "message-1"), AbandonedFrame("message-1"), said("whole", "message-2"), *END)
    stream.finish()
    assert await collect(stream) == [(3, said("whole", "message-2")), (4, END[0]), (5, END[1])]


async def test_a_listener_is_not_woken_for_nothing_but_a_mark() -> None:
    stream = RunStream("run-1")
    stream.publish(AbandonedFrame("message-1"))
    stream.finish()
    assert [batch async for batch in stream.follow()] == []


def test_marks_that_are_not_stored_yet_count_too() -> None:
    shown: Sequence[Numbered] = [(1, said("half")), (2, said("whole", "message-2"))]
    assert without_abandoned(shown) == list(shown)
    assert without_abandoned(shown, [AbandonedFrame("message-1")]) == [(2, said("whole", "message-2"))]


async def test_flushed_frames_can_be_replayed_and_are_stored_once(world: World, run_id: str) -> None:
    streams = Streams(world.database)
    stream = streams.open(run_id)
    stream.publish(said("a"), said("b"))
    await asyncio.gather(streams.flush([run_id]), streams.flush([run_id]))
    await streams.flush([run_id, "run-unknown"])
    stream.publish(said("c"))
    await streams.flush([run_id])
    rows = await world.database.read(lambda tx: frames.load(tx, run_id, 0))
    assert [(first, last) for first, last, _ in rows] == [(1, 2), (3, 3)]
    assert await streams.replay(run_id, 1) == [(2, said("b")), (3, said("c"))]


async def test_a_worker_that_has_lost_its_lease_stores_no_frames(world: World, run_id: str) -> None:
    old, new = Streams(world.database), Streams(world.database)
    stale = old.open(run_id, 0, lease=1)
    stale.publish(said("stale"))
    claimed = await world.database.write(lambda tx: leases.claim(tx, run_id, "worker-new", 2**62, 1))
    assert claimed is not None
    await old.flush([run_id])
    fresh = new.open(run_id, 0, claimed.lease)
    fresh.publish(said("fresh"))
    await new.flush([run_id])
    assert await new.replay(run_id, 0) == [(1, said("fresh"))]
    assert stale.unstored()


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
async def test_of_two_leases_that_one_process_has_had_the_newer_is_followed(
    world: World, order: tuple[int, int]
) -> None:
    streams = Streams(world.database)
    opened = {lease: streams.open("run-1", lease=lease) for lease in order}
    assert streams.live("run-1") is opened[2]
    streams.end(opened[1])
    assert streams.live("run-1") is opened[2]
    assert not opened[2].finished
    streams.end(opened[2])
    assert streams.live("run-1") is None


async def test_one_lost_run_does_not_keep_the_frames_of_others_from_being_stored(world: World, run_id: str) -> None:
    node = world.node()
    other = await node.send("[[stall]]", thread=await world.add_thread(), background=True)
    await node.die()
    streams = Streams(world.database)
    streams.open(run_id, 0, lease=7).publish(said("stale"))
    streams.open(other.run.id, 0, lease=1).publish(said("mine"))
    async with asyncio.timeout(30):
        while not await streams.replay(other.run.id, 0):  # what the dead node had under way may have the row locked
            await streams.flush([run_id, other.run.id])
    assert await streams.replay(run_id, 0) == []
    assert await streams.replay(other.run.id, 0) == [(1, said("mine"))]


async def test_following_reads_what_is_stored_and_then_what_is_live(world: World, run_id: str) -> None:
    before, streams = Streams(world.database), Streams(world.database)
    before.open(run_id).publish(said("a"), said("b"))
    await before.flush([run_id])
    live = streams.open(run_id, 2)
    live.publish(said("c"))

    async def listen() -> list[Numbered]:
        return [numbered async for batch in streams.follow(run_id, 1) for numbered in batch]

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    live.publish(*END)
    streams.close(run_id)
    assert [number for number, _ in await listener] == [2, 3, 4, 5]


async def test_following_hides_stored_fragments_of_an_attempt_that_is_given_up_only_in_memory(
    world: World, run_id: str
) -> None:
    before, streams = Streams(world.database), Streams(world.database)
    before.open(run_id).publish(said("half"))
    await before.flush([run_id])
    live = streams.open(run_id, 1)
    live.publish(AbandonedFrame("message-1"), said("whole", "message-2"), *END)
    streams.close(run_id)  # as when the run ends while a listener still reads
    streams._live[run_id] = live
    shown = [frame async for batch in streams.follow(run_id) for _, frame in batch]
    assert shown == [said("whole", "message-2"), *END]


async def test_following_a_run_that_nobody_drives_ends_after_what_is_stored(world: World, run_id: str) -> None:
    streams = Streams(world.database)
    assert [batch async for batch in streams.follow(run_id)] == []


async def test_a_stored_stream_ends_with_its_last_frame(world: World, node: Node) -> None:
    run = await node.ask("hello", background=True, stream_tokens=True)
    full = await node.replay(run.id)
    assert isinstance(full[-1][1], UsageFrame)
    assert [number for number, _ in full] == list(range(1, len(full) + 1))
    for after in (0, 1, len(full) // 2, len(full) - 1, len(full), len(full) + 5):
        assert await world.node().replay(run.id, after) == full[after:]


async def half_told(node: Node) -> str:
    """A run whose first six events are stored, and whose reply stands still."""
    accepted = await node.send("[[stall_after:6]] hello", background=True, stream_tokens=True)
    stream = accepted.stream
    assert stream is not None
    while stream.last < 6:
        await stream.changed()
    await node.streams.flush([accepted.run.id])
    return accepted.run.id


async def test_a_reply_that_its_worker_did_not_live_to_finish_is_left_out_of_the_replay(world: World) -> None:
    first = world.node()
    run_id = await half_told(first)
    await first.die()
    second = world.node()
    await second.take_over_all()
    recovered = second.streams.live(run_id)
    assert recovered is not None
    while len(recovered.frames) < 7:
        await recovered.changed()
    await second.cancel.one(run_id)
    snapshot = await assert_invariants(world.database, idle=True)
    shown = [frame for _, frame in await second.replay(run_id)]
    ids = {frame.message_id for frame in shown if isinstance(frame, (TextFrame, ReasoningFrame))}
    assert len(ids) == 1
    assert ids <= set(snapshot.messages)
    assert any(isinstance(frame, AbandonedFrame) for _, frame in snapshot.frames[run_id])


async def test_who_heard_half_a_reply_before_its_worker_died_is_told_that_it_is_void(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await half_told(first)
    await first.die()
    heard = await second.replay(run_id)
    await second.take_over_all()
    model = second.catalog.offline.model
    await eventually(lambda: model.open_streams == 1)
    await second.cancel.one(run_id)
    rest = [frame for _, frame in await second.replay(run_id, heard[-1][0])]
    (told,) = [frame for frame in rest if isinstance(frame, RetryFrame)]
    assert rest[0] == told
    assert (told.attempt, told.max_attempts, told.retry_in_ms) == (1, 1, 0)
    assert set(told.abandoned_ids) >= {frame.message_id for _, frame in heard if isinstance(frame, ReasoningFrame)}
    snapshot = await assert_invariants(world.database, idle=True)
    assert not set(told.abandoned_ids) & set(snapshot.messages)


async def test_a_number_that_was_shown_is_never_given_to_something_else_even_when_a_crash_lost_what_had_it(
    world: World,
) -> None:
    first, second = world.node(), world.node()
    text = "[[no_reasoning]] [[stall_after:4]] [[say:one two three four five six]]"
    accepted = await first.send(text, background=True, stream_tokens=True)
    stream = accepted.stream
    assert stream is not None
    while stream.last < 4:
        await stream.changed()
    seen = stream.last
    await first.die()
    assert await second.replay(accepted.run.id) == []
    await second.take_over_all()
    recovered = second.streams.live(accepted.run.id)
    assert recovered is not None
    while len(recovered.frames) < 4:
        await recovered.changed()
    await second.cancel.one(accepted.run.id)
    told = await second.replay(accepted.run.id, after=seen)
    assert told == await second.replay(accepted.run.id)
    assert "".join(frame.text for _, frame in told if isinstance(frame, TextFrame)).startswith("one two")
    await assert_invariants(world.database, idle=True)


async def test_two_owners_who_die_before_they_have_stored_anything_show_different_numbers(world: World) -> None:
    nodes = [world.node() for _ in range(3)]
    text = "[[no_reasoning]] [[stall_after:4]] [[say:one two three four five six]]"
    run_id = (await nodes[0].send(text, background=True, stream_tokens=True)).run.id
    shown: list[int] = []
    for node in nodes:
        if shown:
            await node.take_over_all()
        stream = node.streams.live(run_id)
        assert stream is not None
        while len(stream.frames) < 4:
            await stream.changed()
        shown += range(stream.base + 1, stream.last + 1)
        assert shown == sorted(set(shown)), "a number was shown twice"
        if node is not nodes[-1]:
            await node.die()
    await nodes[-1].cancel.one(run_id)
    await assert_invariants(world.database, idle=True)


async def test_an_owner_that_lets_go_before_it_has_shown_anything_does_not_hide_that_the_one_before_it_died(
    world: World,
) -> None:
    world.retry_policy = RetryPolicy(retries=3, first_pause_s=60.0)
    dying, leaving, last = world.node(), world.node(), world.node()
    await dying.ask("[[say:fine]] remember")
    text = "[[say:fine]] [[usage:127000,10]] [[summary_error:rate_limit]]"
    run_id = (await dying.send(text, background=True, include_compaction_messages=True)).run.id
    shown = [await announced(dying, run_id)]
    await dying.die()
    await leaving.take_over_all()
    for owned in leaving.worker._owned.values():
        owned.scope.cancel("shutdown")  # sooner than its task begins
    await leaving.worker.drain()
    await last.worker.recover()
    shown.append(await announced(last, run_id))
    assert shown == sorted(set(shown)), "a number was shown twice"
    await last.cancel.one(run_id)
    await assert_invariants(world.database, idle=True)


async def announced(node: Node, run_id: str) -> int:
    """The number of the frame that announces a summary, once it is shown."""
    stream = node.streams.live(run_id)
    assert stream is not None
    while not (stream.frames and isinstance(stream.frames[-1], CompactionFrame)):
        await stream.changed()
    return stream.last


async def test_numbers_go_on_where_they_were_when_a_run_is_handed_over(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = (await first.send("[[stall_after:6]] hello", background=True, stream_tokens=True)).run.id
    stream = first.streams.live(run_id)
    assert stream is not None
    while stream.last < 6:
        await stream.changed()
    seen = stream.last
    await first.worker.drain()
    await second.worker.recover()
    recovered = second.streams.live(run_id)
    assert recovered is not None
    assert recovered.base == seen
    await second.cancel.one(run_id)


async def test_a_reader_that_wants_gaps_gets_what_came_meanwhile_at_once_and_the_end_without_waiting() -> None:
    stream = RunStream("run-1")
    batches = stream.follow(gap_s=30)
    stream.publish(said("a"))
    assert [seq for seq, _ in await anext(batches)] == [1]
    for letter in "bc":
        stream.publish(said(letter))
    waiting = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    stream.publish(said("d"))
    assert not waiting.done()
    stream.finish()
    assert [seq for seq, _ in await waiting] == [2, 3, 4]
    assert [batch async for batch in batches] == []


async def test_a_gap_that_has_passed_delays_nothing() -> None:
    stream = RunStream("run-1")
    batches = stream.follow(gap_s=0.001)
    for letter in "ab":
        stream.publish(said(letter))
        assert len(await anext(batches)) == 1
    await batches.aclose()


async def test_stored_frames_of_a_background_run_do_not_pile_up_in_memory(
    world: World, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 10_000)
    streams = Streams(world.database)
    stream = streams.open(run_id, background=True)
    for number in range(100):
        stream.publish(*(said(f"{number}.{part} " + "x" * 100) for part in range(10)))
        await streams.flush([run_id])
        assert len(stream.frames) < 100
    assert stream.last == 1_000
    assert len(await streams.replay(run_id, 0)) == 1_000


async def test_a_slow_listener_is_given_what_was_dropped_from_memory_with_the_same_numbers(
    world: World, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 0)
    monkeypatch.setattr(streams_module, "ROWS_AT_ONCE", 2)
    streams = Streams(world.database)
    stream = streams.open(run_id, background=True)
    slow = stream.follow()
    expected = [said(str(number)) for number in range(30)]
    stream.publish(*expected[:3])
    got = list(await anext(slow))
    for start in range(3, 30, 3):
        stream.publish(*expected[start : start + 3])
        await streams.flush([run_id])
    assert stream.base > 20
    stream.publish(*END)
    late = [numbered async for batch in _until_end(streams, run_id) for numbered in batch]
    streams.close(run_id)
    async for batch in slow:
        got += batch
    assert got == list(enumerate([*expected, *END], 1))
    assert late == got


async def _until_end(streams: Streams, run_id: str) -> AsyncGenerator[Sequence[Numbered]]:
    async with aclosing(streams.follow(run_id)) as batches:
        async for batch in batches:
            yield batch
            if batch[-1][1] == END[-1]:
                return


async def test_a_listener_whose_frames_were_removed_is_told_that_it_has_not_seen_all(
    world: World, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 0)
    streams = Streams(world.database)
    stream = streams.open(run_id, background=True)
    for text in ("a", "b", "c"):
        stream.publish(said(text))
        await streams.flush([run_id])
    await world.database.write(lambda tx: runs.delete(tx, run_id))
    with pytest.raises(HandedOver):
        await collect(stream)


async def test_fragments_that_were_dropped_from_memory_are_known_when_their_attempt_is_given_up(
    world: World, run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 0)
    streams = Streams(world.database)
    stream = streams.open(run_id, background=True)
    for message_id in ("message-1", "message-2", "message-3"):
        stream.publish(said("half", message_id))
        await streams.flush([run_id])
    assert stream.base == 2
    assert list(stream.fragment_ids()) == ["message-1", "message-2", "message-3"]


async def test_a_foreground_run_keeps_all_its_frames_because_nobody_stores_them(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 0)
    accepted = await node.send("[[say:one two three four]] call the note tool", stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    assert accepted.stream is not None
    assert accepted.stream.base == 0
    assert [number for number, _ in await collect(accepted.stream)] == list(range(1, accepted.stream.last + 1))


async def test_a_background_run_with_little_memory_tells_everything(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "MOST_BYTES", 0)
    accepted = await node.send("call the note tool", background=True, stream_tokens=True)
    await node.worker.stopped(accepted.run.id)
    assert accepted.stream is not None
    assert accepted.stream.base > 0
    told = await collect(accepted.stream)
    assert told == await node.replay(accepted.run.id)
    await assert_invariants(world.database, idle=True)

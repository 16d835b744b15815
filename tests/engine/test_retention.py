"""Frames are kept for a while after a run has ended, then they make room. So do archives that are deleted, and the
places of deleted items in their lists. Sums of bytes in the order in which runs ended tell what has to go.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from holdfast.engine.clock import SystemClock
from holdfast.engine.retention import Retention, RetentionPolicy, SizeLimit
from holdfast.store import archives, frames, journal, passages, tombstones
from holdfast.store import retention as stored
from holdfast.store.retention import Place, Remains, Sizes
from holdfast.store.tables import frames as frame_table
from holdfast.store.tables import tombstones as tombstone_table
from holdfast.store.transaction import Database, Transaction

from ..served import ServedClient, served


async def stream_in_background(client: ServedClient) -> str:
    agent = await client.agent()
    body = {"messages": [{"role": "user", "content": "hello"}], "background": True}
    first = (await client.events(f"/v1/agents/{agent.id}/messages/stream", body))[0]
    assert isinstance(first, dict)
    return first["run_id"]


async def test_frames_of_a_run_that_ended_long_ago_are_removed_and_its_messages_stay(tmp_path: Path) -> None:
    async with served(tmp_path, frame_retention_s=0) as client:
        run_id = await stream_in_background(client)

        await client.deps.retention.forget_old_frames()

        assert await client.deps.database.read(lambda tx: frames.load(tx, run_id, 0)) == []
        assert "EXPIRED" in await client.refusal(410, "POST", f"/v1/runs/{run_id}/stream")
        assert len((await client.runs.messages.list(run_id)).items) == 3


async def test_frames_of_a_run_that_ended_lately_can_be_read_again(tmp_path: Path) -> None:
    async with served(tmp_path, frame_retention_s=3600) as client:
        run_id = await stream_in_background(client)

        await client.deps.retention.forget_old_frames()

        assert (await client.events(f"/v1/runs/{run_id}/stream"))[-1] == "[DONE]"


async def test_a_run_whose_journal_was_removed_can_still_be_asked_about(tmp_path: Path) -> None:
    async with served(tmp_path, run_retention_s=0.000001) as client:
        run_id = await stream_in_background(client)

        await client.deps.retention.forget_old_journals()

        assert await client.deps.database.read(lambda tx: journal.load(tx, run_id)) == []
        why = await client.ask("GET", f"/v1/runs/{run_id}/why")
        assert "journal was removed after the retention time" in why["summary"]
        assert (await client.ask("GET", f"/v1/runs/{run_id}/metrics"))["num_steps"] == 1
        assert (await client.ask("GET", f"/v1/runs/{run_id}"))["status"] == "completed"
        assert len((await client.runs.messages.list(run_id)).items) == 3


async def test_without_a_retention_journals_are_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        run_id = await stream_in_background(client)
        await client.deps.retention.forget_old_journals()
        assert await client.deps.database.read(lambda tx: journal.load(tx, run_id))


async def test_an_archive_whose_deletion_was_cut_short_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "PASSAGES_AT_ONCE", 1)
    async with served(tmp_path) as client:
        agent = await client.agent()
        for text in ("one", "two", "three"):
            [passage] = await client.agents.passages.create(agent.id, text=text)
        archive_id = str(passage.archive_id)
        await client.deps.database.write(lambda tx: archives.mark_deleted(tx, archive_id, 1))
        assert "not found" in await client.refusal(404, "GET", f"/v1/archives/{archive_id}")

        await client.deps.retention.clear_deleted_archives()

        assert not await client.deps.database.read(lambda tx: archives.is_taken(tx, archive_id))
        assert await client.deps.database.read(lambda tx: passages.find(tx, str(passage.id))) is None


async def test_a_list_goes_on_from_a_deleted_item_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "ROWS_AT_ONCE", 1)
    async with served(tmp_path) as client:
        made = [(await client.blocks.create(label="human", value="")).id for _ in range(3)]
        for block_id in made[:2]:
            await client.blocks.delete(block_id)
        await client.deps.retention.forget_old_tombstones()
        for block_id in made[:2]:
            assert [one["id"] for one in await client.ask("GET", "/v1/blocks/", after=block_id)] == [made[2]]

        earlier = tombstone_table.c.deleted_us - tombstones.KEPT_US - 1
        await client.deps.database.write(lambda tx: tx.execute(update(tombstone_table).values(deleted_us=earlier)))
        await client.deps.retention.forget_old_tombstones()
        for block_id in made[:2]:
            assert block_id in await client.refusal(404, "GET", "/v1/blocks/", after=block_id)


async def test_what_is_too_much_goes_oldest_first_and_the_rest_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.retention.SETTLED_S", 0)
    async with served(tmp_path, frame_retention_bytes=2**40) as client:
        made = [await stream_in_background(client) for _ in range(4)]
        database = client.deps.database
        before = [await _frames_of(database, run_id) for run_id in made]
        room = RetentionPolicy(most_bytes={"frames": before[2] + before[3]}, settled_s=0)
        retention = Retention(database, client.deps.clock, room)

        await retention.make_room()

        assert [await _frames_of(database, run_id) for run_id in made] == [0, 0, *before[2:]]
        assert "EXPIRED" in await client.refusal(410, "POST", f"/v1/runs/{made[0]}/stream")
        assert (await client.events(f"/v1/runs/{made[3]}/stream"))[-1] == "[DONE]"

        made.append(await stream_in_background(client))
        await retention.make_room()
        assert await _frames_of(database, made[2]) == 0
        assert await _frames_of(database, made[4]) > 0


async def test_a_stream_that_is_being_removed_is_gone_not_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.retention.SETTLED_S", 0)
    monkeypatch.setattr(stored, "ROWS_AT_ONCE", 1)
    async with served(tmp_path, frame_retention_bytes=2**40) as client:
        run_id = await stream_in_background(client)
        database = client.deps.database
        [(_, last, blob)] = await database.read(lambda tx: frames.load(tx, run_id, 0))
        *begin, end = msgspec.msgpack.decode(blob)
        encode = msgspec.msgpack.encode
        shorter = (
            update(frame_table).values(last_seq=last - 1, frames=encode(begin)).where(frame_table.c.run_id == run_id)
        )
        await database.write(lambda tx: tx.execute(shorter))
        await database.write(lambda tx: frames.append(tx, run_id, last, last, encode([end])))
        assert (await client.events(f"/v1/runs/{run_id}/stream"))[-1] == "[DONE]"

        swept = await database.write(lambda tx: stored.sweep_for_room(tx, "frames", 2**62, Place()))
        assert swept.rows == 1
        assert await _frames_of(database, run_id) > 0
        assert "make room" in await client.refusal(410, "POST", f"/v1/runs/{run_id}/stream")


async def test_a_run_is_measured_once_and_again_only_before_something_goes_on_an_old_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    sizes = stored.sizes

    async def counting(tx: Transaction, remains: Remains, before_us: int, place: Place) -> Sizes:
        found = await sizes(tx, remains, before_us, place)
        measured.append(len(found.runs))
        return found

    monkeypatch.setattr(stored, "sizes", counting)
    async with served(tmp_path) as client:
        made = [await stream_in_background(client) for _ in range(3)]
        database, clock = client.deps.database, FakeClock(client.deps.clock.now_us())
        each = await _frames_of(database, made[0])
        retention = Retention(database, clock, RetentionPolicy(most_bytes={"frames": 4 * each}, settled_s=-3_600))
        for _ in range(2):
            await retention.make_room()
        assert measured == [3, 0]

        agent_id = (await client.ask("GET", f"/v1/runs/{made[0]}"))["agent_id"]
        await client.agents.delete(agent_id)
        made += [await stream_in_background(client) for _ in range(2)]
        clock.us += 2 * 3_600_000_000
        await retention.make_room()

        assert measured == [3, 0, 2, 4], "there seemed to be five, and four are left"
        assert all([await _frames_of(database, run_id) for run_id in made[1:]])


async def _frames_of(database: Database, run_id: str) -> int:
    return sum(len(blob) for _, _, blob in await database.read(lambda tx: frames.load(tx, run_id, 0)))


class FakeClock(SystemClock):
    def __init__(self, us: int) -> None:
        self.us = us

    def now_us(self) -> int:
        return self.us


def ended(*sizes: int, after: int = 0) -> list[tuple[Place, int]]:
    return [(Place(after + number, f"run-{after + number}"), size) for number, size in enumerate(sizes, 1)]


def test_nothing_goes_while_there_is_room() -> None:
    limit = SizeLimit(100)
    limit.add(ended(50, 50))
    assert limit.excess() is None
    assert limit.total == 100
    assert limit.counted.us == 2


def test_the_oldest_go_first_and_no_more_than_necessary() -> None:
    limit = SizeLimit(100)
    limit.add(ended(50, 40, 30, 20))
    assert limit.excess() == Place(1, "run-1")
    assert limit.total == 90
    limit.add(ended(60, after=4))
    assert limit.excess() == Place(3, "run-3")
    assert limit.total == 80


def test_a_count_can_begin_anew_from_what_is_left() -> None:
    limit = SizeLimit(100)
    limit.add(ended(90, 90))
    assert limit.excess() == Place(1, "run-1")
    limit.swept = Place(1, "run-1")
    limit.recount()
    assert (limit.total, limit.counted) == (0, Place(1, "run-1"))


@given(st.lists(st.lists(st.integers(0, 300)), max_size=20), st.integers(64, 10_000))
def test_what_is_kept_fits_and_is_nearly_as_much_as_could_be(parts: list[list[int]], most: int) -> None:
    limit, sizes, cut = SizeLimit(most), list[int](), 0
    for part in parts:
        limit.add(ended(*part, after=len(sizes)))
        sizes += part
        gone = limit.excess()
        cut = gone.us if gone else cut
        assert limit.total == sum(sizes[cut:]) <= most
        if gone:
            assert sum(sizes[cut - 1 :]) + most // 64 >= most - 300
        assert len(limit._sums) <= 2 * 64 + 2 + len(sizes[cut:])


def test_the_memory_does_not_grow_with_the_number_of_runs() -> None:
    limit = SizeLimit(64_000)
    for start in range(0, 100_000, 1_000):
        limit.add(ended(*[10] * 1_000, after=start))
        limit.excess()
    assert len(limit._sums) <= 2 * 64

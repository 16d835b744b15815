"""Deletes what is kept for a while only, or up to a size: frames, journals, traces, unused specs, deleted archives,
deleted files, tombstones, and which runs waited for a provider.

A short transaction at a time, so that whatever else is to be written goes between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.clock import Clock
from holdfast.engine.database_retries import repeat
from holdfast.store import archives, files, folders, rate_limits, retention, specs, tombstones, traces
from holdfast.store.retention import Place, Remains, Sizes, Swept
from holdfast.store.transaction import Database, Job, Transaction

_BETWEEN_PARTS_S: Final = 0.01
_SWEPT_AGAIN_US: Final = 600_000_000
_SPECS_AT_ONCE: Final = 50
_SPEC_UNUSED_US: Final = 3_600_000_000
# By size only what ended some time ago is counted and deleted: by then it is stored, whatever server ended it and
# however wrong its clock is, and whoever followed a stream has had time to read its end.
SETTLED_S: Final = 60.0
_LONGEST_UPLOAD_S: Final = 86_400.0
_COUNT_HOLDS_US: Final = 3_600_000_000  # what was deleted with its agent is still in it
_Sweep = Callable[[Transaction, int, Place], Coroutine[Any, Any, Swept]]
_PARTS: Final = 64  # the limit is kept to one in so many


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    frames_s: float = 3 * 3600.0
    traces_s: float = 86_400.0
    runs_s: float = 0.0  # 0: journals are kept for ever
    most_bytes: Mapping[Remains, int] = {}  # 0, or not there: any number
    settled_s: float = SETTLED_S
    period_s: float = 60.0


class Retention:
    def __init__(self, database: Database, clock: Clock, policy: RetentionPolicy) -> None:
        self._database = database
        self._clock = clock
        self._policy = policy
        self._frames_swept = Place()
        self._journals_swept = Place()
        self._limits: dict[Remains, SizeLimit] = {
            kind: SizeLimit(most) for kind, most in policy.most_bytes.items() if most > 0
        }
        self._counted_us = dict.fromkeys(self._limits, clock.now_us())

    async def run_forever(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (
                self.forget_old_frames,
                self.forget_old_traces,
                self.forget_old_journals,
                self.forget_unused_specs,
                self.clear_deleted_archives,
                self.clear_deleted_files,
                self.forget_old_tombstones,
                self.forget_old_waits,
                self.make_room,
            ):
                group.create_task(repeat(work, self._policy.period_s))

    def _before_us(self, age_s: float) -> int:
        return self._clock.now_us() - int(age_s * 1_000_000)

    async def forget_old_frames(self) -> None:
        """Streams can be read again for a while after their run has ended; messages stay for ever."""
        before_us = self._before_us(self._policy.frames_s)
        self._frames_swept = await self._sweep_runs(retention.sweep_frames, before_us, self._frames_swept)

    async def forget_old_journals(self) -> None:
        if self._policy.runs_s > 0:
            before_us = self._before_us(self._policy.runs_s)
            self._journals_swept = await self._sweep_runs(retention.sweep_journals, before_us, self._journals_swept)

    async def _sweep_runs(self, sweep: _Sweep, before_us: int, place: Place) -> Place:
        """Clocks may have been set back, or differ: it begins a little before where the last one ended."""
        return await self._walk(sweep, before_us, Place(max(0, place.us - _SWEPT_AGAIN_US)))

    async def _walk(self, sweep: _Sweep, before_us: int, place: Place) -> Place:
        while True:
            swept = await self._database.write(partial(_step, sweep, before_us, place))
            place = swept.place
            if swept.done:
                return place
            await asyncio.sleep(_BETWEEN_PARTS_S)

    async def make_room(self) -> None:
        """Where there is more than may be kept, what the runs that ended first have left behind goes."""
        for remains in self._limits:
            await self._count_and_sweep(remains)

    async def _count_and_sweep(self, remains: Remains) -> None:
        limit, before_us = self._limits[remains], self._before_us(self._policy.settled_s)
        while True:
            sizes = await self._database.read_long(partial(_sizes, remains, before_us, limit.counted))
            limit.add(sizes.runs)
            if limit.total > limit.most_bytes and self._clock.now_us() - self._counted_us[remains] > _COUNT_HOLDS_US:
                self._counted_us[remains] = self._clock.now_us()
                limit.recount()
                continue
            if (upto := limit.excess()) is not None:
                sweep = partial(_sweep_for_room, remains)
                limit.swept = await self._walk(sweep, upto.us + 1, limit.swept)
            if sizes.done:
                return
            await asyncio.sleep(_BETWEEN_PARTS_S)

    async def forget_old_traces(self) -> None:
        """Also while tracing is off: they may be from before."""
        before_us = self._before_us(self._policy.traces_s)
        await self._delete_in_parts(lambda tx: traces.delete_older(tx, before_us), traces.ROWS_AT_ONCE)

    async def forget_old_tombstones(self) -> None:
        """A list can be walked from a deleted item for a day."""
        await self._delete_in_parts(tombstones.delete_old, tombstones.ROWS_AT_ONCE)

    async def forget_old_waits(self) -> None:
        """Which runs waited for a provider's limit is told only while they wait."""
        before_us = self._before_us(SETTLED_S)
        await self._delete_in_parts(lambda tx: rate_limits.delete_waits(tx, before_us), rate_limits.ROWS_AT_ONCE)

    async def _delete_in_parts(self, delete: Job[int], rows_at_once: int) -> None:
        deleted = rows_at_once
        while deleted == rows_at_once:
            deleted = await self._database.write(delete)
            await asyncio.sleep(_BETWEEN_PARTS_S)

    async def forget_unused_specs(self) -> None:
        """Those that no journal refers to any more. One that a server has lately begun to use is left alone: it would
        only have to be stored again."""
        before_us = self._clock.now_us() - _SPEC_UNUSED_US
        while unused := await self._database.read_long(lambda tx: specs.find_unused(tx, before_us, _SPECS_AT_ONCE)):
            if await self._database.write(partial(_delete_specs, before_us, unused)) < _SPECS_AT_ONCE:
                return
            await asyncio.sleep(_BETWEEN_PARTS_S)

    async def clear_deleted_archives(self) -> None:
        """Whoever deletes an archive clears it too; these are what is left when they were cut short."""
        for archive_id in await self._database.read(archives.marked_deleted):
            await self._until_done(partial(_clear_archive_part, archive_id))

    async def clear_deleted_files(self) -> None:
        """As with archives. Also uploads that were cut off with their server."""
        for file_id in await self._database.read(files.marked_deleted):
            await self._until_done(partial(_clear_file_part, file_id))
        for folder_id in await self._database.read(folders.marked_deleted):
            while (left := await self._database.read(partial(_file_of, folder_id))) is not None:
                await self._until_done(partial(_clear_file_part, left))
            await self._database.write(partial(_delete_folder, folder_id))
        before_us = self._before_us(_LONGEST_UPLOAD_S)
        for file_id in await self._database.read_long(lambda tx: files.find_cut_off(tx, before_us)):
            await self._until_done(partial(_forget_bytes, file_id))

    async def _until_done(self, part: Job[bool]) -> None:
        done = False
        while not done:
            done = await self._database.write(part)
            await asyncio.sleep(_BETWEEN_PARTS_S)


class SizeLimit:
    """How many bytes ended runs have left behind of one kind, added up as they end, so that nobody has to read it all
    again.

    Runs are counted in the order in which they ended, each once. Neighbours are kept as one sum, so the memory does not
    grow with the number of runs. When there is too much, the oldest go first, and their sum is subtracted.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.counted = Place()  # all runs up to here
        self.swept = Place()  # those up to here were removed
        self._sums: deque[tuple[Place, int]] = deque()  # each up to its place
        self._total = 0

    @property
    def total(self) -> int:
        """Too large rather than too small: what went in other ways, as with its agent, is still counted."""
        return self._total

    def add(self, runs: Iterable[tuple[Place, int]]) -> None:
        for place, size in runs:
            self.counted = place
            self._total += size
            if self._sums and self._sums[-1][1] + size <= self.most_bytes // _PARTS:
                self._sums[-1] = place, self._sums[-1][1] + size
            else:
                self._sums.append((place, size))

    def excess(self) -> Place | None:
        """Up to where runs have to be removed."""
        last: Place | None = None
        while self._total > self.most_bytes:
            last, size = self._sums.popleft()
            self._total -= size
        return last

    def recount(self) -> None:
        self.counted = self.swept
        self._sums.clear()
        self._total = 0


async def clear_file(database: Database, archival: ArchivalMemory, folder_id: str, file_id: str) -> None:
    """If it is cut short, retention goes on with it."""
    while not await database.write(lambda tx: files.clear(tx, file_id)):
        pass
    archival.forget(folder_id)


async def clear_folder(database: Database, archival: ArchivalMemory, folder_id: str) -> None:
    while (file_id := await database.read(lambda tx: files.any_of_folder(tx, folder_id))) is not None:
        await clear_file(database, archival, folder_id, file_id)
    await database.write(lambda tx: folders.delete_marked(tx, folder_id))
    archival.forget(folder_id)


async def _step(sweep: _Sweep, before_us: int, place: Place, tx: Transaction) -> Swept:
    return await sweep(tx, before_us, place)


async def _sizes(remains: Remains, before_us: int, place: Place, tx: Transaction) -> Sizes:
    return await retention.sizes(tx, remains, before_us, place)


async def _sweep_for_room(remains: Remains, tx: Transaction, before_us: int, place: Place) -> Swept:
    return await retention.sweep_for_room(tx, remains, before_us, place)


async def _delete_specs(before_us: int, hashes: list[str], tx: Transaction) -> int:
    return await specs.delete_unused(tx, before_us, hashes)


async def _clear_archive_part(archive_id: str, tx: Transaction) -> bool:
    return await archives.clear(tx, archive_id)


async def _clear_file_part(file_id: str, tx: Transaction) -> bool:
    return await files.clear(tx, file_id)


async def _file_of(folder_id: str, tx: Transaction) -> str | None:
    return await files.any_of_folder(tx, folder_id)


async def _delete_folder(folder_id: str, tx: Transaction) -> None:
    await folders.delete_marked(tx, folder_id)


async def _forget_bytes(file_id: str, tx: Transaction) -> bool:
    return await files.forget_bytes(tx, file_id)

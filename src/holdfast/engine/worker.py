"""The runs this process owns: their tasks and cancel scopes, the renewal of their leases, recovery and drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from holdfast import ids
from holdfast.core.records import Run
from holdfast.engine.bus import NET_S, Bus, Watch
from holdfast.engine.checkpoint import end_unreadable
from holdfast.engine.clock import Clock
from holdfast.engine.failures import classify
from holdfast.engine.loading import reopen
from holdfast.engine.runner import Runner
from holdfast.engine.scope import CancelScope
from holdfast.engine.session import Session
from holdfast.engine.streams import Streams
from holdfast.engine.windows import Windows
from holdfast.errors import HoldfastError, RunInterrupted, ShuttingDown
from holdfast.store import archives, retention, runs, specs, tombstones, traces
from holdfast.store.retention import Place, Swept
from holdfast.store.transaction import Database, DatabaseError, Job, Transaction

log = logging.getLogger(__name__)
_CLAIMS_AT_ONCE = 64
SKEW_LIMIT_S = 5.0
HAND_OVER_S = 6.0  # a sandbox that hangs is given five seconds to end its tools
_BETWEEN_SWEEPS_S = 0.01
_SWEPT_AGAIN_US = 600_000_000
_SPECS_AT_ONCE = 50
_SPEC_UNUSED_US = 3_600_000_000
_Sweep = Callable[[Transaction, int, Place], Coroutine[Any, Any, Swept]]
_AFTER_FAILURE_S = 0.5  # beside the usual pause, which for frames is too short to fill a log with


class WorkerTimings(msgspec.Struct, frozen=True, kw_only=True):
    lease_ttl_s: float = 15.0
    flush_s: float = 0.03
    sweep_s: float = 5.0
    tidy_s: float = 60.0
    frame_retention_s: float = 3 * 3600.0
    trace_retention_s: float = 86_400.0
    run_retention_s: float = 0.0  # 0: journals are kept for ever
    drain_s: float = 10.0


def _nothing(_: Run) -> None:
    pass


def skew_of(clock: Clock, database_us: int) -> float | None:
    """By how many seconds this process's clock is ahead of the database's, if by more than a slow answer explains."""
    skew_s = (clock.now_us() - database_us) / 1_000_000
    return skew_s if abs(skew_s) > SKEW_LIMIT_S else None


class _Owned:
    def __init__(self, run_id: str, background: bool, lease: int) -> None:
        self.run_id = run_id
        self.background = background
        self.lease = lease
        self.scope = CancelScope()
        self.stopped = asyncio.Event()


class _ThreadQueue:
    """Who waits for one thread; whoever holds the lock is counted too."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0


class Worker:
    def __init__(
        self, database: Database, runner: Runner, streams: Streams, clock: Clock, timings: WorkerTimings
    ) -> None:
        self.owner = ids.new("worker")
        self._database = database
        self._runner = runner
        self._streams = streams
        self._clock = clock
        self._timings = timings
        self.windows = Windows()
        self.bus = Bus()
        self._owned: dict[str, _Owned] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, _ThreadQueue] = {}
        self._recovering = asyncio.Lock()
        self._frames_swept = Place()
        self._journals_swept = Place()
        self._draining = False
        self._skewed = False
        self.on_end: Callable[[Run], None] = _nothing  # called when a run has stopped here, whatever stopped it

    @property
    def lease_ttl_us(self) -> int:
        return int(self._timings.lease_ttl_s * 1_000_000)

    def refuse_if_draining(self) -> None:
        if self._draining:
            raise ShuttingDown("The server is shutting down. Send the request again in a moment.")

    def start(self, session: Session) -> None:
        """Takes charge of a run whose lease this worker holds."""
        session.history_builder = self.windows.history_builder_of(session.run.thread_id)
        owned = _Owned(session.run.id, session.run.background, session.lease)
        self._replace(self._owned.get(session.run.id), owned)
        if session.run.cancel_asked_us is not None:
            owned.scope.cancel("user")
        self.bus.wake(session.run.id)
        task = asyncio.create_task(self._drive(session, owned), name=session.run.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _replace(self, earlier: _Owned | None, owned: _Owned) -> None:
        """A process that was stopped for longer than its lease may find its own run expired, and take it over. Then the
        newer lease counts, and whatever is done under the older one ends."""
        if earlier is not None and earlier.lease > owned.lease:
            owned.scope.cancel("lease_lost")
            return
        if earlier is not None:
            earlier.scope.cancel("lease_lost")
        self._owned[owned.run_id] = owned

    def owns(self, run_id: str) -> bool:
        return run_id in self._owned

    def cancel(self, run_id: str) -> None:
        """The cancel is on record already; this is the push that makes it quick."""
        owned = self._owned.get(run_id)
        if owned is not None:
            owned.scope.cancel("user")

    def abort_lost(self, run_id: str) -> None:
        """Its acceptance came to nothing after all: what is being done for it stops, and nothing is written."""
        owned = self._owned.get(run_id)
        if owned is not None:
            owned.scope.cancel("lease_lost")

    async def stopped(self, run_id: str) -> None:
        """Returns when this process no longer drives the run."""
        owned = self._owned.get(run_id)
        if owned is not None:
            await owned.stopped.wait()

    async def until_changed(self, watch: Watch, at_most_s: float | None = None) -> None:
        """Returns when the run may have begun, stopped or changed hands: look at its record again."""
        if not self.owns(watch.run_id):
            at_most_s = NET_S if at_most_s is None else min(at_most_s, NET_S)
        await watch.woken(at_most_s)

    @asynccontextmanager
    async def thread_queue(self, thread_id: str) -> AsyncGenerator[None]:
        """Requests that wait for a busy thread go in the order in which they came."""
        line = self._queues.setdefault(thread_id, _ThreadQueue())
        line.length += 1
        try:
            async with line.lock:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._queues[thread_id]

    async def expire_other_leases(self) -> None:
        """For a server that shares its database with nobody: whoever else holds a lease is dead. One statement, so that
        many interrupted runs do not keep the server from listening; they are carried on beside requests."""
        await self._database.write(lambda tx: runs.expire_other_leases(tx, self.owner))

    async def recover(self) -> int:
        """Carries on some of the runs whose leases have run out. How many of them there were."""
        async with self._recovering:  # two at once would claim the same run twice
            now_us = await self._database.now_us()
            self._notice_skew(now_us)
            lost = await self._database.read(lambda tx: runs.expired(tx, now_us, _CLAIMS_AT_ONCE))
            taken = [run for run in lost if run.id not in self._owned and await self._take_over(run, now_us)]
            return len(taken)

    async def _take_over(self, run: Run, now_us: int) -> bool:
        claimed = await self._database.write(lambda tx: runs.claim(tx, run.id, self.owner, now_us, self.lease_ttl_us))
        if claimed is None:
            return False
        try:
            died = run.lease_owner is not None
            session = await reopen(self._database, self._streams, self._clock, claimed, owner_died=died)
        except DatabaseError:
            raise  # says nothing about the run
        except (HoldfastError, msgspec.MsgspecError) as error:
            log.exception("run %s cannot be carried on", run.id)
            await self._fail_unreadable(claimed, error)
            return False
        self.start(session)
        return True

    async def _fail_unreadable(self, run: Run, error: Exception) -> None:
        """Its journal cannot be read: it ends as failed, with the reason, and the thread is free again."""
        failure, now_us = classify(error, run.id), self._clock.now_us()
        await self._database.write(lambda tx: end_unreadable(tx, run, failure, now_us))
        self._streams.close(run.id)

    async def run_forever(self) -> None:
        """The side tasks; if one of them dies, so does the worker, loudly."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._timings.flush_s, self._flush))
            group.create_task(self._every(self._timings.lease_ttl_s / 3, self._renew))
            group.create_task(self._every(self._timings.sweep_s, self._sweep, at_once=True))
            group.create_task(self._every(self._timings.tidy_s, self.forget_old_frames))
            group.create_task(self._every(self._timings.tidy_s, self.forget_old_traces))
            group.create_task(self._every(self._timings.tidy_s, self.forget_old_journals))
            group.create_task(self._every(self._timings.tidy_s, self.forget_unused_specs))
            group.create_task(self._every(self._timings.tidy_s, self.clear_deleted_archives))
            group.create_task(self._every(self._timings.tidy_s, self.forget_old_tombstones))

    async def _every(self, period_s: float, work: Callable[[], Awaitable[object]], *, at_once: bool = False) -> None:
        """A database that cannot be written now, because its disk is full, may be writable the next time."""
        pause_s = 0.0 if at_once else period_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = period_s
            try:
                await work()
            except DatabaseError as error:
                name = getattr(work, "__name__", "work").strip("_")
                log.error("the worker will try to %s again: %s", name.replace("_", " "), error)
                await asyncio.sleep(_AFTER_FAILURE_S)

    @property
    def draining(self) -> bool:
        return self._draining

    async def drain(self) -> None:
        """Lets runs finish for a while, then hands over what is left: nothing is written, the leases are released."""
        self._draining = True
        self.bus.wake_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._timings.drain_s)
        for owned in list(self._owned.values()):
            owned.scope.cancel("shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HAND_OVER_S)
        for task in self._tasks:
            # It hangs, in a database that does not answer say. Its lease runs out, and another server carries it on.
            log.error("run %s could not be handed over in time", task.get_name())
            task.cancel()

    async def _drive(self, session: Session, owned: _Owned) -> None:
        try:
            await self._runner.drive(session, owned.scope)
        except RunInterrupted as interruption:
            log.info("run %s was let go: %s", session.run.id, interruption)
            await self._release(session)
        except Exception:
            # Its failure could not even be recorded; its lease is renewed no more, runs out, and a sweep tries again.
            log.exception("run %s could not be driven", session.run.id)
        finally:
            if session.next_position is not None:
                self.windows.keep(
                    session.run.thread_id, session.next_position, session.stored_window, session.history_builder
                )
            if self._owned.get(session.run.id) is owned:
                del self._owned[session.run.id]
            self._streams.end(session.stream)
            owned.stopped.set()
            self.bus.wake(session.run.id)
            self.on_end(session.run)

    async def _release(self, session: Session) -> None:
        try:
            if session.run.background:
                await self._streams.flush_last(session.run.id)
            await self._database.write(lambda tx: runs.release(tx, session.run.id, session.lease))
        except DatabaseError as error:
            log.warning("run %s keeps its lease until it runs out: %s", session.run.id, error)

    async def _flush(self) -> None:
        background = [owned.run_id for owned in self._owned.values() if owned.background]
        if background:
            await self._streams.flush(background)

    async def _renew(self) -> None:
        if self._owned:
            await self.renew_leases()

    async def renew_leases(self) -> None:
        """One statement for all runs; it also tells of cancels whose push was lost, and of leases that are gone."""
        before = dict(self._owned)
        held = await self._database.write_lease(lambda tx: runs.renew(tx, self.owner, self.lease_ttl_us, list(before)))
        alive = {run_id for run_id, _, _ in held}
        for run_id, owned in before.items():
            if run_id not in alive and run_id in self._owned:
                owned.scope.cancel("lease_lost")
        for run_id, _, cancel_asked_us in held:
            if cancel_asked_us is not None:
                self.cancel(run_id)

    def _notice_skew(self, database_us: int) -> None:
        """Leases go by the database's clock alone, so a wrong one here costs no run; but everything that is dated is
        dated wrongly."""
        skew_s = skew_of(self._clock, database_us)
        if (skew_s is not None) != self._skewed:
            self._skewed = skew_s is not None
            if skew_s is not None:
                log.warning("this machine's clock is %+.1f s off the database's: correct one of them", skew_s)

    async def _sweep(self) -> None:
        """Some at a time, so that requests get in between, and other servers their share."""
        while not self._draining:
            if await self.recover() < _CLAIMS_AT_ONCE:
                return
            await asyncio.sleep(_BETWEEN_SWEEPS_S)

    async def forget_old_frames(self) -> None:
        """Streams can be read again for a while after their run has ended; messages stay for ever."""
        before_us = self._clock.now_us() - int(self._timings.frame_retention_s * 1_000_000)
        self._frames_swept = await self._sweep_runs(retention.sweep_frames, before_us, self._frames_swept)

    async def forget_old_journals(self) -> None:
        if self._timings.run_retention_s > 0:
            before_us = self._clock.now_us() - int(self._timings.run_retention_s * 1_000_000)
            self._journals_swept = await self._sweep_runs(retention.sweep_journals, before_us, self._journals_swept)

    async def _sweep_runs(self, sweep: _Sweep, before_us: int, place: Place) -> Place:
        """A short transaction at a time; whatever else is to be written goes between them. Clocks may have been set
        back, or differ: it begins a little before where the last one ended."""
        place = Place(max(0, place.us - _SWEPT_AGAIN_US))
        while True:
            swept = await self._database.write(partial(_step, sweep, before_us, place))
            place = swept.place
            if swept.done:
                return place
            await asyncio.sleep(_BETWEEN_SWEEPS_S)

    async def forget_old_traces(self) -> None:
        """Also while tracing is off: they may be from before."""
        before_us = self._clock.now_us() - int(self._timings.trace_retention_s * 1_000_000)
        await self._delete_in_parts(lambda tx: traces.delete_older(tx, before_us), traces.ROWS_AT_ONCE)

    async def forget_old_tombstones(self) -> None:
        """A list can be walked from a deleted item for a day."""
        await self._delete_in_parts(tombstones.delete_old, tombstones.ROWS_AT_ONCE)

    async def _delete_in_parts(self, delete: Job[int], rows_at_once: int) -> None:
        deleted = rows_at_once
        while deleted == rows_at_once:
            deleted = await self._database.write(delete)
            await asyncio.sleep(_BETWEEN_SWEEPS_S)

    async def forget_unused_specs(self) -> None:
        """Those that no journal refers to any more. One that a server has lately begun to use is left alone: it would
        only have to be stored again."""
        before_us = self._clock.now_us() - _SPEC_UNUSED_US
        while unused := await self._database.read_long(lambda tx: specs.find_unused(tx, before_us, _SPECS_AT_ONCE)):
            if await self._database.write(partial(_delete_specs, before_us, unused)) < _SPECS_AT_ONCE:
                return
            await asyncio.sleep(_BETWEEN_SWEEPS_S)

    async def clear_deleted_archives(self) -> None:
        """Whoever deletes an archive clears it too; these are what is left when they were cut short."""
        for archive_id in await self._database.read(archives.marked_deleted):
            cleared = False
            while not cleared:
                cleared = await self._database.write(partial(_clear, archive_id))
                await asyncio.sleep(_BETWEEN_SWEEPS_S)


async def _clear(archive_id: str, tx: Transaction) -> bool:
    return await archives.clear(tx, archive_id)


async def _delete_specs(before_us: int, hashes: list[str], tx: Transaction) -> int:
    return await specs.delete_unused(tx, before_us, hashes)


async def _step(sweep: _Sweep, before_us: int, place: Place, tx: Transaction) -> Swept:
    return await sweep(tx, before_us, place)

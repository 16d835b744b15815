"""The runs this process owns: their tasks and cancel scopes, the renewal of their leases, recovery and drain."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast import ids, logs
from holdfast.core.failures import classify
from holdfast.core.records import Run
from holdfast.engine.bus import Bus, Watch
from holdfast.engine.cancel_scope import CancelScope
from holdfast.engine.checkpoint import end_unreadable
from holdfast.engine.clock import Clock
from holdfast.engine.database_retries import repeat
from holdfast.engine.run_loading import LoadedRun, Windows, load_run, numbers_begin_after
from holdfast.engine.run_session import Session
from holdfast.engine.runner import Runner
from holdfast.engine.streams import RunStream, Streams
from holdfast.errors import HoldfastError, LeaseLost, RunInterrupted, ShuttingDown
from holdfast.store import leases, runs
from holdfast.store.leases import Claimed
from holdfast.store.transaction import Database, DatabaseError

log = logging.getLogger(__name__)
_CLAIMS_AT_ONCE = 16  # few, so that other servers get their share
SKEW_LIMIT_S = 5.0
HAND_OVER_S = 6.0  # a sandbox that hangs is given five seconds to end its tools
BETWEEN_SWEEPS_S = 0.01


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    lease_ttl_s: float = 10.0
    flush_s: float = 0.03
    sweep_s: float = 1.0
    drain_s: float = 10.0
    most_runs: int = 1_000  # driven at once; those that somebody waits for here are not refused
    most_runs_per_agent: int = 0  # in all processes together, before its further background runs wait; 0: any number
    takes_waiting: bool = True  # False: only runs that somebody waits for here are driven here


class Worker:
    def __init__(
        self,
        database: Database,
        runner: Runner,
        streams: Streams,
        clock: Clock,
        settings: WorkerSettings,
        bus: Bus | None = None,
    ) -> None:
        self.owner = ids.new("worker")
        self._database = database
        self._runner = runner
        self._streams = streams
        self._clock = clock
        self._settings = settings
        self.windows = Windows()
        self.bus = bus or Bus()
        self._owned: dict[str, _Owned] = {}
        self._expected: set[str] = set()  # claimed by their acceptance, and not driven yet
        self._claiming = 0  # places that a sweep is about to fill, so that no acceptance takes them meanwhile
        self._others_wait = False  # for all that is known here: runs that a sweep would find
        self._tasks: set[asyncio.Task[None]] = set()
        self.thread_queues = ThreadQueues()
        self._taking = asyncio.Lock()  # two at once would claim the same run twice
        self._sweep_due = asyncio.Event()
        self._draining = False
        self._leaving = False
        self._skewed = False
        self.counts = RunCounts()
        self.on_end: Callable[[Run], None] = lambda _: None  # called when a run has stopped here, whatever stopped it
        # Called with the id of a run that others are to take. A queue can stand here, whose workers call `take`
        # (decision 28).
        self.offer: Callable[[str], None] = lambda _: self.bus.work_waits()

    @property
    def lease_ttl_us(self) -> int:
        return int(self._settings.lease_ttl_s * 1_000_000)

    def refuse_if_draining(self) -> None:
        if self._draining:
            raise ShuttingDown("The server is shutting down. Send the request again in a moment.")

    @property
    def slots(self) -> tuple[int, int]:
        """How many runs are driven here, and how many may be."""
        return len(self._owned), self._settings.most_runs

    @property
    def has_room(self) -> bool:
        return self._settings.takes_waiting and self._room > 0

    @property
    def _room(self) -> int:
        return self._settings.most_runs - len(self._owned) - len(self._expected) - self._claiming

    @property
    def foreground_runs(self) -> int:
        """How many runs are driven here because somebody waits for them."""
        return sum(not owned.background for owned in self._owned.values())

    def claims(self, *, background: bool) -> bool:
        """Whether a run is this worker's from its acceptance on. In the foreground somebody waits for it here; one in
        the background can wait until there is room for it, here or elsewhere (decision 23), and does while others wait:
        whose turn it is, a sweep decides."""
        return not background or (self.has_room and not self._sweep_decides)

    @property
    def _sweep_decides(self) -> bool:
        """Which run is the next: one of those that wait; or, where an agent may have only so many, one whose agent has
        fewer, which only the database knows."""
        return self._others_wait or self._settings.most_runs_per_agent > 0

    def expect(self, run: Run) -> None:
        """A run is about to be stored. If it is this worker's from then on, its place is taken already."""
        if run.lease_owner == self.owner:
            self._expected.add(run.id)

    def expect_no_more(self, run_id: str) -> None:
        self._expected.discard(run_id)

    def drive(
        self,
        loaded: LoadedRun,
        stored: asyncio.Future[bool] | None = None,
        *,
        claimed_s: float,
        owner_died: bool = False,
        unstored_replies: tuple[str, ...] = (),
    ) -> RunStream:
        """Takes charge of a run whose lease this worker holds. `stored`: see `Session`. `claimed_s`: when it was not
        yet claimed, by the monotonic clock."""
        run = loaded.run
        base = numbers_begin_after(loaded.last_seq, run.lease, owner_died=owner_died)
        stream = self._streams.open(run.id, base, run.lease, background=run.background)
        stream.lease_held(claimed_s + self._settings.lease_ttl_s)
        session = Session(loaded, stream, self._clock, stored)
        session.history_builder = self.windows.history_builder_of(run.thread_id)
        if owner_died:
            session.mark_predecessors_abandoned(unstored_replies)
        else:
            session.mark_abandoned(unstored_replies)
        self._expected.discard(run.id)
        owned = _Owned(run.id, run.background, run.lease, after_death=owner_died)
        self._replace(self._owned.get(run.id), owned)
        if run.cancel_asked_us is not None:
            owned.scope.cancel("user")
        if stored is not None:
            stored.add_done_callback(partial(_stop_unstored, owned.scope))
        self.counts.started += 1
        self.counts.taken_over += owner_died
        self.bus.wake(run.id)
        self._keep(asyncio.create_task(self._drive(session, owned), name=run.id))
        return stream

    def _keep(self, task: asyncio.Task[None]) -> None:
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

    async def stopped(self, run_id: str) -> None:
        """Returns when this process no longer drives the run."""
        owned = self._owned.get(run_id)
        if owned is not None:
            await owned.stopped.wait()

    async def until_changed(self, watch: Watch, at_most_s: float | None = None) -> None:
        """Returns when the run may have begun, stopped or changed hands: look at its record again."""
        if not self.owns(watch.run_id):
            net_s = self.bus.net_s
            at_most_s = net_s if at_most_s is None else min(at_most_s, net_s)
        await watch.woken(at_most_s)

    async def expire_other_leases(self) -> None:
        """For a server that shares its database with nobody: whoever else holds a lease is dead. One statement, so that
        many interrupted runs do not keep the server from listening; they are carried on beside requests."""
        await self._database.write(lambda tx: leases.expire_other_leases(tx, self.owner))

    def dispatch(self, run_id: str) -> None:
        """Of a run that was stored and belongs to nobody: a hint. If it is lost, or there is no room, a sweep finds the
        run, here or elsewhere."""
        if not self.has_room or self._draining:
            self._others_wait = True
            self.offer(run_id)
            if self._claiming:  # that sweep may leave room, and has looked already
                self._sweep_due.set()
        elif self._sweep_decides:
            self._sweep_due.set()
        else:
            self._keep(asyncio.create_task(self._take_or_leave(run_id), name=run_id))

    async def _take_or_leave(self, run_id: str) -> None:
        try:
            if not await self.take(run_id, if_room=True) and not self.has_room:
                self._others_wait = True
                self.offer(run_id)
        except DatabaseError as error:
            log.warning("run %s waits for a sweep: %s", run_id, error)

    async def take(self, run_id: str, *, if_room: bool = False) -> bool:
        """Carries on this run if no live worker drives it; whether or not there is room, unless told otherwise."""
        async with self._taking:
            if if_room and not self.has_room:  # there was when the hint came, and others were quicker
                return False
            claimed_s, now_us = time.monotonic(), await self._database.now_us()
            run = await self._database.read_one(lambda tx: runs.find(tx, run_id))
            if run is None or run_id in self._owned or (run.lease_expires_us or 0) > now_us:
                return False  # a lease of this worker's own counts too: its acceptance is about to drive it
            taken = await self._database.write(
                lambda tx: leases.claim(tx, run_id, self.owner, now_us, self.lease_ttl_us)
            )
            return taken is not None and await self._open(Claimed(taken, run.lease_owner is not None), claimed_s)

    async def recover(self) -> int:
        """Carries on some of the runs that no live worker drives, as far as there is room. How many these were."""
        async with self._taking:
            claimed_s, now_us = time.monotonic(), await self._database.now_us()
            self._notice_skew(now_us)
            if not self.has_room:
                return 0
            self._claiming = min(self._room, _CLAIMS_AT_ONCE)
            try:
                return await self._claim_waiting(self._claiming, claimed_s, now_us)
            finally:
                self._claiming = 0

    async def _claim_waiting(self, room: int, claimed_s: float, now_us: int) -> int:
        per_agent = self._settings.most_runs_per_agent
        self._others_wait = False  # unless one comes, or there are more than are looked for
        found = await self._database.read_one(lambda tx: leases.waiting(tx, now_us, room, per_agent))
        self._others_wait |= len(found) == room
        waiting = [run_id for run_id in found if run_id not in self._owned]
        if not waiting:
            return 0
        claims = await self._database.write(
            lambda tx: leases.claim_many(tx, waiting, self.owner, now_us, self.lease_ttl_us, per_agent)
        )
        opened = 0
        for claimed in claims:
            opened += await self._open(claimed, claimed_s)
            self._claiming -= 1
        return opened

    async def _open(self, claimed: Claimed, claimed_s: float) -> bool:
        """The one way in which a run comes to be driven by its id: it was claimed; load it, drive it."""
        run = claimed.run
        try:
            loaded = await self._database.read_long(lambda tx: load_run(tx, run))
        except DatabaseError:
            raise  # says nothing about the run
        except (HoldfastError, msgspec.MsgspecError) as error:
            log.exception("run %s cannot be carried on", run.id)
            await self._fail_unreadable(claimed, error)
            return False
        unstored = await self._streams.unstored_replies(run.id) if loaded.last_seq else ()
        self.drive(loaded, claimed_s=claimed_s, owner_died=claimed.owner_died, unstored_replies=unstored)
        return True

    async def _fail_unreadable(self, claimed: Claimed, error: Exception) -> None:
        """Its journal cannot be read: it ends as failed, with the reason, and the thread is free again."""
        run, died = claimed.run, claimed.owner_died
        failure, now_us = classify(error, run.id), self._clock.now_us()
        try:
            await self._database.write(lambda tx: end_unreadable(tx, run, failure, now_us, owner_died=died))
        except LeaseLost:
            log.info("run %s was taken over before it could be ended", run.id)
        self._streams.close(run.id)

    async def run_forever(self) -> None:
        """The side tasks; if one of them dies, so does the worker, loudly."""
        settings = self._settings
        async with asyncio.TaskGroup() as group:
            group.create_task(repeat(self._flush, settings.flush_s))
            group.create_task(repeat(self._renew, settings.lease_ttl_s / 3))
            group.create_task(repeat(self._sweep, settings.sweep_s, at_once=True, sooner=self._sweep_due))
            group.create_task(self.bus.listen(self.cancel, self._hear_of_work))

    def _hear_of_work(self) -> None:
        self._others_wait = True
        self._sweep_due.set()

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def leaving(self) -> bool:
        """Whoever can choose should send to others from now on."""
        return self._leaving or self._draining

    def announce_drain(self) -> None:
        """It will be drained soon. Until then everything is done as before."""
        self._leaving = True

    async def drain(self) -> None:
        """Lets runs finish for a while, then hands over what is left: nothing is written, the leases are released."""
        self._draining = True
        self.bus.wake_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.drain_s)
        for owned in list(self._owned.values()):
            owned.scope.cancel("shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HAND_OVER_S)
        for task in self._tasks:
            # It hangs, in a database that does not answer say. Its lease runs out, and another server carries it on.
            log.error("run %s could not be handed over in time", task.get_name())
            task.cancel()

    async def _drive(self, session: Session, owned: _Owned) -> None:
        logs.current_run.set(session.run)
        try:
            await self._runner.drive(session, owned.scope)
            self.counts.ended[session.state.stop_reason or "requires_approval"] += 1
        except RunInterrupted as interruption:
            log.info("run %s was let go: %s", session.run.id, interruption)
            # An acceptance that came to nothing ends like a lost lease, and lost none.
            lost = isinstance(interruption, LeaseLost) or owned.scope.reason == "lease_lost"
            self.counts.lease_losses += lost and session.is_stored
            await self._release(session, owned)
        except Exception:
            # Its failure could not even be recorded; its lease is renewed no more, runs out, and a sweep tries again.
            log.exception("run %s could not be driven", session.run.id)
        finally:
            if session.is_stored and session.next_position is not None:
                self.windows.keep(
                    session.run.thread_id, session.next_position, session.stored_window, session.history_builder
                )
            if self._owned.get(session.run.id) is owned:
                del self._owned[session.run.id]
            self._streams.end(session.stream)
            owned.stopped.set()
            self.bus.run_changed(session.run.id)
            self._look_for_waiting()
            self.on_end(session.run)
            if session.has_due_tasks:
                self.bus.task_added()

    def _look_for_waiting(self) -> None:
        """A run has ended. If there was no room until now, or its agent had as many as it may have, others may be
        waiting for that."""
        if self._settings.most_runs_per_agent and not self.has_room:
            self.bus.work_waits()
        elif self._settings.most_runs_per_agent or self._room == 1:
            self._sweep_due.set()

    async def _release(self, session: Session, owned: _Owned) -> None:
        try:
            if session.run.background:
                await self._streams.flush_last(session.run.id)
            # While none of its frames are stored, nothing else tells the next owner which numbers the one that died may
            # have shown (decision 13).
            hides_a_death = owned.after_death and session.stream.stored == session.stream.first
            let_go = leases.expire if hides_a_death else leases.release
            await self._database.write(lambda tx: let_go(tx, session.run.id, session.lease))
            self.offer(session.run.id)
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
        before, asked_s = dict(self._owned), time.monotonic()
        held = await self._database.write_lease(
            lambda tx: leases.renew(tx, self.owner, self.lease_ttl_us, list(before))
        )
        alive = {run_id for run_id, _, _ in held}
        for run_id, owned in before.items():
            if run_id not in alive and run_id in self._owned:
                owned.scope.cancel("lease_lost")
        for run_id, lease, _ in held:
            stream = self._streams.live(run_id)
            if stream is not None and stream.lease == lease:
                stream.lease_held(asked_s + self._settings.lease_ttl_s)
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
        """While many wait, some at a time, so that requests get in between, and other servers their share."""
        while not self._draining:
            if not await self.recover() or not self._others_wait:
                return
            await asyncio.sleep(BETWEEN_SWEEPS_S)


class _Owned:
    def __init__(self, run_id: str, background: bool, lease: int, *, after_death: bool) -> None:
        self.run_id = run_id
        self.background = background
        self.lease = lease
        self.after_death = after_death  # of the run's owner before this one
        self.scope = CancelScope()
        self.stopped = asyncio.Event()


def _stop_unstored(scope: CancelScope, stored: asyncio.Future[bool]) -> None:
    """Its acceptance came to nothing after all: what is being done for it stops, and nothing is written."""
    if not stored.result():
        scope.cancel("lease_lost")


def skew_of(clock: Clock, database_us: int) -> float | None:
    """By how many seconds this process's clock is ahead of the database's, if by more than a slow answer explains."""
    skew_s = (clock.now_us() - database_us) / 1_000_000
    return skew_s if abs(skew_s) > SKEW_LIMIT_S else None


class ThreadQueues:
    """Requests that wait for a busy thread go in the order in which they came."""

    def __init__(self) -> None:
        self._queues: dict[str, _ThreadQueue] = {}

    def length(self, thread_id: str) -> int:
        line = self._queues.get(thread_id)
        return 0 if line is None else line.length

    async def enter(self, thread_id: str) -> None:
        """Returns when it is this request's turn, which lasts until `leave`."""
        line = self._queues.setdefault(thread_id, _ThreadQueue())
        line.length += 1
        entered = False
        try:
            entered = await line.lock.acquire()
        finally:
            if not entered:
                self._shorten(thread_id)

    def leave(self, thread_id: str) -> None:
        self._queues[thread_id].lock.release()
        self._shorten(thread_id)

    def _shorten(self, thread_id: str) -> None:
        line = self._queues[thread_id]
        line.length -= 1
        if not line.length:
            del self._queues[thread_id]


class _ThreadQueue:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0  # whoever holds the lock is counted too


class RunCounts:
    """What has happened in this process since it started: plain numbers that only grow, for metrics."""

    def __init__(self) -> None:
        self.started = 0  # began to be driven here; a run that changes hands begins again
        self.taken_over = 0  # of these, after their worker died
        self.lease_losses = 0
        self.ended: Counter[str] = Counter()  # by stop reason; one that waits for a decision has stopped too

"""Performs tasks: work that outlives the request that asked for it (`store/tasks.py`).

Each process performs a few at a time. A task is a row first: a lost wake-up costs a second, a process that dies costs
its lease, and then another one performs the task again from what is stored. So a kind of task stores its progress with
`HeldTask.write`, and begins by looking how far it had come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from holdfast import ids
from holdfast.core.records import Task
from holdfast.engine.bus import Bus
from holdfast.engine.database_retries import repeat
from holdfast.errors import DatabaseError, HoldfastError, LeaseLost, RunInterrupted
from holdfast.store import tasks
from holdfast.store.transaction import Database, Job, Transaction

T = TypeVar("T")
MOST_ATTEMPTS: Final = 5
_RETRY_AFTER_S: Final = (1.0, 5.0, 30.0, 120.0)

log = logging.getLogger(__name__)


class TaskSettings(msgspec.Struct, frozen=True, kw_only=True):
    lease_ttl_s: float = 10.0
    sweep_s: float = 1.0
    at_once: int = 4
    drain_s: float = 1.0
    takes: bool = True  # False: this process adds tasks and leaves them to others


class TryAgain(HoldfastError):
    """Raised by a kind of task: what it needs is not there now, but may be later. It counts as an attempt, unless the
    task knows that it will come: an agent that is busy, say."""

    def __init__(self, message: str, after_s: float | None = None, *, counts: bool = True) -> None:
        super().__init__(message)
        self.after_s = after_s
        self.counts = counts


class HeldTask:
    """A task whose lease this process holds. Whoever has lost it gets LeaseLost instead of a write."""

    def __init__(self, task: Task, database: Database) -> None:
        self.task = task
        self.finished = False
        self._database = database

    async def write(self, job: Job[T]) -> T:
        """One transaction, only while the lease is held."""

        async def fenced(tx: Transaction) -> T:
            if not await tasks.is_held(tx, self.task):
                raise LeaseLost(f"task {self.task.id} was withdrawn, or is another worker's")
            return await job(tx)

        return await self._database.write(fenced)

    async def finish(self, job: Job[T]) -> T:
        """The last write: the task is gone with it."""

        async def last(tx: Transaction) -> T:
            if not await tasks.finish(tx, self.task):
                raise LeaseLost(f"task {self.task.id} was withdrawn, or is another worker's")
            return await job(tx)

        result = await self._database.write(last)
        self.finished = True
        return result


class TaskKind(Protocol):
    async def perform(self, held: HeldTask) -> None:
        """Do the work, and end it with `held.finish`. It may have been begun before, by a process that died.

        TryAgain, DatabaseError and unknown exceptions lead to another attempt later. RunInterrupted lets go of it, and
        it is begun again at once, elsewhere perhaps. Any other HoldfastError ends the task with `give_up`.
        """
        ...

    async def give_up(self, held: HeldTask, error: Exception) -> None:
        """Record with `held.finish` why the work was not done: the last attempt failed, or no other can help."""
        ...


class _Died(HoldfastError):
    """Every earlier attempt ended with its process."""


class TaskWorker:
    def __init__(self, database: Database, bus: Bus, settings: TaskSettings) -> None:
        self.owner = ids.new("worker")
        self.kinds: dict[str, TaskKind] = {}  # filled while the server is assembled
        self._database = database
        self._bus = bus
        self._settings = settings
        self._held: dict[str, tuple[HeldTask, asyncio.Task[None]]] = {}
        self._due = asyncio.Event()
        self._draining = False
        bus.on_task = self._due.set

    @property
    def performing(self) -> int:
        return len(self._held)

    def wake(self) -> None:
        """Tasks were added: call it after the commit. If it is lost, a sweep finds them."""
        self._due.set()
        self._bus.task_waits()

    async def expire_other_leases(self) -> None:
        await self._database.write(lambda tx: tasks.expire_other_leases(tx, self.owner))

    async def run_forever(self) -> None:
        settings = self._settings
        if not settings.takes:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(repeat(self.sweep, settings.sweep_s, at_once=True, sooner=self._due))
            group.create_task(repeat(self._renew, settings.lease_ttl_s / 3))

    async def sweep(self) -> int:
        """Begins what is due, as far as there is room. How many tasks these were."""
        room = self._settings.at_once - len(self._held)
        if room <= 0 or self._draining or not self.kinds:
            return 0
        kinds, ttl_us = list(self.kinds), self._ttl_us
        if not await self._database.read(lambda tx: tasks.any_free(tx, kinds)):
            return 0
        claimed = await self._database.write(lambda tx: tasks.claim(tx, kinds, self.owner, ttl_us, room))
        for task in claimed:
            held = HeldTask(task, self._database)
            running = asyncio.create_task(self._perform(held), name=task.id)
            self._held[task.id] = held, running
            running.add_done_callback(partial(self._stopped, task.id))
        return len(claimed)

    def _stopped(self, task_id: str, running: asyncio.Task[None]) -> None:
        del self._held[task_id]
        self._due.set()
        if not running.cancelled():
            running.result()  # an exception here is a bug, and loud

    async def settled(self) -> None:
        """Returns when what is performed here now has stopped."""
        if self._held:
            await asyncio.wait([running for _, running in self._held.values()])

    async def drain(self) -> None:
        """Lets tasks end for a moment, then hands over what is left: another attempt begins where this one was."""
        self._draining = True
        if self._held:
            await asyncio.wait([running for _, running in self._held.values()], timeout=self._settings.drain_s)
        left = list(self._held.values())
        for _, running in left:
            running.cancel()
        for held, running in left:
            await asyncio.wait([running])
            await self._let_go(held, partial(tasks.release, task=held.task))

    @property
    def _ttl_us(self) -> int:
        return int(self._settings.lease_ttl_s * 1_000_000)

    async def _renew(self) -> None:
        if not self._held:
            return
        before = dict(self._held)
        alive = await self._database.write_lease(lambda tx: tasks.renew(tx, list(before), self.owner, self._ttl_us))
        for task_id, (held, running) in before.items():
            if alive.get(task_id) != held.task.lease and task_id in self._held:
                running.cancel()

    async def _perform(self, held: HeldTask) -> None:
        task = held.task
        kind = self.kinds[task.kind]
        try:
            if task.attempts > MOST_ATTEMPTS:
                await kind.give_up(held, _Died("The server ended unexpectedly each time it was tried."))
            else:
                await self._attempt(kind, held)
        except DatabaseError as error:
            log.warning("task %s keeps its lease until it runs out: %s", task.id, error)
        except RunInterrupted as interruption:
            log.info("task %s was let go: %s", task.id, interruption)
            await self._let_go(held, partial(tasks.release, task=task))  # of a lease that was lost, nothing is left

    async def _attempt(self, kind: TaskKind, held: HeldTask) -> None:
        task = held.task
        try:
            await kind.perform(held)
            if not held.finished:
                await held.finish(_nothing)
        except RunInterrupted:
            raise
        except (TryAgain, DatabaseError) as error:
            expected = isinstance(error, TryAgain) and not error.counts
            log.log(
                logging.DEBUG if expected else logging.WARNING,
                "task %s (%s) is tried again: %s",
                task.id,
                task.kind,
                error,
            )
            await self._postpone(kind, held, error)
        except HoldfastError as error:
            await kind.give_up(held, error)
        except Exception as error:
            log.exception("task %s (%s) failed", task.id, task.kind)
            await self._postpone(kind, held, error)

    async def _postpone(self, kind: TaskKind, held: HeldTask, error: Exception) -> None:
        attempts = held.task.attempts
        counts = not isinstance(error, TryAgain) or error.counts
        if attempts >= MOST_ATTEMPTS and counts and not isinstance(error, DatabaseError):
            await kind.give_up(held, error)
            return
        asked_s = error.after_s if isinstance(error, TryAgain) else None
        after_s = _RETRY_AFTER_S[min(attempts, len(_RETRY_AFTER_S)) - 1] if asked_s is None else asked_s
        await self._let_go(
            held, partial(tasks.postpone, task=held.task, after_us=int(after_s * 1_000_000), counts=counts)
        )

    async def _let_go(self, held: HeldTask, job: Callable[[Transaction], Coroutine[Any, Any, bool]]) -> None:
        try:
            await self._database.write(job)
        except DatabaseError as error:
            log.warning("task %s keeps its lease until it runs out: %s", held.task.id, error)


async def _nothing(_: Transaction) -> None:
    pass

"""What stands around a piece of work: a scope that interrupts it, a wait for the database, a repetition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Literal, TypeVar

from holdfast.errors import DatabaseError, RunInterrupted

T = TypeVar("T")
Reason = Literal["user", "shutdown", "lease_lost"]
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_AFTER_FAILURE_S: Final = 0.5  # beside the usual pause, which for frames is too short to fill a log with
log = logging.getLogger(__name__)


class Interrupted(RunInterrupted):
    def __init__(self, reason: Reason) -> None:
        super().__init__(f"the run was interrupted: {reason}")
        self.reason: Reason = reason


class CancelScope:
    """Around the work of one run. Only what runs inside `run` can be interrupted; a checkpoint never is.

    The reason decides what interruption means. user: settle and end as cancelled. shutdown: write nothing, hand the run
    over. lease_lost: write nothing, another worker has it.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._inside: asyncio.Task[Any] | None = None
        self._let_go = asyncio.Event()  # the run may not go on here

    def cancel(self, reason: Reason) -> None:
        """A later reason replaces an earlier one only if it is the stronger: losing the lease forbids all writes."""
        if self.reason is None or reason == "lease_lost":
            self.reason = reason
        if reason != "user":
            self._let_go.set()
        if self._inside is not None:
            self._inside.cancel()

    def check(self) -> None:
        if self.reason is not None:
            raise Interrupted(self.reason)

    def clear_user(self) -> None:
        """The cancel has been recorded in the state; what is left to do is to write it down."""
        if self.reason == "user":
            self.reason = None

    async def pause(self, seconds: float) -> None:
        """For a checkpoint that is to be tried again. A user's cancel does not end it: what has been written must be
        known first, and the checkpoint itself finds the cancel on record."""
        try:
            async with asyncio.timeout(seconds):
                await self._let_go.wait()
        except TimeoutError:
            return
        raise Interrupted("lease_lost" if self.reason == "lease_lost" else "shutdown")

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Finishes the work, or raises Interrupted after the work has cleaned up after itself."""
        if self.reason is not None:
            work.close()
            raise Interrupted(self.reason)
        self._inside = asyncio.ensure_future(work)
        try:
            return await self._inside
        except asyncio.CancelledError:
            if self.reason is None:
                raise
            raise Interrupted(self.reason) from None
        finally:
            self._inside = None


async def until_database_answers(
    work: Callable[[], Awaitable[T]],
    what: str,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    waiting: Callable[[float], None] | None = None,
) -> T:
    """Repeats `work`, which must be safe to repeat, until the database has done it. `pause` may raise to end the wait.

    `waiting` is told after each failure for how long this has been going on.
    """
    now = asyncio.get_running_loop().time
    since, pause_s = now(), _FIRST_PAUSE_S
    while True:
        try:
            return await work()
        except DatabaseError as error:
            log.warning("%s waits for the database: %s", what, error)
        if waiting is not None:
            waiting(now() - since)
        await pause(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def repeat(
    work: Callable[[], Awaitable[object]],
    period_s: float,
    *,
    at_once: bool = False,
    sooner: asyncio.Event | None = None,
) -> None:
    """For ever, each time after `period_s`, or when `sooner` is set. A database that cannot be written now, because its
    disk is full, may be writable the next time."""
    pause_s = 0.0 if at_once else period_s
    while True:
        await _pause(pause_s, sooner)
        pause_s = period_s
        try:
            await work()
        except DatabaseError as error:
            name = getattr(work, "__name__", "work").strip("_")
            log.error("the worker will try to %s again: %s", name.replace("_", " "), error)
            await asyncio.sleep(_AFTER_FAILURE_S)


async def _pause(pause_s: float, sooner: asyncio.Event | None) -> None:
    if sooner is None:
        await asyncio.sleep(pause_s)
        return
    try:
        async with asyncio.timeout(pause_s):
            await sooner.wait()
    except TimeoutError:
        pass
    sooner.clear()

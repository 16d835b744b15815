"""Loops that outlast a database that fails for a while (decision 18): one call until it is done, and periodic work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.errors import DatabaseError

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_AFTER_FAILURE_S: Final = 0.5  # beside the usual pause, which for frames is too short to fill a log with
log = logging.getLogger(__name__)


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

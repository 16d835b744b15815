"""Waiting for a database that does not answer: what a run does instead of failing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from holdfast.errors import DatabaseError

T = TypeVar("T")
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0

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

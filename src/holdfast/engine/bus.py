"""Wakes whoever waits for a run to change: it begins to be driven here, it stops, the server stops.

A wake-up is a hint, never the truth: whoever waits looks at the record, waits, and looks again. What happens in another
process wakes nobody here, so nobody waits longer than NET_S for a run that is not driven here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

NET_S: Final = 0.1


class Watch:
    """Remembers a wake-up that comes before it is waited for: look at the record after the watch was made."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def woken(self, at_most_s: float | None) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()


class Bus:
    def __init__(self) -> None:
        self._watches: dict[str, set[Watch]] = {}

    @contextmanager
    def watch(self, run_id: str) -> Generator[Watch]:
        watch = Watch(run_id)
        self._watches.setdefault(run_id, set()).add(watch)
        try:
            yield watch
        finally:
            watches = self._watches[run_id]
            watches.discard(watch)
            if not watches:
                del self._watches[run_id]

    def wake(self, run_id: str) -> None:
        for watch in self._watches.get(run_id, ()):
            watch.wake()

    def wake_all(self) -> None:
        for run_id in self._watches:
            self.wake(run_id)

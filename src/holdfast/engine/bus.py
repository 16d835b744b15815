"""Wakes whoever waits for a run, here and in other processes: it changed, it is to stop, there is work to claim.

A wake-up is a hint, never the truth: whoever is woken looks at the record. Wake-ups of other processes come as signals
(`store/signals.py`). Should one be lost, a look at the record every `net_s` makes up for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from holdfast.store.signals import Signals

NET_S: Final = 0.1  # without signals
NET_WITH_SIGNALS_S: Final = 1.0
_CHANGED, _CANCEL, _WORK, _TASK, _FEED = "changed", "cancel", "work", "task", "feed"  # what a signal is about


class Bus:
    """Wakes whoever waits for a run, here and in other processes: it changed, it is to stop, there is work to claim.

    Should a signal be lost, a look at the record every `net_s` makes up for it.
    """

    def __init__(self, signals: Signals | None = None) -> None:
        self._signals = signals
        self._watches: dict[str, set[Watch]] = {}
        self.on_task: Callable[[], None] = lambda: None  # called when another process has added a task
        self.on_feed: Callable[[str], None] = lambda _: None  # called with what another process tells feeds
        self.on_missed: Callable[[], None] = lambda: None  # called when signals may have been lost

    @property
    def connected(self) -> bool | None:
        """Whether signals of other processes are heard; None where there are none."""
        return None if self._signals is None else self._signals.connected

    @property
    def net_s(self) -> float:
        """How long to wait at most before the record of a run that another process drives is looked at again."""
        return NET_WITH_SIGNALS_S if self._signals is not None and self._signals.connected else NET_S

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
        """Those who wait here."""
        for watch in self._watches.get(run_id, ()):
            watch.wake()

    def wake_all(self) -> None:
        for run_id in self._watches:
            self.wake(run_id)

    def run_changed(self, run_id: str) -> None:
        """It has ended, or more of its frames are stored. Call it after the commit, as the other two."""
        self.wake(run_id)
        self._send(f"{_CHANGED} {run_id}")

    def cancel_asked(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._send(f"{_CANCEL} {run_id}")

    def work_waits(self) -> None:
        """A run was stored for nobody, or let go."""
        self._send(_WORK)

    def task_added(self) -> None:
        """By a run that was driven here."""
        self.on_task()
        self.task_waits()

    def task_waits(self) -> None:
        self._send(_TASK)

    def tell_feeds(self, text: str) -> None:
        """Those of other processes."""
        self._send(f"{_FEED} {text}")

    def _send(self, signal: str) -> None:
        if self._signals is not None:
            self._signals.send(signal)

    async def listen(self, on_cancel: Callable[[str], None], on_work: Callable[[], None]) -> None:
        """For ever. Returns at once where there is only one process."""
        if self._signals is None:
            return

        def heard(signal: str) -> None:
            kind, _, told = signal.partition(" ")
            if kind == _CANCEL:
                on_cancel(told)
            elif kind == _WORK:
                on_work()
            elif kind == _TASK:
                self.on_task()
            elif kind == _CHANGED:
                self.wake(told)
            elif kind == _FEED:
                self.on_feed(told)

        def missed() -> None:
            self.wake_all()
            on_work()
            self.on_task()
            self.on_missed()

        await self._signals.run_forever(heard, missed)


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

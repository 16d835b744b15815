"""Where time comes from, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch: the time of day, for timestamps. It can be set back or forward."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds of a monotonic clock, for durations: it says how much time lies between two readings."""
        ...


class Stopwatch:
    """How long it has been since it was last asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = clock.now_ns()

    def __call__(self) -> int:
        before, self._since_ns = self._since_ns, self._clock.now_ns()
        return self._since_ns - before


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def now_ns(self) -> int:
        return time.monotonic_ns()


def reading_at(clock: Clock, at_us: int) -> int:
    """What `now_ns` would have given at a time of day that was recorded before, perhaps by another machine. A time
    that seems to lie in the future is taken for now."""
    return clock.now_ns() - max(0, clock.now_us() - at_us) * 1_000

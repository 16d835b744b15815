"""Where time comes from, so that tests can hold it still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since the epoch."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since the epoch; differences of two readings are durations."""
        ...


class Lap:
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
        return time.time_ns()

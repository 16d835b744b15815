"""How fast the machine is just now. One that is shared runs at half its speed for minutes, and all figures with it."""

from __future__ import annotations

import statistics
import time

_TURNS = 20_000
_TIMES = 25


def loop_ms() -> float:
    """A loop of plain Python that is always the same."""
    taken: list[float] = []
    for _ in range(_TIMES):
        began, total = time.perf_counter(), 0
        for number in range(_TURNS):
            total += number
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3

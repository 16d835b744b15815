"""How fast the machine is just now, and figures that are not to depend on it.

One that is shared runs at half its pace for moments or for minutes, and every figure with it. So each sample stands
between two runs of a loop that is always the same, and there are two medians: of the samples that were taken while the
machine ran at its full pace, and of all.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Final, NamedTuple

_LONG, _SHORT = 20_000, 3_000
_TIMES: Final = 25
_ENOUGH: Final = 25  # samples of each figure at full pace
_TOLERATED: Final = (
    1.25  # times the fastest loop of all: at full pace they differ by half of that, at half pace by more
)
_WATCHED_S: Final = 2.0


class Sample(NamedTuple):
    value: float
    pace_s: float  # the slower of the two loops


class Figure(NamedTuple):
    """What it comes to at the machine's full pace, and at whatever pace it had."""

    at_full_pace: float
    at_any_pace: float


def loop_ms() -> float:
    """A loop of plain Python that is always the same."""
    return statistics.median(_loop_s(_LONG) for _ in range(_TIMES)) * 1e3


@cache
def full_pace_s() -> float:
    """What the short loop may take at full pace: the fastest that is seen within a while decides."""
    until, fastest = time.perf_counter() + _WATCHED_S, _loop_s(_SHORT)
    while time.perf_counter() < until:
        fastest = min(fastest, _loop_s(_SHORT))
    return fastest * _TOLERATED


class Gauge:
    def __init__(self) -> None:
        self._full_pace_s = full_pace_s()
        self._samples: defaultdict[str, list[Sample]] = defaultdict(list)

    def take(self, name: str, work: Callable[[], float], times: int, cpu_s: Callable[[], float] | None = None) -> None:
        """`work` says how many seconds it took. The CPU time that passed meanwhile, if asked for, is `<name> cpu`."""
        for _ in range(times):
            before, used = _loop_s(_SHORT), cpu_s() if cpu_s else 0.0
            value = work()
            used = cpu_s() - used if cpu_s else 0.0
            pace_s = max(before, _loop_s(_SHORT))
            self._samples[name].append(Sample(value, pace_s))
            if cpu_s:
                self._samples[f"{name} cpu"].append(Sample(used, pace_s))

    async def take_awaited(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        """As `take`, once."""
        before = _loop_s(_SHORT)
        value = await work()
        self._samples[name].append(Sample(value, max(before, _loop_s(_SHORT))))

    @property
    def has_enough(self) -> bool:
        return all(len(self._at_full_pace(name)) >= _ENOUGH for name in self._samples)

    def median_ms(self, name: str) -> Figure:
        return self._told(name, statistics.median)

    def mean_ms(self, name: str) -> Figure:
        return self._told(name, statistics.mean)

    def _told(self, name: str, middle: Callable[[list[float]], float]) -> Figure:
        every = [one.value for one in self._samples[name]]
        return Figure(middle(self._at_full_pace(name) or every) * 1e3, middle(every) * 1e3)

    def over(self, name: str, floor: str, times: int = 1) -> Figure:
        """How much more than the floor, which may count more than once; medians."""
        figure, base = self.median_ms(name), self.median_ms(floor)
        return Figure(
            figure.at_full_pace - times * base.at_full_pace,
            figure.at_any_pace - times * base.at_any_pace,
        )

    def _at_full_pace(self, name: str) -> list[float]:
        return [one.value for one in self._samples[name] if one.pace_s <= self._full_pace_s]


def _loop_s(turns: int) -> float:
    began, total = time.perf_counter(), 0
    for number in range(turns):
        total += number
    return time.perf_counter() - began

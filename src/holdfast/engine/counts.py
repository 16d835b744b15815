"""What has happened in this process since it started: plain numbers that only grow, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class RunCounts:
    def __init__(self) -> None:
        self.started = 0  # began to be driven here; a run that changes hands begins again
        self.taken_over = 0  # of these, after their worker died
        self.lease_losses = 0
        self.ended: Counter[str] = Counter()  # by stop reason; one that waits for a decision has stopped too


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

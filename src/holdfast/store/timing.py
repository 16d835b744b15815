"""How long a database keeps its callers: plain numbers that only grow, read when somebody asks for metrics."""

from __future__ import annotations

from typing import Final

import msgspec

_A_WAIT_S: Final = 0.001  # less is the price of asking, not a queue


class Timing:
    """Of one kind of transaction. Only one thread may add to it."""

    __slots__ = ("count", "seconds", "waited_s", "waits")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.waits = 0
        self.waited_s = 0.0

    def add(self, waited_s: float, seconds: float) -> None:
        """`waited_s`: for a connection, or for the writer."""
        self.count += 1
        self.seconds += seconds
        self.waited_s += waited_s
        if waited_s > _A_WAIT_S:
            self.waits += 1


class Connections(msgspec.Struct, frozen=True):
    open: int
    used: int
    most: int


class DatabaseUsage(msgspec.Struct, frozen=True, kw_only=True):
    reads: Timing
    writes: Timing
    connections: Connections | None = None  # None: there is no pool

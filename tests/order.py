"""The order in which tests are run.

At first, xdist gives each process of a run its share of the list, in one piece. Long tests come at the beginning of
each piece, so that at the end of a run no process waits for a test that another has just begun.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def long_ones_first(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    long = [item for item in items if _is_long(item)]
    short = [item for item in items if not _is_long(item)]
    ordered: list[pytest.Item] = []
    for number in range(processes):
        begun_with = long[number::processes]
        size = (len(items) - len(ordered)) // (processes - number)  # as xdist divides them
        rest = max(0, size - len(begun_with))
        ordered += [*begun_with, *short[:rest]]
        short = short[rest:]
    return [*ordered, *short]


def _is_long(item: pytest.Item) -> bool:
    """Has more time than others. Tests through adapters keep their place among those of the same vendor, which is
    started for them."""
    limit = item.get_closest_marker("timeout")
    return limit is not None and limit.args[0] > _usual_s(item) and item.get_closest_marker("adapter") is None


def _usual_s(item: pytest.Item) -> float:
    return float(item.config.getini("timeout"))

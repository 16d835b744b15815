"""How hard to look. By default every run of the suite tries the same examples, so that a red build is red for everyone.

HOLDFAST_EFFORT=20 looks twenty times as long, with examples nobody has tried before. With any effort above 1, sweeps
are tried whole, of which a run has the same sample otherwise: every promise of a sweep is in the sample, not every
combination of it with everything else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Sequence
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

EFFORT = int(os.environ.get("HOLDFAST_EFFORT", "1"))


def examples(count: int, *, steps: int = 50) -> settings:
    return settings(
        max_examples=count * EFFORT,
        stateful_step_count=steps,
        derandomize=EFFORT == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


def sampled(items: Sequence[pytest.Item], names: Container[str]) -> list[pytest.Item]:
    """One of the tests that differ in nothing but the parameters with these names. Which one follows from what they are
    called, so that all values have their share."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_all_but(names, item)].append(item)
    chosen = {group[crc32(key.encode()) % len(group)] for key, group in groups.items()}
    return [item for item in items if item in chosen]


def _all_but(names: Container[str], item: pytest.Item) -> str:
    others = {name: value for name, value in _parameters(item).items() if name not in names}
    return f"{item.nodeid.partition('[')[0]} {others}"


def _parameters(item: pytest.Item) -> dict[str, object]:
    """Those that are no words or numbers by their place, as they may look different in every process."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return {}
    given = item.callspec
    return {
        name: value if isinstance(value, str | int) else given.indices[name] for name, value in given.params.items()
    }

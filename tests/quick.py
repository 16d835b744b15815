"""A plugin for `make quick`: of a test that is tried with many values, three. `make test` tries all of them.

Only where each test opens a database or asks a vendor: elsewhere a hundred values take less time than one does there.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent
_COSTLY: Final = ("api", "engine", "llm", "store")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in _COSTLY:
            tests[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for same in tests.values() for item in same if item not in few(same)}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def few(same: list[pytest.Item]) -> list[pytest.Item]:
    """The first, the last, and one between them."""
    return same if len(same) <= 3 else [same[0], same[len(same) // 2], same[-1]]

from __future__ import annotations

from pathlib import Path

import pytest

from ..effort import sampled

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of what is tried through every adapter, all but one are repeats."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    once = set(sampled(ours, ("adapter",)))
    for item in ours:
        if item not in once:
            item.add_marker(pytest.mark.adapter)

from __future__ import annotations

import pytest

from ..effort import sampled


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of what is tried in every mode of the sandbox, one is not slow."""
    ours = [item for item in items if item.path.name == "test_sandbox.py"]
    quick = sampled(ours, ("mode", "sandbox"))
    for item in ours:
        if item not in quick:
            item.add_marker(pytest.mark.slow)

from __future__ import annotations

import pytest

from ..effort import sampled

IN_MODES = ("test_sandbox.py", "test_tool_host.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of what is tried in every mode of the sandbox, one is not slow."""
    ours = [item for item in items if item.path.name in IN_MODES]
    quick = sampled(ours, ("mode", "sandbox"))
    for item in ours:
        if item not in quick:
            item.add_marker(pytest.mark.slow)

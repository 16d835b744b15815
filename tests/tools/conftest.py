from __future__ import annotations

import pytest

SANDBOXED = ("test_sandbox.py", "test_tool_host.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each starts a sandbox of its own."""
    for item in items:
        if item.path.name in SANDBOXED:
            item.add_marker(pytest.mark.slow)

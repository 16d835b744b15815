"""A plugin for the runs of `test_users.py`: every test of the sandbox, each in one of its modes."""

from __future__ import annotations

import pytest

from tests.effort import EFFORT, sampled


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if EFFORT == 1:
        items[:] = sampled(items, ("mode", "sandbox"))

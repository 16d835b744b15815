"""The whole server in this process, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..effort import sampled
from .resources import Served, serving

SWEEP = "test_a_list_yields_each_item_once_while_items_are_inserted"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a list that is read in pages of every size and in both orders, one is not slow."""
    sweep = [item for item in items if getattr(item, "originalname", "") == SWEEP]
    quick = set(sampled(sweep, ("limit", "order")))
    for item in sweep:
        if item not in quick:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(database_url, tmp_path) as opened:
        yield opened

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..scenario import Node, World, sqlite_at, world_at


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(sqlite_at(tmp_path)) as made:
        yield made


@pytest.fixture
async def node(world: World) -> AsyncIterator[Node]:
    made = world.node()
    yield made
    await made.die()

"""Every test that takes `world` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..scenario import Node, World, world_at


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with world_at(database_url) as made:
        yield made


@pytest.fixture
async def node(world: World) -> AsyncIterator[Node]:
    made = world.node()
    yield made
    await made.die()

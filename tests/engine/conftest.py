"""Every test that takes `world` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .. import postgres
from ..scenario import Node, World, sqlite_at, world_at


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres.running_server() as uri:
        asyncio.run(postgres.make_template(uri))
        yield uri


@pytest.fixture
async def sqlite_url(tmp_path: Path) -> str:
    return sqlite_at(tmp_path)


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    uri = await postgres.create_database(postgres_server)
    yield uri
    await postgres.drop_database(postgres_server, uri)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with world_at(database_url) as made:
        yield made


@pytest.fixture
async def node(world: World) -> AsyncIterator[Node]:
    made = world.node()
    yield made
    await made.die()

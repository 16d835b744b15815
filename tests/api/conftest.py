"""The whole server in this process, on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .. import postgres
from .resources import Served, serving


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres.running_server() as uri:
        asyncio.run(postgres.make_template(uri))
        yield uri


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    uri = await postgres.create_database(postgres_server)
    yield uri
    await postgres.drop_database(postgres_server, uri)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(database_url, tmp_path) as opened:
        yield opened

"""Every test that takes `database` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.store.database import Database, open_database

from .. import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres.running_server() as uri:
        asyncio.run(postgres.make_template(uri))
        yield uri


@pytest.fixture
async def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.fixture
async def postgres_url(postgres_server: str) -> AsyncIterator[str]:
    uri = await postgres.create_database(postgres_server)
    yield uri
    await postgres.drop_database(postgres_server, uri)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url)
    yield opened
    await opened.aclose()

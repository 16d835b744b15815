"""The surroundings are the same for everyone, and so are generated examples, of which none has to be quick: neither
a shell nor a busy machine fails a test."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from . import postgres
from .names import Names
from .postgres import PostgresServer
from .properties.effort import EFFORT
from .surroundings import calm

_calm = calm(os.environ)  # before any test and any of its processes look
os.environ.clear()
os.environ.update(_calm)

settings.register_profile(
    "steady",
    derandomize=EFFORT == 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One for all suites of a test process. Databases made from its template are migrated and empty."""
    with postgres.running_server() as server:
        asyncio.run(postgres.make_template(server.uri))
        yield server


@pytest.fixture
async def postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A migrated, empty database for one test."""
    url = await postgres.create_database(postgres_server.uri)
    yield url
    await postgres.drop_database(postgres_server.uri, url)


@pytest.fixture
async def empty_postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A database without a schema for one test."""
    url = await postgres.create_database(postgres_server.uri, migrated=False)
    yield url
    await postgres.drop_database(postgres_server.uri, url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/holdfast.db"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A test that takes it runs on SQLite and on PostgreSQL."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Names that lead where the test says."""
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    return made

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .. import postgres
from ..postgres import PostgresServer
from . import clocks
from .templates import PostgresTemplate, SqliteTemplate, Template, postgres_template, sqlite_template

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> SqliteTemplate:
    return asyncio.run(sqlite_template(tmp_path_factory.mktemp("template")))


@pytest.fixture(scope="session")
def on_postgres(postgres_server: PostgresServer) -> PostgresTemplate:
    return asyncio.run(postgres_template(asyncio.run(postgres.create_database(postgres_server.uri))))


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    """For tests that restart it, stop it or have it hang, which no other test of the run may notice."""
    with postgres.running_server() as server:
        yield server


@pytest.fixture
async def own_postgres_url(own_postgres: PostgresServer) -> AsyncIterator[str]:
    """A migrated, empty database in it. PostgreSQL runs again after the test, whatever the test did to it."""
    url = await postgres.create_database(own_postgres.uri)
    yield url
    own_postgres.resume()
    own_postgres.start()
    await postgres.drop_database(own_postgres.uri, url)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_database(request: pytest.FixtureRequest) -> str | None:
    """None is SQLite in the data directory of the one server."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else None


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Template:
    """SQLite's, unless a test is parametrised with the name of a database."""
    return request.getfixturevalue(f"on_{getattr(request, 'param', 'sqlite')}")


# Skewed clocks are tried in process everywhere, and with real servers where libfaketime is. CI must have it.
collect_ignore = [] if clocks.library() or "CI" in os.environ else ["test_clock_skew.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kill9: kills real servers many times; alone with -m kill9")

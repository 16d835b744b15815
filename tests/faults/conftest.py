from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from .. import postgres
from .templates import PostgresTemplate, SqliteTemplate, Template, postgres_template, sqlite_template


@pytest.fixture(scope="session")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> SqliteTemplate:
    return asyncio.run(sqlite_template(tmp_path_factory.mktemp("template")))


@pytest.fixture(scope="session")
def on_postgres() -> Iterator[PostgresTemplate]:
    with postgres.running_server() as uri:
        asyncio.run(postgres.make_template(uri))
        yield asyncio.run(postgres_template(asyncio.run(postgres.create_database(uri))))


@pytest.fixture
def template(request: pytest.FixtureRequest) -> Template:
    """SQLite's, unless a test is parametrised with the name of a database."""
    return request.getfixturevalue(f"on_{getattr(request, 'param', 'sqlite')}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "kill9: kills a real server again and again; alone with -m kill9")

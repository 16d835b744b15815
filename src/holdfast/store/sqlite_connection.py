"""A connection to a SQLite file and its log, and what a job sees of it: a transaction, or a view that cannot write."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from holdfast.core.changes import Change
from holdfast.errors import BugError, HoldfastError
from holdfast.store.statements import Compiler, PerDialect, Prepared, Statement
from holdfast.store.transaction import DatabaseError, Dialect, IntegrityError, Job, Parameters, Row, Transaction

T = TypeVar("T")

BUSY_TIMEOUT_S: Final = 10
COMPILER: Final = Compiler(SQLiteDialect_pysqlite(paramstyle="qmark"), insert)
CHECKPOINT_PAGES: Final = 4_000
_LONGEST_BYTES: Final = CHECKPOINT_PAGES * 4_200  # a page, and what the log says of it
_AHEAD_BYTES: Final = 1024 * 1024  # little, so that nobody has to wait for long

_log = logging.getLogger("holdfast.store")


def _unchanged(value: None) -> None:
    return value


# Python looks for an adapter of every value that is neither a number nor a text. Python 3.11 makes an exception with a
# text for each that has none, which a turn with its hundred nulls would pay for.
sqlite3.register_adapter(type(None), _unchanged)
sqlite3.register_adapter(bool, int)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    # Autocommit, so that every BEGIN and COMMIT is ours; the writer's connection is made here but used in its thread.
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=1_000
    )
    connection.row_factory = sqlite3.Row
    keep_a_log(connection)
    for pragma in (
        "synchronous = FULL",
        # Moving them into the file costs the commit that has to do it two syncs.
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
        "foreign_keys = ON",
        "cache_size = -4000",
        "temp_store = MEMORY",
        f"query_only = {'ON' if read_only else 'OFF'}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def now_us() -> int:
    return time.time_ns() // 1_000


class SQLiteTransaction:
    """Store functions never see more of the connection than this."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.changes: list[Change] = []

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        return self._run(statement, parameters).rowcount

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        if not parameters:
            return
        if len(parameters) == 1:
            self._run(statement, parameters[0])
            return
        prepared = COMPILER.prepare(statement, parameters[0])
        sql, _ = prepared.bind(parameters[0])
        try:
            self._connection.executemany(sql, [_bound(prepared, each)[1] for each in parameters])
        except sqlite3.Error as error:
            raise translate(error) from error

    async def execute_one(self, statement: Statement, parameters: Parameters) -> bool:
        return self._run(statement, parameters).rowcount == 1

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        cursor = self._run(statement, parameters)
        try:
            return cursor.fetchall()
        except sqlite3.Error as error:
            raise translate(error) from error

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None:
        # All of it: a statement with RETURNING has done its work only when its last row has been read.
        rows = await self.fetch_all(statement, parameters)
        return rows[0] if rows else None

    def _run(self, statement: Statement, parameters: Mapping[str, Any] | None) -> sqlite3.Cursor:
        given = parameters or {}
        prepared = COMPILER.prepare(statement, given)
        try:
            return self._connection.execute(*_bound(prepared, given))
        except sqlite3.Error as error:
            raise translate(error) from error


class SQLiteView(SQLiteTransaction):
    """For reads. It refuses to write by itself, because reads may use the writer's connection (decision 16)."""

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        raise BugError(f"A read tried to write: {statement}")

    def _run(self, statement: Statement, parameters: Mapping[str, Any] | None) -> sqlite3.Cursor:
        if isinstance(statement, PerDialect) or not statement.is_select:
            raise BugError(f"A read tried to write: {statement}")
        return super()._run(statement, parameters)

    def show(self, job: Job[T]) -> T:
        try:
            self._connection.execute("BEGIN DEFERRED")
            try:
                return drive(job, self)
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translate(error) from error


def _bound(prepared: Prepared, parameters: Parameters) -> tuple[str, Sequence[Any]]:
    """SQLite has no arrays: lists are sent as JSON, which `in_array` reads."""
    sql, values = prepared.bind(parameters)
    if prepared.shape.has_arrays:
        values = [msgspec.json.encode(each).decode() if isinstance(each, (list, tuple)) else each for each in values]
    return sql, values


def translate(error: sqlite3.Error) -> HoldfastError:
    if isinstance(error, sqlite3.IntegrityError):
        return IntegrityError(str(error).partition(" constraint failed: ")[2] or str(error))
    # DataError: a value that is too large, and stays so however often it is tried.
    if isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError)):
        return BugError(f"SQLite was used wrongly: {error}")
    return refusal(error)(f"SQLite: {error}")


class DamagedFile(DatabaseError):
    """Part of the file is not a database. It stays so until the file is replaced, which takes a restart."""


def refusal(error: BaseException) -> type[DatabaseError]:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
    return DamagedFile if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else DatabaseError


def drive(job: Job[T], tx: Transaction) -> T:
    """Run a coroutine that awaits only its transaction. On SQLite such an await completes at once, so one `send` runs
    the whole job; a job that suspends awaits something else, which is a bug (decision 6)."""
    coroutine = job(tx)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise BugError(f"The database job {job_name(job)} awaited something other than its transaction")


def job_name(job: Job[Any]) -> str:
    return getattr(job, "__qualname__", None) or repr(job)


def keep_a_log(connection: sqlite3.Connection) -> None:
    """A file is asked for it once. While another process is just filling the new file, SQLite refuses that at once,
    whatever its timeout; only to begin a transaction it waits."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        else:
            return


class LogPreallocation:
    """The one place where something other than SQLite writes to one of its files.

    A commit that makes the log grow waits for the file system to record its new length. So the log is made longer ahead
    of time, with zeros, which mean nothing to SQLite after the last frame. It reads the log by its header, its
    checksums and the index in `-shm`, never by the length of the file.

    It is kept for its worth alone (decision 24): without it commits take longer until the log has reached its full
    length of 16 MB, within 150 turns after each start. Creating an agent, a figure of the README, then takes 12 %
    longer. Nothing else depends on this class: without its use in `sqlite.py` everything works, at that price.
    """

    def __init__(self, connection: sqlite3.Connection, log: Path) -> None:
        self._connection = connection
        self._log = log
        self._bytes = 0  # of the log, when it was last made longer
        self.is_complete = False  # the log has its full length, and keeps it

    def keep_ahead(self) -> None:
        """It only saves time, so a failure is told and no more."""
        try:
            size = self._log.stat().st_size
            self.is_complete = size >= _LONGEST_BYTES
            if self._bytes < size < _LONGEST_BYTES:
                self._bytes = size + _AHEAD_BYTES
                self._append_zeros()
        except (OSError, sqlite3.Error) as error:
            _log.warning("the log of the database could not be preallocated: %s", error)

    def _append_zeros(self) -> None:
        # Within a write transaction, so that nobody else adds a frame meanwhile.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            with open(self._log, "ab") as file:
                file.write(bytes(_AHEAD_BYTES))
                file.flush()
                os.fdatasync(file.fileno())
        finally:
            self._connection.execute("ROLLBACK")

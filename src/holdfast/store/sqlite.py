"""SQLite: one writer thread that commits jobs in groups; reads are made on the event loop.

Group commit: a disk can make only so many commits durable in a second, so the writer takes every job that has queued up
while the last commit was on its way to the disk and commits them together. Each job has its own savepoint: one that
raises undoes only itself. No caller's future is resolved before the commit is on the disk.

Jobs are coroutines only so that PostgreSQL can run them too. Here nothing in them can suspend, so the writer thread
drives each to its end with a single `send`: one hop between threads for a transaction, not one for a statement
(decision 6).

A connection drops its cache when another one has written. So while the writer has nothing to write, reads use its
connection, whose cache holds what was just written; at other times they use one of their own (decision 16).

A read that may take long (a search, a large page) would stop the event loop, so it runs in a reader thread, with a
connection of its own that can be interrupted.

A file serves one server at a time. The lock is on the file itself, so it holds whatever path leads to the file.
SQLite's own locks are of another kind (fcntl, not flock) and do not meet this one. They have a trap, though: when a
process closes any descriptor of a file, it loses all fcntl locks that it holds on it. So the file is never opened here
while this process serves it already, and the descriptor is closed after the database.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.core.changes import Change, tell_nobody
from holdfast.errors import ConfigError
from holdfast.store import kv
from holdfast.store.migrations import revision
from holdfast.store.schema import ONLY_SQLITE, metadata
from holdfast.store.sqlite_connection import (
    COMPILER,
    DamagedFile,
    LogPreallocation,
    SQLiteTransaction,
    SQLiteView,
    connect,
    drive,
    keep_a_log,
    now_us,
    refusal,
)
from holdfast.store.transaction import DatabaseError, DatabaseUsage, Job, Timing, report_unseen

T = TypeVar("T")

LARGEST_GROUP: Final = 256
CHECK_EVERY_S: Final = 1.0  # anybody may ask whether the server is ready, and each answer costs a sync
_INSTRUCTIONS_BETWEEN_LOOKS: Final = 10_000  # of SQLite's virtual machine: less than a millisecond
LONG_READERS: Final = 2  # at once; more would only compete for the interpreter

_log = logging.getLogger("holdfast.store")
_DISK: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_ACCESS: Final = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})
_WAIT: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_served: set[tuple[int, int]] = set()  # device and inode of the files that servers of this process use


def open_sqlite(path: Path) -> SQLiteDatabase:
    """Migrated to the newest schema. What is wrong with the file is told at once, not by the first request."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        migrate(path)
        _read_a_little(path)
        return SQLiteDatabase(path)
    except OSError as error:
        raise _no_access(path, error) from error
    except sqlite3.Error as error:
        raise DatabaseError(sentence(path, error)) from error
    except DBAPIError as error:  # a migration
        if not isinstance(error.orig, sqlite3.Error):
            raise
        raise DatabaseError(sentence(path, error.orig)) from error


@contextmanager
def only_server(path: Path) -> Generator[None]:
    """While this lasts, no other server uses the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        identity = _identity(path)
        if identity in _served:
            raise _in_use(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _no_access(path, error) from error
    try:
        identity = _identity(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        assert identity is not None
        _served.add(identity)
        try:
            yield
        finally:
            _served.discard(identity)
    finally:
        os.close(descriptor)


def migrate(path: Path) -> None:
    """Bring the file to the newest schema, creating it if need be."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        current = revision.of_sqlite(connection)
        if current is None and _create(connection):
            return
    if current != revision.HEAD:
        from holdfast.store.migrations import upgrade  # noqa: PLC0415 - Alembic is slow to import

        upgrade.upgrade_sqlite(path)


def _create(connection: sqlite3.Connection) -> bool:
    """An empty file gets the newest schema at once, without Alembic, which would take as long as the rest of a start.

    False when somebody has begun to fill it. A test holds the result equal to what the migrations lead to.
    """
    keep_a_log(connection)
    connection.execute("BEGIN IMMEDIATE")
    if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        connection.execute("ROLLBACK")
        return False
    for table in metadata.sorted_tables:
        connection.execute(str(CreateTable(table).compile(dialect=COMPILER.dialect)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(str(CreateIndex(index).compile(dialect=COMPILER.dialect)))
    for statement in (*ONLY_SQLITE, *revision.STAMP):
        connection.execute(statement)
    connection.execute("COMMIT")
    return True


class _Queued(msgspec.Struct, eq=False):
    job: Job[Any]
    future: asyncio.Future[Any]
    performed: Callable[[Any], None] | None = None
    context: Context | None = None  # of the caller, for `performed`
    result: Any = None
    error: BaseException | None = None
    resolved: bool = False
    settled: Callable[[BaseException | None], None] | None = None
    asked_at: float = 0.0
    on_commit: Callable[[Sequence[Change]], None] = tell_nobody
    changes: Sequence[Change] = ()

    def resolve(self) -> None:
        if self.future.cancelled():
            if self.error is not None:
                report_unseen(self.error)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)
        if self.settled is not None:
            self.settled(self.error)  # last: whoever waits for the result goes on first
        if self.changes and self.error is None:
            self.on_commit(self.changes)


class _Writer:
    """The thread that owns the write connection. It ends when it meets None in its queue."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self.busy = threading.Lock()  # whoever holds it may use the connection
        self.waits = False  # for a read to end: the next one is not to come before it
        self.view = SQLiteView(connection)
        self.timing = Timing()
        self._connection = connection
        self._preallocation = LogPreallocation(connection, Path(f"{path}-wal"))
        self._tx = SQLiteTransaction(connection)
        # A daemon, so that a program that forgets to close its database can still end.
        self.thread = threading.Thread(target=self._run, name=f"holdfast-writer {path.name}", daemon=True)
        self.thread.start()

    def put(self, queued: _Queued) -> None:
        if not self.thread.is_alive():
            raise DatabaseError("The database writer has stopped")
        self.queue.put(queued)

    def _run(self) -> None:
        open_ = True
        group: list[_Queued] = []
        try:
            while open_:
                group = []
                open_ = self._take(group)
                if group:
                    self.waits = True
                    with self.busy:
                        self.waits = False
                        begun_at = time.perf_counter()
                        self._commit_together(group)
                        self._time(group, begun_at)
                    _resolve_all(group)
                    if not self._preallocation.is_complete:
                        with self.busy:
                            self._preallocation.keep_ahead()
        finally:
            self.busy.acquire()  # never released: reads must not use a connection that is closed
            self._connection.close()
            self._abandon(group)

    def _time(self, group: list[_Queued], begun_at: float) -> None:
        """The time of a commit is shared by those that it was made for."""
        seconds = (time.perf_counter() - begun_at) / len(group)
        for queued in group:
            self.timing.add(begun_at - queued.asked_at, seconds)

    def _abandon(self, group: list[_Queued]) -> None:
        """Only a bug ends the thread with work left. Its callers get an error, because they would wait for ever."""
        left = [queued for queued in group if not queued.resolved]
        while not self.queue.empty():
            if (queued := self.queue.get()) is not None:
                left.append(queued)
        for queued in left:
            queued.error = DatabaseError("The database writer has stopped")
        _resolve_all(left)

    def _take(self, group: list[_Queued]) -> bool:
        item = self.queue.get()
        while item is not None:
            group.append(item)
            if len(group) == LARGEST_GROUP:
                return True
            try:
                item = self.queue.get_nowait()
            except queue.Empty:
                return True
        return False

    def _commit_together(self, group: list[_Queued]) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            if len(group) == 1:
                self._perform_alone(group[0])
            else:
                for queued in group:
                    self._perform(queued)
                _call_performed(group)
                self._connection.execute("COMMIT")
        except (sqlite3.Error, DatabaseError) as error:
            self._fail_together(group, error)

    def _perform_alone(self, queued: _Queued) -> None:
        """Needs no savepoint: the transaction itself is what can be undone."""
        self._drive(queued)
        if queued.error is None:
            _call_performed([queued])
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _perform(self, queued: _Queued) -> None:
        self._connection.execute("SAVEPOINT job")
        self._drive(queued)
        if queued.error is not None:
            if not self._connection.in_transaction:
                # A full disk makes SQLite undo the whole transaction, and with it the jobs before this one.
                raise DatabaseError(f"The transaction was lost: {queued.error}") from queued.error
            self._connection.execute("ROLLBACK TO job")
        self._connection.execute("RELEASE job")

    def _drive(self, queued: _Queued) -> None:
        try:
            queued.result = drive(queued.job, self._tx)
        except BaseException as error:  # the job boundary: what it raised belongs to its awaiter, not to this thread
            queued.error = error
        if self._tx.changes:
            queued.changes, self._tx.changes = self._tx.changes, []

    def _fail_together(self, group: list[_Queued], error: sqlite3.Error | DatabaseError) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        for queued in group:
            if queued.error is None:
                queued.error = refusal(error)(f"Nothing was written: {error}")
                queued.error.__cause__ = error


def _call_performed(group: list[_Queued]) -> None:
    for queued in group:
        if queued.performed is not None and queued.error is None:
            _call_in(queued.future.get_loop(), queued.performed, queued.result, queued.context)


def _resolve_all(group: list[_Queued]) -> None:
    """Resolve the futures of all jobs, with one wake-up for each event loop."""
    for queued in group:
        queued.resolved = True
    loops = {queued.future.get_loop(): None for queued in group}
    for loop in loops:
        _call_in(loop, _resolve, [queued for queued in group if queued.future.get_loop() is loop])


def _call_in(
    loop: asyncio.AbstractEventLoop, callback: Callable[[T], None], argument: T, context: Context | None = None
) -> None:
    try:
        loop.call_soon_threadsafe(callback, argument, context=context)
    except RuntimeError:  # the loop was closed: no caller is left, and what is committed stays
        _log.warning("an event loop was closed before its database jobs ended")


def _resolve(group: list[_Queued]) -> None:
    for queued in group:
        queued.resolve()


class _LongRead:
    """One read in a reader thread. Whoever waits for it may call it off, at any moment."""

    def __init__(self) -> None:
        self.called_off = False

    def call_off(self) -> None:
        self.called_off = True

    def is_called_off(self) -> bool:
        return self.called_off


class _LongReads:
    """Reader threads and their connections. Both are made when they are first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(LONG_READERS, thread_name_prefix=f"holdfast-reader {path.name}")
        self._idle: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._running: set[_LongRead] = set()

    async def run(self, job: Job[T]) -> T:
        reading = _LongRead()
        self._running.add(reading)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._perform, job, reading)
        except asyncio.CancelledError:
            reading.call_off()
            raise
        finally:
            self._running.discard(reading)

    def close(self) -> None:
        """Ends what is running; those who wait for it are refused."""
        for reading in list(self._running):
            reading.call_off()
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().close()

    def _perform(self, job: Job[T], reading: _LongRead) -> T:
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = connect(self._path, read_only=True)
        # SQLite asks while a statement runs. `interrupt` would be lost on one that is only about to.
        connection.set_progress_handler(reading.is_called_off, _INSTRUCTIONS_BETWEEN_LOOKS)
        try:
            return SQLiteView(connection).show(job)
        finally:
            connection.set_progress_handler(None, 0)
            if connection.in_transaction:
                connection.rollback()
            self._idle.put(connection)


class SQLiteDatabase:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = connect(path, read_only=True)
        self._view = SQLiteView(self._reader)
        self._writer = _Writer(connect(path, read_only=False), path)
        self._check_again_at = 0.0
        self._damage: str | None = None
        self._long = _LongReads(path)
        self._reads = Timing()
        self._closed = False
        self._on_commit: Callable[[Sequence[Change]], None] = tell_nobody

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        self._check_open()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = copy_context() if performed is not None else None
        asked_at = time.perf_counter()
        self._writer.put(
            _Queued(job, future, performed, context, settled=settled, asked_at=asked_at, on_commit=self._on_commit)
        )
        try:
            return await future
        except DamagedFile as damaged:
            self._damage = damaged.message
            raise

    def tell_of_commits(self, tell: Callable[[Sequence[Change]], None]) -> None:
        self._on_commit = tell

    async def read(self, job: Job[T]) -> T:
        self._check_open()
        writer = self._writer
        begun_at = time.perf_counter()
        try:
            if writer.waits or not writer.busy.acquire(blocking=False):
                return self._view.show(job)
            try:
                return writer.view.show(job)
            finally:
                writer.busy.release()
        except DamagedFile as damaged:
            self._damage = damaged.message
            raise
        finally:
            self._reads.add(0.0, time.perf_counter() - begun_at)

    async def read_one(self, job: Job[T]) -> T:
        return await self.read(job)

    async def write_lease(self, job: Job[T]) -> T:
        return await self.write(job)

    async def check(self) -> int:
        """By a write, because a full disk still reads. What was found damaged stays so until the file is replaced."""
        self._check_open()
        if self._damage is not None:
            raise DamagedFile(self._damage)
        now = time.monotonic()
        if now >= self._check_again_at:
            self._check_again_at = now + CHECK_EVERY_S
            try:
                await self.write(lambda tx: kv.set_number(tx, "ready", time.time()))
            except DatabaseError:
                self._check_again_at = 0.0
                raise
        return now_us()

    async def read_long(self, job: Job[T]) -> T:
        self._check_open()
        begun_at = time.perf_counter()
        try:
            return await self._long.run(job)
        finally:
            self._reads.add(0.0, time.perf_counter() - begun_at)

    async def now_us(self) -> int:
        return now_us()

    def usage(self) -> DatabaseUsage:
        return DatabaseUsage(reads=self._reads, writes=self._writer.timing)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.queue.put(None)
        await asyncio.get_running_loop().run_in_executor(None, self._writer.thread.join)
        await asyncio.get_running_loop().run_in_executor(None, self._long.close)
        self._reader.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DatabaseError("The database is closed")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read_a_little(path: Path) -> None:
    """The first row of every table: a table that is missing or damaged at its root is found."""
    with closing(sqlite3.connect(path)) as connection:
        for table in metadata.tables.values():
            connection.execute(f'SELECT * FROM "{table.name}" LIMIT 1').fetchall()


def _in_use(path: Path) -> ConfigError:
    return ConfigError(
        f"Another Holdfast server uses the database {path}. A SQLite file serves one server: stop the other one, name "
        "another file in HOLDFAST_DATABASE_URL, or use PostgreSQL."
    )


def _no_access(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"The database {path} cannot be opened: {error.strerror or error}. The server must be able to read and write "
        "the file and its directory; HOLDFAST_DATA_DIR or HOLDFAST_DATABASE_URL names another place."
    )


def sentence(path: Path, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without the extended part
    if code in _DISK:
        return f"The database {path} cannot be written: {error}. Make room on its disk, or repair it, and start again."
    if code in _ACCESS:
        return (
            f"The database {path} cannot be opened: {error}. The server must be able to read and write the file and "
            "its directory; HOLDFAST_DATA_DIR or HOLDFAST_DATABASE_URL names another place."
        )
    if code in _WAIT:
        return f"The database {path} is held by another program: {error}. Close that program and start again."
    return (
        f"The database {path} is damaged: {error}. Restore it from a backup, or move it away to begin with an "
        "empty one."
    )

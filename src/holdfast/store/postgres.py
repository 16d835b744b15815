"""PostgreSQL through asyncpg. Imported only when a PostgreSQL database is opened.

One that cannot be used is refused with a sentence; a password is never part of it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy import select, text

from holdfast.core.changes import Change, tell_nobody
from holdfast.errors import BugError, ConfigError, HoldfastError
from holdfast.store import kv
from holdfast.store.migrations import revision
from holdfast.store.postgres_pool import Pool
from holdfast.store.postgres_transaction import JoinedRefused, OneStatement, PostgresTransaction
from holdfast.store.statements import database_now_us
from holdfast.store.transaction import (
    CommitUnknown,
    Connections,
    DatabaseError,
    DatabaseUsage,
    IntegrityError,
    Job,
    Timing,
    TookTooLong,
    Transaction,
    report_unseen,
)

T = TypeVar("T")

ATTEMPTS: Final = 5
RECONNECT_S: Final = 5.0  # how long a job waits for a database that restarts
CLOSE_S: Final = 1.0
CUT_S: Final = 1.0  # how long a job has to notice that its connection was cut
LEASE_CONNECTIONS: Final = 2
SERVER_NAME: Final = "holdfast"  # what the sessions of servers and workers are called in PostgreSQL
_CLOCK = select(database_now_us().label("now_us"))
# How a transaction begins. Spelled out, because whoever runs PostgreSQL may have set other defaults.
_BEGIN_WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_BEGIN_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# asyncpg ships no types for its functions.
_driver: Any = asyncpg
_log = logging.getLogger("holdfast.store")
DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
_HAS_REVISION: Final = text("SELECT to_regclass('alembic_version') IS NOT NULL AS known")
_REVISION: Final = text(revision.READ)
_CONFLICTS: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
# What the same statement with the same values meets again, however often it is tried.
_MISUSED: Final = (
    asyncpg.SyntaxOrAccessError,
    asyncpg.DataError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
_UNREACHABLE: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    OSError,
)
_REFUSED: Final = (asyncpg.InsufficientResourcesError, asyncpg.ReadOnlySQLTransactionError)


def translate(error: Exception, *, connection_lost: bool = False) -> HoldfastError:
    """A lost connection is a DatabaseError whatever the driver calls it: one that finds its connection closed under it
    says InterfaceError, as it does when it is misused."""
    if connection_lost:
        return ConnectionLost(f"PostgreSQL: the connection was lost: {error or type(error).__name__}")
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return IntegrityError(getattr(error, "constraint_name", None) or str(error))
    if isinstance(error, _UNREACHABLE):
        return ConnectionLost(f"PostgreSQL cannot be reached: {error or type(error).__name__}")
    if isinstance(error, _MISUSED):
        return BugError(f"PostgreSQL was used wrongly: {error}")
    return DatabaseError(f"PostgreSQL: {error or type(error).__name__}")


class ConnectionLost(DatabaseError):
    """The transaction was not committed, so it may be run again on another connection."""


class PostgresDatabase:
    """Transactions on a pool of connections. Every one has a time limit, past which its connection is cut.

    `lease_pool` serves only what must not wait behind other work: the renewal of leases, and the readiness check.
    """

    def __init__(self, pool: Pool, lease_pool: Pool, timeout_s: float) -> None:
        self._pool = pool
        self._lease_pool = lease_pool
        self._timeout_s = timeout_s
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._refused: str | None = None  # why the last write failed, if the database refuses to store anything
        self._checking: asyncio.Task[int] | None = None
        self._closed = False
        self._reads, self._written = Timing(), Timing()
        self._on_commit: Callable[[Sequence[Change]], None] = tell_nobody

    async def open_first(self) -> None:
        """One connection of each pool, so that a database that cannot be used is noticed now."""
        for pool in (self._pool, self._lease_pool):
            pool.release(await pool.acquire(self._timeout_s))

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        # In a task of its own and shielded, so that a cancelled caller leaves no half-done connection behind and an
        # accepted job commits, just as with SQLite.
        self._check_open()
        task = asyncio.get_running_loop().create_task(self._write(job, performed, settled))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report_unseen)
            raise

    async def _write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None,
        settled: Callable[[BaseException | None], None] | None,
    ) -> T:
        try:
            written = await self._retried(self._pool, job, _BEGIN_WRITE)
        except HoldfastError as error:
            if isinstance(error.__cause__, _REFUSED):
                self._refused = error.message
            if settled is not None:
                settled(error)
            raise
        self._refused = None
        if performed is not None:
            performed(written)  # no sooner: what comes next takes another connection, which would not see it
        if settled is not None:
            settled(None)
        return written

    def tell_of_commits(self, tell: Callable[[Sequence[Change]], None]) -> None:
        self._on_commit = tell

    async def read(self, job: Job[T]) -> T:
        self._check_open()
        return await self._retried(self._pool, job, _BEGIN_READ)

    async def read_one(self, job: Job[T]) -> T:
        self._check_open()
        return await self._retried(self._pool, job, None)

    async def write_lease(self, job: Job[T]) -> T:
        self._check_open()
        return await self._retried(self._lease_pool, job, _BEGIN_WRITE)

    async def check(self) -> int:
        # One for all who ask at once: anybody may, and leases are renewed on the same connections.
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())
            self._checking.add_done_callback(_seen)
        return await asyncio.shield(self._checking)

    async def _check(self) -> int:
        if self._refused is not None:
            # Only a write can tell whether it is over.
            await self.write(lambda tx: kv.set_number(tx, "ready", time.time()))
        return await self._transact(self._lease_pool, _now_us, None)

    async def read_long(self, job: Job[T]) -> T:
        return await self.read(job)  # it waits elsewhere anyway, and asyncpg cancels the query with its caller

    async def now_us(self) -> int:
        return await self.read_one(_now_us)

    async def _retried(self, pool: Pool, job: Job[T], begin: str | None) -> T:
        """A job that was certainly not committed is run again: after a deadlock, and while a restarting database
        comes back."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + min(RECONNECT_S, self._timeout_s)
        attempt, joins = 0, True
        while True:
            try:
                return await self._transact(pool, job, begin, joins=joins)
            except JoinedRefused:
                joins = False
                continue
            except ConnectionLost:
                if self._closed or loop.time() >= give_up_at:
                    raise
            except DatabaseError as error:
                if not isinstance(error.__cause__, _CONFLICTS) or attempt >= ATTEMPTS - 1:
                    raise
            await asyncio.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 5)))
            attempt += 1

    async def _transact(self, pool: Pool, job: Job[T], begin: str | None, *, joins: bool = True) -> T:
        """`begin`: None for a job of one statement, which is a transaction by itself."""
        asked_at, writes = time.perf_counter(), begin is _BEGIN_WRITE
        try:
            connection = await pool.acquire(self._timeout_s)
        except TimeoutError as error:
            raise DatabaseError(
                f"PostgreSQL: no connection could be had within {self._timeout_s:g} s. All of them are in use, or the "
                "database does not answer."
            ) from error
        except DRIVER_ERRORS as error:
            raise translate(error) from error
        begun_at = time.perf_counter()
        cancelling = asyncio.timeout(None)
        limit = _TimeLimit(connection, self._timeout_s, cancelling)
        tx = OneStatement(connection) if begin is None else PostgresTransaction(connection, begin, joins=joins)
        is_open = True
        try:
            async with cancelling:
                result = await job(tx)
                if begin is not None:
                    await tx.commit()
                is_open = False
                if tx.changes:
                    self._on_commit(tx.changes)
                return result
        except DRIVER_ERRORS as error:
            raise _failure(error, connection, limit, committing=writes and tx.is_committing) from error
        except AttributeError as error:
            # Between two messages of one statement asyncpg does not notice that it has let go of a lost connection.
            if not connection.is_closed():
                raise
            raise _failure(error, connection, limit, committing=writes and tx.is_committing) from error
        finally:
            limit.cancel()
            timing = self._written if writes else self._reads
            timing.add(begun_at - asked_at, time.perf_counter() - begun_at)
            await self._give_back(pool, connection, is_open=is_open)

    async def _give_back(self, pool: Pool, connection: Any, *, is_open: bool) -> None:
        """`is_open`: a transaction may have begun, and is not known to have ended. A single statement is one, too: when
        it has been prepared and is not executed, PostgreSQL stays in it, and the driver does not say so."""
        if not is_open or connection.is_closed():
            pool.release(connection)
            return
        # In a task of its own and shielded: whoever waited may be cancelled again and again, at each of its steps.
        task = asyncio.get_running_loop().create_task(_roll_back(pool, connection))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        await asyncio.shield(task)

    def usage(self) -> DatabaseUsage:
        connections = Connections(open=self._pool.open, used=self._pool.used, most=self._pool.most)
        return DatabaseUsage(reads=self._reads, writes=self._written, connections=connections)

    async def is_newest(self) -> bool:
        """Whether its schema is the one that this program was written for."""
        return await self.read(_is_newest)

    async def aclose(self) -> None:
        """What hangs is cut off: a stopping server does not wait for a database that does not answer."""
        if self._closed:
            return
        self._closed = True
        if self._unfinished:
            await asyncio.wait(self._unfinished, timeout=CLOSE_S)
        for pool in (self._pool, self._lease_pool):
            try:
                async with asyncio.timeout(CLOSE_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    def _check_open(self) -> None:
        if self._closed:
            raise DatabaseError("The database is closed")


class _TimeLimit:
    """Cuts a connection when its transaction takes too long: a server that hangs would not answer a cancel request.
    That ends nearly every wait. The driver's for room to send more it does not, and so that is cancelled after it."""

    def __init__(self, connection: Any, seconds: float, cancelling: asyncio.Timeout) -> None:
        self._connection = connection
        self._seconds = seconds
        self._cancelling = cancelling
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._cut)
        self.passed = False

    def cancel(self) -> None:
        self._timer.cancel()

    def error(self) -> DatabaseError:
        return TookTooLong(f"PostgreSQL did not finish a transaction within {self._seconds:g} s.")

    def _cut(self) -> None:
        self.passed = True
        self._connection.terminate()
        self._cancelling.reschedule(self._loop.time() + CUT_S)


def _failure(error: Exception, connection: Any, limit: _TimeLimit, *, committing: bool) -> HoldfastError:
    if limit.passed:
        return limit.error()
    lost = connection.is_closed()
    if committing and (lost or isinstance(error, OSError)):
        return CommitUnknown(f"PostgreSQL: the connection was lost during a commit, which may have happened: {error}")
    return translate(error, connection_lost=lost)


async def _roll_back(pool: Pool, connection: Any) -> None:
    is_open = True
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.execute("ROLLBACK")
        is_open = False
    except (*DRIVER_ERRORS, AttributeError) as error:
        if isinstance(error, AttributeError) and not connection.is_closed():  # see `_transact`
            raise
        _log.warning("a transaction was lost with its connection to PostgreSQL: %s", error or type(error).__name__)
    finally:
        if is_open:
            connection.terminate()
        pool.release(connection)


async def _is_newest(tx: Transaction) -> bool:
    known = await tx.fetch_one(_HAS_REVISION)
    assert known is not None
    row = await tx.fetch_one(_REVISION) if known["known"] else None
    return row is not None and row["version_num"] == revision.HEAD


async def _now_us(tx: Transaction) -> int:
    row = await tx.fetch_one(_CLOCK)
    assert row is not None
    return row["now_us"]


def _seen(task: asyncio.Task[Any]) -> None:
    """Whoever waited for it may have given up, and then nobody asks for its exception."""
    if not task.cancelled():
        task.exception()


def _report_unseen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        report_unseen(error)


def _unopened(dsn: str, *, pool_size: int, timeout_s: float, name: str) -> PostgresDatabase:
    """The server ends what a client that was cut off has left behind, so that its locks do not outlive it for long."""
    left_behind_ms = str(int(timeout_s * 2_000))
    settings = {
        "application_name": name,
        # Compiling a plan costs more than it saves on statements as short as ours.
        "jit": "off",
        "statement_timeout": left_behind_ms,
        "idle_in_transaction_session_timeout": left_behind_ms,
    }

    def connect() -> Awaitable[Any]:
        return _driver.connect(
            dsn,
            timeout=timeout_s,
            statement_cache_size=1_000,
            max_cached_statement_lifetime=0,
            server_settings=settings,
        )

    return PostgresDatabase(Pool(connect, pool_size), Pool(connect, LEASE_CONNECTIONS), timeout_s)


_HAS_TABLES: Final = "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = current_schema())"
# Any number will do, as long as every Holdfast process takes the same one.
_MIGRATION_LOCK: Final = 0x686F6C6466617374


async def migrate(dsn: str) -> None:
    """Bring the database to the newest revision; of several processes starting at once, one does and the rest wait."""
    connection: Any = await _driver.connect(dsn)
    try:
        if await read_revision(connection) == revision.HEAD:
            return
        from holdfast.store.migrations import upgrade  # noqa: PLC0415 - Alembic is slow to import

        await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK)
        current = await read_revision(connection)
        if current != revision.HEAD:
            await connection.execute(upgrade.postgres_script(current))
    finally:
        # Closing the session gives the advisory lock back.
        await connection.close()


async def inspect(dsn: str) -> tuple[str | None, bool]:
    """The schema's revision, and whether there are any tables, of Holdfast or not. Changes nothing."""
    connection: Any = await _driver.connect(dsn)
    try:
        found = await read_revision(connection)
        return found, await connection.fetchval(_HAS_TABLES)
    finally:
        await connection.close()


async def read_revision(connection: Any) -> str | None:
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return None
    return await connection.fetchval(revision.READ)


async def open_postgres(dsn: str, *, pool_size: int, timeout_s: float, name: str = SERVER_NAME) -> PostgresDatabase:
    """Migrated to the newest schema. One that is needs no connection for that: looking takes one of the pool's."""
    with explained(dsn):
        database = _unopened(dsn, pool_size=pool_size, timeout_s=timeout_s, name=name)
        async with AsyncExitStack() as on_failure:
            on_failure.push_async_callback(database.aclose)
            await database.open_first()
            if not await database.is_newest():
                await migrate(dsn)
            on_failure.pop_all()
        return database


@contextmanager
def explained(dsn: str) -> Generator[None]:
    """Whatever the driver raises becomes a sentence that says what to do."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} refused to set the database up: {error}. Grant the user CREATE on the schema "
            "public, or make it the owner of the database."
        ) from error
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} refused the user: {error}. Check the user and the password in "
            "HOLDFAST_DATABASE_URL."
        ) from error
    except asyncpg.InvalidCatalogNameError as error:
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} has no such database: {error}. Create it with createdb, or name another in "
            "HOLDFAST_DATABASE_URL."
        ) from error
    except (_driver.ClientConfigurationError, ValueError) as error:
        raise ConfigError(
            "HOLDFAST_DATABASE_URL is not an address of PostgreSQL: write it as "
            f"postgresql://user:password@host:5432/database ({type(error).__name__})."
        ) from error
    except DRIVER_ERRORS as error:  # a TimeoutError is an OSError
        raise DatabaseError(
            f"PostgreSQL at {_place(dsn)} cannot be used: {_reason(error)}. Check that it runs, that this machine may "
            "reach it, and what HOLDFAST_DATABASE_URL says."
        ) from error


def _place(dsn: str) -> str:
    """Its host and port, or the directory of its socket."""
    parts = urlsplit(dsn)
    host = parts.netloc.rpartition("@")[2]
    return host or parts.query or "the default address"


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.rstrip(".")

"""PostgreSQL through asyncpg. Imported only when a PostgreSQL database is opened."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import asyncpg
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from holdfast.errors import BugError, HoldfastError
from holdfast.store.migrations import revision
from holdfast.store.statements import Compiler, Statement
from holdfast.store.transaction import DatabaseError, IntegrityError, Job, Parameters, Row, Transaction

T = TypeVar("T")

COMPILER: Final = Compiler(PGDialect_asyncpg(), insert)
ATTEMPTS: Final = 5
_CLOCK = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint) AS now_us")
# asyncpg ships no types for its functions.
_driver: Any = asyncpg
_log = logging.getLogger("holdfast.store")


class PostgresTransaction:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        given = parameters or {}
        sql, values = COMPILER.prepare(statement, given).bind(given)
        done: str = await self._connection.execute(sql, *values)
        count = done.rpartition(" ")[2]
        return int(count) if count.isdigit() else 0

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        if not parameters:
            return
        prepared = COMPILER.prepare(statement, parameters[0])
        sql, _ = prepared.bind(parameters[0])
        await self._connection.executemany(sql, [prepared.bind(each)[1] for each in parameters])

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        given = parameters or {}
        sql, values = COMPILER.prepare(statement, given).bind(given)
        return await self._connection.fetch(sql, *values)

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None:
        rows = await self.fetch_all(statement, parameters)
        return rows[0] if rows else None


def translate(error: Exception) -> HoldfastError:
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return IntegrityError(getattr(error, "constraint_name", None) or str(error))
    if isinstance(error, (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.InterfaceError)):
        return BugError(f"PostgreSQL was used wrongly: {error}")
    return DatabaseError(f"PostgreSQL: {error}")


class PostgresDatabase:
    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._writes: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def write(self, job: Job[T], performed: Callable[[T], None] | None = None) -> T:
        # In a task of its own and shielded, so that a cancelled caller leaves no half-done connection behind and an
        # accepted job commits, just as with SQLite.
        self._check_open()
        task = asyncio.get_running_loop().create_task(self._write(job, performed))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report_unseen)
            raise

    async def _write(self, job: Job[T], performed: Callable[[T], None] | None) -> T:
        for attempt in range(ATTEMPTS):
            try:
                written = await self._attempt(job)
                if performed is not None:
                    performed(written)  # no sooner: what comes next takes another connection, which would not see it
                return written
            except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError) as error:
                if attempt == ATTEMPTS - 1:
                    raise translate(error) from error
                await asyncio.sleep(random.uniform(0, 0.01 * 2**attempt))
        raise BugError("unreachable: the last attempt returns or raises")

    async def _attempt(self, job: Job[T]) -> T:
        try:
            async with self._pool.acquire() as connection, connection.transaction(isolation="read_committed"):
                return await job(PostgresTransaction(connection))
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise translate(error) from error

    async def read(self, job: Job[T]) -> T:
        self._check_open()
        try:
            async with (
                self._pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                return await job(PostgresTransaction(connection))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise translate(error) from error

    async def read_long(self, job: Job[T]) -> T:
        return await self.read(job)  # it waits elsewhere anyway, and asyncpg cancels the query with its caller

    async def now_us(self) -> int:
        async def ask(tx: Transaction) -> int:
            row = await tx.fetch_one(_CLOCK)
            assert row is not None
            return row["now_us"]

        return await self.read(ask)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._writes:
            await asyncio.wait(self._writes)
        await self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DatabaseError("The database is closed")


def _report_unseen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("a database job failed after its caller had left", exc_info=error)


async def open_pool(dsn: str, *, size: int) -> Any:
    return await _driver.create_pool(
        dsn,
        min_size=1,
        max_size=size,
        statement_cache_size=1_000,
        max_cached_statement_lifetime=0,
        # Compiling a plan costs more than it saves on statements as short as ours.
        server_settings={"jit": "off", "application_name": "holdfast"},
    )


# Any number will do, as long as every Holdfast process takes the same one.
_MIGRATION_LOCK: Final = 0x686F6C6466617374


async def migrate(dsn: str) -> None:
    """Bring the database to the newest revision; of several processes starting at once, one does and the rest wait."""
    connection: Any = await _driver.connect(dsn)
    try:
        if await _revision(connection) == revision.HEAD:
            return
        from holdfast.store.migrations import upgrade  # noqa: PLC0415 - Alembic is slow to import

        await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK)
        current = await _revision(connection)
        if current != revision.HEAD:
            await connection.execute(upgrade.postgres_script(current))
    finally:
        # Closing the session gives the advisory lock back.
        await connection.close()


async def _revision(connection: Any) -> str | None:
    if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
        return None
    return await connection.fetchval(revision.READ)

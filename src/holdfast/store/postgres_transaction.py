"""What a store function is given on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import asyncpg
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from holdfast.core.changes import Change
from holdfast.errors import BugError, HoldfastError
from holdfast.store.postgres_batch import Batch
from holdfast.store.statements import Compiler, Statement
from holdfast.store.transaction import Dialect, Parameters, Row

COMPILER: Final = Compiler(PGDialect_asyncpg(), insert)


class JoinedRefused(HoldfastError):
    """Of a joined statement only PostgreSQL knows which part failed first. The job is run again without joining, and
    raises what it would have raised."""


class PostgresTransaction:
    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any, *, joins: bool = True) -> None:
        """`joins`: what may be put off is, and joined into one statement."""
        self._connection = connection
        self._joins = joins
        self._batch = Batch()
        self._counts = False
        self.changes: list[Change] = []

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        await self.flush()
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
        rows = [prepared.bind(each)[1] for each in parameters]
        if self._joins and self._batch.add(sql, rows):
            return
        await self.flush()
        await self._connection.executemany(sql, rows)

    async def execute_one(self, statement: Statement, parameters: Parameters, otherwise: HoldfastError) -> None:
        sql, values = COMPILER.prepare(statement, parameters).bind(parameters)
        if self._joins and self._batch.add(sql, [values], counted=True):
            self._counts = True
        elif await self.execute(statement, parameters) != 1:
            raise otherwise

    async def flush(self) -> None:
        """Sends what was put off. Whatever follows in the transaction sees it."""
        if not self._batch:
            return
        sql, values = self._batch.take()
        if not self._counts:
            await self._connection.execute(sql, *values)
            return
        self._counts = False
        try:
            counts = await self._connection.fetchrow(sql, *values)
        except asyncpg.IntegrityConstraintViolationError as error:
            raise JoinedRefused("a row was refused") from error
        if any(count != 1 for count in counts):
            raise JoinedRefused("a statement that must affect one row affected none or several")

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        await self.flush()
        given = parameters or {}
        sql, values = COMPILER.prepare(statement, given).bind(given)
        return await self._connection.fetch(sql, *values)

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None:
        rows = await self.fetch_all(statement, parameters)
        return rows[0] if rows else None


class OneStatement(PostgresTransaction):
    """Outside any transaction, where two statements would not see the same."""

    _is_used = False

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        if self._is_used:
            raise BugError("this job was said to have one statement, and has more")
        self._is_used = True
        return await super().fetch_all(statement, parameters)

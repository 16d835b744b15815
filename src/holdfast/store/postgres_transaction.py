"""What a store function is given on PostgreSQL: a transaction that joins writes whose outcome nobody reads.

They become one statement, `WITH` all but the last: one round trip for all. PostgreSQL runs the parts of such a
statement in no particular order and on one view of the data. So no part may read what another one writes, nor change
the same row: a table occurs twice only if both parts plainly insert. Foreign keys are checked at its end, when all rows
are there.

Of a part that must affect one row, the joined statement tells how many it has affected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import asyncpg
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from holdfast.core.changes import Change
from holdfast.errors import BugError, HoldfastError
from holdfast.store.statements import Compiler, Statement
from holdfast.store.transaction import Dialect, Parameters, Row

COMPILER: Final = Compiler(PGDialect_asyncpg(), insert)
_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_INSERT: Final = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )(\([$\w:, ]+\))( ON CONFLICT DO NOTHING)?")
_TABLE: Final = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)")
_MOST_ROWS: Final = 8  # of one statement; many rows are sent more cheaply by the driver, which streams them
_MOST_VALUES: Final = 1_000  # of all; PostgreSQL takes 65,535


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


class Part(NamedTuple):
    sql: str  # for one row
    rows: int = 1
    counted: bool = False


class Batch:
    """The text of each write with its rows, in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._values: list[Any] = []
        self._plain: dict[str, bool] = {}  # of each table, whether it is only inserted into

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, sql: str, rows: Sequence[Sequence[Any]], *, counted: bool = False) -> bool:
        """False when it is to be sent by itself: many rows, several that are not plainly inserted, or rows that another
        part may change too."""
        plain, table = _INSERT.fullmatch(sql) is not None, _table_of(sql)
        if len(rows) > 1 and (len(rows) > _MOST_ROWS or not plain):
            return False
        if len(self._values) + len(rows) * len(rows[0]) > _MOST_VALUES:
            return False
        if table is None or (table in self._plain and not (plain and self._plain[table])):
            return False
        self._plain[table] = plain
        self._parts.append(Part(sql, len(rows), counted))
        for row in rows:
            self._values += row
        return True

    def take(self) -> tuple[str, list[Any]]:
        """The joined statement, and its values. It returns a row of counts if there is anything to count. The batch is
        empty then."""
        sql, values = joined(tuple(self._parts)), self._values
        self._parts, self._values, self._plain = [], [], {}
        return sql, values


@lru_cache(maxsize=1_000)
def _table_of(sql: str) -> str | None:
    found = _TABLE.match(sql)
    return None if found is None else found[1]


@lru_cache(maxsize=1_000)
def joined(parts: tuple[Part, ...]) -> str:
    texts: list[str] = []
    used = 0
    for sql, rows, counted in parts:
        insert = _INSERT.fullmatch(sql) if rows > 1 else None
        before, row, after = insert.groups("") if insert else ("", sql, "")
        width = len(set(_PLACEHOLDER.findall(row)))
        text = before + ", ".join(_shifted(row, used + number * width) for number in range(rows)) + after
        texts.append(f"{text} RETURNING 1" if counted else text)
        used += rows * width
    counts = [f"(SELECT count(*) FROM part_{number})" for number, part in enumerate(parts) if part.counted]
    last = f"SELECT {', '.join(counts)}" if counts else texts.pop()
    named = ", ".join(f"part_{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} {last}" if named else last


def _shifted(text: str, by: int) -> str:
    return _PLACEHOLDER.sub(lambda found: f"${int(found[1]) + by}", text)

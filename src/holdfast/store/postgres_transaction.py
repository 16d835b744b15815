"""What a store function is given on PostgreSQL: a transaction that joins writes whose outcome nobody reads.

They become one statement, `WITH` all but the last: one round trip for all. PostgreSQL runs the parts of such a
statement in no particular order and on one view of the data. So no part may read what another one writes, nor change
the same row: a table occurs twice only if both parts plainly insert. Foreign keys are checked at its end, when all rows
are there.

A joined statement fails as a whole when a part that must affect one row does not. If it is all that a job sends, it
needs no BEGIN and no COMMIT: a statement is a transaction by itself.
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
# An insert of one row, which can be made one of several: nothing after its values names a placeholder.
_INSERT: Final = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )(\([$\w:, ]+\))( ON CONFLICT [^$]+)?")
_PLAIN: Final = (None, " ON CONFLICT DO NOTHING")
_TABLE: Final = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)")
_MOST_ROWS: Final = 8  # of one statement; many rows are sent more cheaply by the driver, which streams them
_MOST_VALUES: Final = 1_000  # of all; PostgreSQL takes 65,535


# How a statement fails that was joined: by a constraint, by `joined`, or because whoever runs PostgreSQL has made
# sessions read-only unless a transaction says otherwise, which one without BEGIN does not.
_REFUSALS: Final = (
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.InvalidTextRepresentationError,
    asyncpg.ReadOnlySQLTransactionError,
)


class JoinedRefused(HoldfastError):
    """Of a joined statement only PostgreSQL knows which part failed first. The job is run again without joining, and
    learns or raises what it would have."""


class PostgresTransaction:
    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any, begin: str | None = None, *, joins: bool = True) -> None:
        """`begin`: what a transaction of several statements begins with; None: there is but one. `joins`: what may be
        put off is, and joined into one statement."""
        self._connection = connection
        self._begin = begin  # None once it was sent
        self._joins = joins
        self._batch = Batch()
        self.is_committing = False
        self.changes: list[Change] = []

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        await self._flush()
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
        await self._flush()
        await self._connection.executemany(sql, rows)

    async def execute_one(self, statement: Statement, parameters: Parameters) -> bool:
        sql, values = COMPILER.prepare(statement, parameters).bind(parameters)
        if self._joins and self._batch.add(sql, [values], must_affect_one=True):
            return True
        return await self.execute(statement, parameters) == 1

    async def commit(self) -> None:
        """With what was put off. If nothing was sent before, and a part of it must affect one row, it is the whole
        transaction. Whoever loses the connection meanwhile does not know whether it happened, and may try again: it
        cannot happen twice."""
        if self._begin is not None and self._batch.is_guarded:
            self.is_committing = True
            await self._send_batch()
        elif self._begin is None or self._batch:
            await self._flush()
            self.is_committing = True
            await self._connection.execute("COMMIT")

    async def _flush(self) -> None:
        """Begins the transaction, and sends what was put off. Whatever follows sees it."""
        if self._begin is not None:
            await self._connection.execute(self._begin)
            self._begin = None
        if self._batch:
            await self._send_batch()

    async def _send_batch(self) -> None:
        sql, values = self._batch.take()
        try:
            await self._connection.execute(sql, *values)
        except _REFUSALS as error:
            raise JoinedRefused("a joined statement was refused") from error

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        await self._flush()
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
    must_affect_one: bool = False


class Batch:
    """The text of each write with its rows, in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._values: list[Any] = []
        self._plain: dict[str, bool] = {}  # of each table, whether it is only inserted into
        self.is_guarded = False  # by a part that must affect one row

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, sql: str, rows: Sequence[Sequence[Any]], *, must_affect_one: bool = False) -> bool:
        """False when it is to be sent by itself: many rows, several that are not inserted, or rows that another part
        may change too."""
        table, inserts, plain = _kind_of(sql)
        if len(rows) > 1 and (len(rows) > _MOST_ROWS or not inserts):
            return False
        if len(self._values) + len(rows) * len(rows[0]) > _MOST_VALUES:
            return False
        if table is None or (table in self._plain and not (plain and self._plain[table])):
            return False
        self._plain[table] = plain
        self.is_guarded |= must_affect_one
        self._parts.append(Part(sql, len(rows), must_affect_one))
        for row in rows:
            self._values += row
        return True

    def take(self) -> tuple[str, list[Any]]:
        """The joined statement, and its values. The batch is empty then."""
        sql, values = joined(tuple(self._parts)), self._values
        self._parts, self._values, self._plain, self.is_guarded = [], [], {}, False
        return sql, values


@lru_cache(maxsize=1_000)
def _kind_of(sql: str) -> tuple[str | None, bool, bool]:
    """The table that it changes, whether it inserts a row, and whether it does so and nothing else."""
    table, insert = _TABLE.match(sql), _INSERT.fullmatch(sql)
    return table and table[1], insert is not None, insert is not None and insert[3] in _PLAIN


@lru_cache(maxsize=1_000)
def joined(parts: tuple[Part, ...]) -> str:
    texts: list[str] = []
    used = 0
    for sql, rows, must_affect_one in parts:
        insert = _INSERT.fullmatch(sql) if rows > 1 else None
        before, row, after = insert.groups("") if insert else ("", sql, "")
        width = len(set(_PLACEHOLDER.findall(row)))
        text = before + ", ".join(_shifted(row, used + number * width) for number in range(rows)) + after
        texts.append(f"{text} RETURNING 1" if must_affect_one else text)
        used += rows * width
    counts = [f"(SELECT count(*) FROM part_{number})" for number, part in enumerate(parts) if part.must_affect_one]
    last = _all_are_one(counts) if counts else texts.pop()
    named = ", ".join(f"part_{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} {last}" if named else last


def _all_are_one(counts: Sequence[str]) -> str:
    """A query that fails otherwise: a cast is the plainest way to make a statement fail that says why, and not before
    it is executed."""
    told = " || ' ' || ".join(counts)
    as_expected = " AND ".join(f"{count} = 1" for count in counts)
    return f"SELECT CASE WHEN {as_expected} THEN 1 ELSE ('rows affected by a write of one row: ' || {told})::int END"


def _shifted(text: str, by: int) -> str:
    return _PLACEHOLDER.sub(lambda found: f"${int(found[1]) + by}", text)

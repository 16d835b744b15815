"""Copies a database into an empty one of either kind, and proves that both hold the same.

Tables go one after the other, rows in the order of their keys, in batches that are a transaction each. Where it has
come to is recorded in the same transaction (`move_record`). At the end all rows of both sides are read again: their
number and their hash must be equal, whatever happened in between.

Rows have a form that both databases share: flags are bool, vectors are the bytes of 32-bit floats, JSON is the text
that it is stored as. What a database derives from rows (`passage_words` in SQLite, `passages.lexemes` in PostgreSQL) is
not among the columns of `schema.metadata`: triggers and generated columns make it anew.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    Select,
    Table,
    bindparam,
    func,
    literal,
    select,
    tuple_,
)

from holdfast.errors import BugError, ConfigError
from holdfast.store import move_record
from holdfast.store.move_record import KEY, MoveRecord
from holdfast.store.passages import vector_of
from holdfast.store.schema import metadata
from holdfast.store.statements import insert_into
from holdfast.store.tables import facts
from holdfast.store.transaction import Database, Dialect, Parameters, Transaction

_BATCH_BYTES: Final = 4 << 20
_FIRST_ROWS: Final = 64
_GROWTH: Final = 4  # at most, from one batch to the next: rows of one table can differ much in size
MOST_ROWS: Final = 2_000

Phase = Literal["copying", "verifying"]
Progress = Callable[[Phase, str, int], None]  # the table, and how many more of its rows are done
TABLES: Final = tuple(metadata.sorted_tables)  # a table comes after those that its rows refer to
Values = list[Any]
Key = tuple[str | int, ...]
_encode = msgspec.msgpack.Encoder().encode
_MODULUS: Final = 1 << 256
_insert_statement = cache(insert_into)


class Side(msgspec.Struct, frozen=True):
    name: str  # its address, without user and password
    database: Database


class Verified(msgspec.Struct, frozen=True):
    """One table, on both sides."""

    table: str
    source_rows: int
    target_rows: int
    source_hash: str
    target_hash: str

    @property
    def same(self) -> bool:
        return self.source_rows == self.target_rows and self.source_hash == self.target_hash


async def begin(source: Side, target: Side) -> MoveRecord:
    """Where to go on: at the start, or where an earlier move from the same source was interrupted."""
    await source.database.read(move_record.require_whole)
    record = await target.database.read(move_record.read)
    if record is None:
        await target.database.read(_require_empty)
        record = MoveRecord(source.name)
        await target.database.write(partial(_write_record, record))
    elif record.source != source.name:
        raise ConfigError(
            f"The target holds an unfinished move from {record.source}, not from {source.name}. Run that one again, "
            "or move into an empty database."
        )
    return record


async def count_rows(side: Side) -> int:
    return sum([await side.database.read(partial(_count, table)) for table in TABLES])


async def copy(source: Side, target: Side, record: MoveRecord, progress: Progress, most_rows: int = MOST_ROWS) -> None:
    names = [table.name for table in TABLES]
    for table in TABLES[names.index(record.table) if record.table else 0 :]:
        if table.name != record.table:
            record = msgspec.structs.replace(record, table=str(table.name), after=())
        record = await _copy_table(source, target, table, record, progress, most_rows)
    await target.database.write(_raise_sequences)


async def verify(source: Side, target: Side, progress: Progress) -> list[Verified]:
    return [await _verify_table(source, target, table, progress) for table in TABLES]


async def finish(target: Side) -> None:
    await target.database.write(move_record.erase)


async def _copy_table(
    source: Side, target: Side, table: Table, record: MoveRecord, progress: Progress, most_rows: int
) -> MoveRecord:
    at_most = min(_FIRST_ROWS, most_rows)
    while rows := await _read(source, table, record.after, at_most):
        record = msgspec.structs.replace(record, after=_key_of(table, rows[-1]), rows=record.rows + len(rows))
        try:
            await target.database.write(partial(_add, table, rows, record))
        except BugError as error:
            raise ConfigError(
                f"The target cannot hold rows of {table.name}, up to the key {record.after}: {error.message}"
            ) from error
        progress("copying", str(table.name), len(rows))
        at_most = _next_size(rows, at_most, most_rows)
    return record


def _next_size(rows: list[Values], at_most: int, most_rows: int) -> int:
    mean = max(1, sum(map(_size_of, rows)) // len(rows))
    return max(1, min(_BATCH_BYTES // mean, at_most * _GROWTH, most_rows))


async def _verify_table(source: Side, target: Side, table: Table, progress: Progress) -> Verified:
    there, here = await _digest(source, table, progress), await _digest(target, table, progress)
    return Verified(str(table.name), there.rows, here.rows, there.hash, here.hash)


async def _digest(side: Side, table: Table, progress: Progress) -> _Digest:
    digest, after, at_most = _Digest(), (), _FIRST_ROWS
    while rows := await _read(side, table, after, at_most):
        for values in rows:
            digest.add(values)
        after = _key_of(table, rows[-1])
        at_most = _next_size(rows, at_most, MOST_ROWS)
        progress("verifying", str(table.name), len(rows))
    return digest


async def _read(side: Side, table: Table, after: Key, at_most: int) -> list[Values]:
    async def job(tx: Transaction) -> list[Values]:
        return await rows_after(tx, table, after, at_most)

    return await side.database.read(job)


async def _add(table: Table, rows: list[Values], record: MoveRecord, tx: Transaction) -> None:
    await write_rows(tx, table, rows)
    await move_record.write(tx, record)


async def _write_record(record: MoveRecord, tx: Transaction) -> None:
    await move_record.write(tx, record)


async def _count(table: Table, tx: Transaction) -> int:
    return await _count_in(tx, table)


async def _require_empty(tx: Transaction) -> None:
    for table in TABLES:
        if await rows_after(tx, table, (), 1):
            raise ConfigError(
                f"The target is not empty: there are rows in {table.name}. Move into a new database, which no "
                "server has used yet."
            )


async def _count_in(tx: Transaction, table: Table) -> int:
    row = await tx.fetch_one(_counting(table))
    assert row is not None
    return row["rows"]


async def rows_after(tx: Transaction, table: Table, after: Key, at_most: int) -> list[Values]:
    """Rows that follow a key, in the order of the primary key; from the first, if the key is empty."""
    given: dict[str, Any] = {f"after_{place}": part for place, part in enumerate(after)}
    rows = await tx.fetch_all(_following(table, bool(after)), {**given, "at_most": at_most})
    found = [list(row) for row in rows]
    for place, convert in _conversions(table):
        for values in found:
            if values[place] is not None:
                values[place] = convert(values[place])
    return found


async def write_rows(tx: Transaction, table: Table, rows: Sequence[Values]) -> None:
    await tx.execute_many(_insert_statement(table), [_parameters(table, values, tx.dialect) for values in rows])


def _key_of(table: Table, values: Values) -> Key:
    return tuple(values[place] for place in _key_places(table))


def _size_of(values: Values) -> int:
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in values)


async def _raise_sequences(tx: Transaction) -> None:
    """PostgreSQL counts apart from its rows: the next number must be past the largest. SQLite looks by itself."""
    if tx.dialect == "postgresql":
        for table in TABLES:
            column = table.autoincrement_column
            if column is not None:
                sequence = func.pg_get_serial_sequence(literal(table.name), literal(column.name))
                await tx.fetch_all(select(func.setval(sequence, select(func.max(column)).scalar_subquery())))


class _Digest:
    """The number of rows, and the sum of their hashes. A sum, because the databases sort texts differently."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, values: Values) -> None:
        self.rows += 1
        self._sum += int.from_bytes(hashlib.sha256(_encode(values)).digest())

    @property
    def hash(self) -> str:
        return f"{self._sum % _MODULUS:064x}"


def _parameters(table: Table, values: Values, dialect: Dialect) -> Parameters:
    given = dict(zip(table.columns.keys(), values, strict=True))
    if dialect == "postgresql":
        for name in _vectors(table):
            given[name] = array("f", given[name]).tolist()
    return given


@cache
def _counting(table: Table) -> Select[Any]:
    return select(func.count().label("rows")).select_from(table).where(*_moved(table))


@cache
def _following(table: Table, has_key: bool) -> Select[Any]:
    key = list(table.primary_key.columns)
    page = select(*table.columns).where(*_moved(table)).order_by(*key).limit(bindparam("at_most", type_=BigInteger()))
    if not has_key:
        return page
    after = [bindparam(f"after_{place}", type_=column.type) for place, column in enumerate(key)]
    return page.where(key[0] > after[0] if len(key) == 1 else tuple_(*key) > tuple_(*after))


def _moved(table: Table) -> list[ColumnElement[bool]]:
    """All rows but the record of the move itself."""
    return [facts.c.key != KEY] if table is facts else []


@cache
def _key_places(table: Table) -> tuple[int, ...]:
    names = list(table.columns.keys())
    return tuple(names.index(column.name) for column in table.primary_key.columns)


@cache
def _conversions(table: Table) -> tuple[tuple[int, Callable[[Any], Any]], ...]:
    kinds: tuple[tuple[type[Any], Callable[[Any], Any]], ...] = ((Boolean, bool), (ARRAY, vector_of), (Float, float))
    return tuple(
        (place, convert)
        for place, column in enumerate(table.columns)
        for kind, convert in kinds
        if isinstance(column.type, kind)
    )


@cache
def _vectors(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if isinstance(column.type, ARRAY))

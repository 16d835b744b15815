"""Rows in a form that both databases share: read from one, written to the other, hashed alike on both.

Flags are bool, vectors are the bytes of 32-bit floats, JSON is the text that it is stored as. What a database derives
from rows (`passage_words` in SQLite, `passages.lexemes` in PostgreSQL) is not among the columns of `schema.metadata`:
triggers and generated columns make it anew.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

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

from holdfast.store.move_record import KEY
from holdfast.store.passages import vector_of
from holdfast.store.schema import metadata
from holdfast.store.statements import insert_into
from holdfast.store.tables import facts
from holdfast.store.transaction import Dialect, Parameters, Transaction

TABLES: Final = tuple(metadata.sorted_tables)  # a table comes after those that its rows refer to
Values = list[Any]
Key = tuple[str | int, ...]
_encode = msgspec.msgpack.Encoder().encode
_MODULUS: Final = 1 << 256
insert_statement = cache(insert_into)


async def count(tx: Transaction, table: Table) -> int:
    row = await tx.fetch_one(_counting(table))
    assert row is not None
    return row["rows"]


async def read(tx: Transaction, table: Table, after: Key, at_most: int) -> list[Values]:
    """Rows that follow a key, in the order of the primary key; from the first, if the key is empty."""
    given: dict[str, Any] = {f"after_{place}": part for place, part in enumerate(after)}
    rows = await tx.fetch_all(_following(table, bool(after)), {**given, "at_most": at_most})
    found = [list(row) for row in rows]
    for place, convert in _conversions(table):
        for values in found:
            if values[place] is not None:
                values[place] = convert(values[place])
    return found


async def write(tx: Transaction, table: Table, rows: Sequence[Values]) -> None:
    await tx.execute_many(insert_statement(table), [_parameters(table, values, tx.dialect) for values in rows])


def key_of(table: Table, values: Values) -> Key:
    return tuple(values[place] for place in _key_places(table))


def size_of(values: Values) -> int:
    return sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in values)


async def raise_sequences(tx: Transaction) -> None:
    """PostgreSQL counts apart from its rows: the next number must be past the largest. SQLite looks by itself."""
    if tx.dialect == "postgresql":
        for table in TABLES:
            column = table.autoincrement_column
            if column is not None:
                sequence = func.pg_get_serial_sequence(literal(table.name), literal(column.name))
                await tx.fetch_all(select(func.setval(sequence, select(func.max(column)).scalar_subquery())))


class Digest:
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

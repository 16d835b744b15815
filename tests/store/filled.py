"""A few rows in every table, with a value in every column: whatever a copy could get wrong."""

from __future__ import annotations

from array import array
from typing import Any

from sqlalchemy import ARRAY, Boolean, Column, Float, Integer, LargeBinary, Table

from holdfast.store.passages import vector_of
from holdfast.store.schema import metadata
from holdfast.store.statements import insert_into
from holdfast.store.transaction import Database, Transaction
from holdfast.store.vector_distance import normalised

# Sorted one way by their bytes and another way by a language.
_TEXTS = ("Ärger", "zebra", "Zebra", "apple", "éclair 🦀", "_under", '{"a": [1, null]}', "line\nline\ttab", "'quoted\"")


async def fill(database: Database, rows: int) -> None:
    """Row n of a table refers to row n of another."""

    async def job(tx: Transaction) -> None:
        for table in metadata.sorted_tables:
            for place in range(rows):
                await tx.execute(insert_into(table), _row(table, place, tx.dialect))

    await database.write(job)


def _row(table: Table, place: int, dialect: str) -> dict[str, Any]:
    return {column.name: _value(table, column, place, dialect) for column in table.columns}


def _value(table: Table, column: Column[Any], place: int, dialect: str) -> Any:
    for key in column.foreign_keys:
        return _value(key.column.table, key.column, place, dialect)
    if column.nullable and place % 3 == 2:
        return None
    match column.type:
        case Boolean():
            return place % 2 == 0
        case ARRAY():
            vector = normalised([place + 1.0, -2.5, 0.1])
            assert vector is not None
            return vector if dialect == "sqlite" else _listed(vector)
        case LargeBinary():
            return bytes([0, 255, place % 256])
        case Float():
            return float(place) if place % 2 else 0.1 + place
        case Integer():  # BigInteger too
            return (place + 1) * 7
        case _:
            if column.name == "words":
                return f"alpha w{place}"
            return f"{_TEXTS[place % len(_TEXTS)]} {table.name} {column.name} {place}"


def _listed(vector: bytes) -> list[float]:
    return array("f", vector_of(vector)).tolist()

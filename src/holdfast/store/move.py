"""Copies a database into an empty one of either kind, and proves that both hold the same.

Tables go one after the other, rows in the order of their keys, in batches that are a transaction each. Where it has
come to is recorded in the same transaction (`move_record`). At the end all rows of both sides are read again: their
number and their hash must be equal, whatever happened in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import msgspec
from sqlalchemy import Table

from holdfast.errors import BugError, ConfigError
from holdfast.store import move_record, move_rows
from holdfast.store.move_record import MoveRecord
from holdfast.store.move_rows import TABLES, Digest, Key, Values
from holdfast.store.transaction import Database, Transaction

_BATCH_BYTES: Final = 4 << 20
_FIRST_ROWS: Final = 64
_GROWTH: Final = 4  # at most, from one batch to the next: rows of one table can differ much in size
MOST_ROWS: Final = 2_000

Phase = Literal["copying", "verifying"]
Progress = Callable[[Phase, str, int], None]  # the table, and how many more of its rows are done


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
    await target.database.write(move_rows.raise_sequences)


async def verify(source: Side, target: Side, progress: Progress) -> list[Verified]:
    return [await _verify_table(source, target, table, progress) for table in TABLES]


async def finish(target: Side) -> None:
    await target.database.write(move_record.erase)


async def _copy_table(
    source: Side, target: Side, table: Table, record: MoveRecord, progress: Progress, most_rows: int
) -> MoveRecord:
    at_most = min(_FIRST_ROWS, most_rows)
    while rows := await _read(source, table, record.after, at_most):
        record = msgspec.structs.replace(record, after=move_rows.key_of(table, rows[-1]), rows=record.rows + len(rows))
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
    mean = max(1, sum(map(move_rows.size_of, rows)) // len(rows))
    return max(1, min(_BATCH_BYTES // mean, at_most * _GROWTH, most_rows))


async def _verify_table(source: Side, target: Side, table: Table, progress: Progress) -> Verified:
    there, here = await _digest(source, table, progress), await _digest(target, table, progress)
    return Verified(str(table.name), there.rows, here.rows, there.hash, here.hash)


async def _digest(side: Side, table: Table, progress: Progress) -> Digest:
    digest, after, at_most = Digest(), (), _FIRST_ROWS
    while rows := await _read(side, table, after, at_most):
        for values in rows:
            digest.add(values)
        after = move_rows.key_of(table, rows[-1])
        at_most = _next_size(rows, at_most, MOST_ROWS)
        progress("verifying", str(table.name), len(rows))
    return digest


async def _read(side: Side, table: Table, after: Key, at_most: int) -> list[Values]:
    async def job(tx: Transaction) -> list[Values]:
        return await move_rows.read(tx, table, after, at_most)

    return await side.database.read(job)


async def _add(table: Table, rows: list[Values], record: MoveRecord, tx: Transaction) -> None:
    await move_rows.write(tx, table, rows)
    await move_record.write(tx, record)


async def _write_record(record: MoveRecord, tx: Transaction) -> None:
    await move_record.write(tx, record)


async def _count(table: Table, tx: Transaction) -> int:
    return await move_rows.count(tx, table)


async def _require_empty(tx: Transaction) -> None:
    for table in TABLES:
        if await move_rows.read(tx, table, (), 1):
            raise ConfigError(
                f"The target is not empty: there are rows in {table.name}. Move into a new database, which no "
                "server has used yet."
            )

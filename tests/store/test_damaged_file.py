"""Part of a SQLite file is damaged: whoever meets it is told, and the database stays unready until it is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from holdfast.store import kv
from holdfast.store.database import open_database
from holdfast.store.sqlite import SQLiteDatabase
from holdfast.store.tables import facts as fact_rows
from holdfast.store.transaction import DatabaseError, Transaction


async def _fill(tx: Transaction) -> None:
    for number in range(2_000):
        await kv.set_number(tx, f"{number:04d} {'x' * 200}", number)


async def _read_everything(tx: Transaction) -> int:
    return len(await tx.fetch_all(select(fact_rows)))


async def test_damage_is_told_to_whoever_meets_it_and_makes_the_database_unready(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    database = await open_database(f"sqlite:///{path}")
    await database.write(_fill)
    assert await database.check() > 0
    await database.aclose()
    size = path.stat().st_size
    with path.open("r+b") as file:  # the last half: rows, not the schema
        file.seek(size // 2)
        file.write(b"\xa5" * (size // 2))
    damaged = SQLiteDatabase(path)
    try:
        for attempt in (damaged.read(_read_everything), damaged.check()):
            with pytest.raises(DatabaseError, match="malformed"):
                await attempt
    finally:
        await damaged.aclose()

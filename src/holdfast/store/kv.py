"""Small numbers that this database remembers by name."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from holdfast.store.statements import insert_or_update
from holdfast.store.tables import facts
from holdfast.store.transaction import Transaction

_NUMBER = select(facts.c.number).where(facts.c.key == bindparam("key"))
_SET = insert_or_update(facts, ["key"], ["value", "number"])


async def number(tx: Transaction, key: str) -> float | None:
    row = await tx.fetch_one(_NUMBER, {"key": key})
    return row["number"] if row else None


async def set_number(tx: Transaction, key: str, value: float) -> None:
    await tx.execute(_SET, {"key": key, "value": f"{value:g}", "number": value})

from __future__ import annotations

from holdfast.store import kv
from holdfast.store.transaction import Database


async def test_a_number_is_remembered_by_its_name_and_replaced(database: Database) -> None:
    assert await database.read(lambda tx: kv.number(tx, "token_ratio/a")) is None
    await database.write(lambda tx: kv.set_number(tx, "token_ratio/a", 1.25))
    await database.write(lambda tx: kv.set_number(tx, "token_ratio/b", 0.5))
    await database.write(lambda tx: kv.set_number(tx, "token_ratio/a", 1.5))
    assert await database.read(lambda tx: kv.number(tx, "token_ratio/a")) == 1.5
    assert await database.read(lambda tx: kv.number(tx, "token_ratio/b")) == 0.5

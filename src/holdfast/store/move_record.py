"""What an unfinished move has written into its target: from where it copies, and how far it has come.

It changes in the transaction that adds the rows it counts, so a move that was killed goes on exactly where it ended.
While it is there, the database is not whole, and no server uses it.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import bindparam, delete, select

from holdfast.errors import ConfigError
from holdfast.store.statements import insert_or_update
from holdfast.store.tables import facts
from holdfast.store.transaction import Transaction

KEY = "move"
_READ = select(facts.c.value).where(facts.c.key == bindparam("key"))
_WRITE = insert_or_update(facts, ["key"], ["value"])
_DELETE = delete(facts).where(facts.c.key == bindparam("key"))


class MoveRecord(msgspec.Struct, frozen=True):
    source: str  # its address, without user and password
    table: str | None = None  # whose rows were copied last; those of the tables before it are all there
    after: tuple[str | int, ...] = ()  # the key of the last row
    rows: int = 0


async def read(tx: Transaction) -> MoveRecord | None:
    row = await tx.fetch_one(_READ, {"key": KEY})
    return msgspec.json.decode(row["value"], type=MoveRecord) if row else None


async def write(tx: Transaction, record: MoveRecord) -> None:
    await tx.execute(_WRITE, {"key": KEY, "value": msgspec.json.encode(record).decode()})


async def erase(tx: Transaction) -> None:
    await tx.execute(_DELETE, {"key": KEY})


async def require_whole(tx: Transaction) -> None:
    unfinished = await read(tx)
    if unfinished is not None:
        raise ConfigError(
            f"The database is the target of a move from {unfinished.source} that has not ended, so it is not whole. "
            "Run the same `holdfast move` again: it goes on where it stopped. Or begin anew with an empty database."
        )

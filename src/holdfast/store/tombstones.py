"""Where deleted items stood in their lists.

A client that deletes what it lists asks for what comes after an item that it has just deleted. Its place is remembered
for a day, so that the walk goes on from there. Threads and providers need none: their rows stay when they are deleted.
Times are the database's, which all servers share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Executable, Table, bindparam, delete, select

from holdfast.store.statements import PerDialect, database_now_us
from holdfast.store.tables import tombstones
from holdfast.store.transaction import Transaction

KEPT_US: Final = 86_400_000_000
ROWS_AT_ONCE: Final = 1_000

SortValues = Mapping[str, int | None]  # by the name of the column that a list is sorted by

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, int | None]).decode


def _build_save(insert: Callable[[Table], Any]) -> Executable:
    """An id can be taken again, and deleted again."""
    new = insert(tombstones).inline().values(deleted_us=database_now_us())
    names = ("what", "within", "sort_values", "deleted_us")
    return new.on_conflict_do_update(index_elements=["id"], set_={name: new.excluded[name] for name in names})


_SAVE = PerDialect(_build_save)
_ONE = select(tombstones.c.sort_values).where(
    tombstones.c.id == bindparam("id"),
    tombstones.c.what == bindparam("what"),
    tombstones.c.within == bindparam("within"),
)
_some = tombstones.alias("some")
_DELETE_OLD = delete(tombstones).where(
    tombstones.c.id.in_(
        select(_some.c.id)
        .where(_some.c.deleted_us < database_now_us() - KEPT_US)
        .order_by(_some.c.deleted_us)
        .limit(bindparam("at_most", type_=BigInteger()))
    )
)


async def save(tx: Transaction, item_id: str, what: str, within: str, sort_values: SortValues) -> None:
    """`what` and `within` tell lists apart: an item of one is no cursor of another."""
    written = _encode(sort_values).decode()
    await tx.execute(_SAVE, {"id": item_id, "what": what, "within": within, "sort_values": written})


async def find(tx: Transaction, item_id: str, what: str, within: str) -> SortValues | None:
    row = await tx.fetch_one(_ONE, {"id": item_id, "what": what, "within": within})
    return None if row is None else _decode(row["sort_values"])


async def delete_old(tx: Transaction) -> int:
    """At most `ROWS_AT_ONCE`, so that other writes are not delayed: repeat it until it deletes fewer."""
    return await tx.execute(_DELETE_OLD, {"at_most": ROWS_AT_ONCE})

"""Pages of a list: `limit`, `before`, `after` and `order` over a sort column with the id as tie-breaker.

Cursors are exclusive ids. `after` gives what comes later in the asked order and `before` what comes earlier, nearest
to the cursor first taken, always shown in the asked order. So a client that walks with `after=<last id>`, or with
`before=<first id>`, meets every item exactly once, also if it deletes them on its way: the place of a deleted item is
remembered for a day (`save_tombstone`). An id that never was in the list is not found.

`chronological` is how an agent's own messages are listed: pages are oldest first whatever the order, and cursors speak
of time: `after` is newer, `before` is older. `order` then only says at which end to start when there is no cursor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from sqlalchemy import Column, ColumnElement, Select, and_, func, literal, select, tuple_

from holdfast.errors import NotFound
from holdfast.store import tombstones
from holdfast.store.transaction import Row, Transaction

# Beyond every microsecond time and every position, within the 64 bits of both databases.
_LAST = 2**62
_LONG_PAGE = 200


class Page(msgspec.Struct, frozen=True, kw_only=True):
    limit: int | None = 50  # None: everything
    before: str | None = None
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    chronological: bool = False

    @property
    def is_long(self) -> bool:
        """Too many rows to be read and decoded on the event loop: use `read_long`."""
        return self.limit is None or self.limit > _LONG_PAGE


class Ordering(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a list is sorted by.

    `scope` limits which ids are good cursors (the rows of this thread, say); filters that a row may stop matching
    while a client walks the list do not belong there. `within` is the same for items that were deleted. `what` names
    the thing in "… not found".
    """

    sort: Column[Any]
    id: Column[str]
    what: str
    scope: tuple[ColumnElement[bool], ...] = ()
    within: str = ""
    nullable: bool = False  # rows without a sort value come last, in both orders


async def fetch_page(tx: Transaction, query: Select[Any], ordering: Ordering, page: Page) -> list[Row]:
    """The rows of `query` that belong to the page, in the order in which they are shown."""
    shown_ascending = page.chronological or page.order == "asc"
    key = _key(ordering, ascending=shown_ascending)
    for cursor, later in ((page.after, True), (page.before, False)):
        if cursor is not None:
            here = await _locate(tx, key, ordering, cursor) or await _locate_deleted(
                tx, ordering, cursor, ascending=shown_ascending
            )
            query = query.where(_beyond(key, ordering, here, later == shown_ascending))
    from_the_end = page.before is not None or (page.chronological and page.order == "desc" and page.after is None)
    taken_ascending = shown_ascending != from_the_end
    columns = (key, ordering.id)
    query = query.order_by(*(column.asc() if taken_ascending else column.desc() for column in columns))
    if page.limit is not None:
        query = query.limit(page.limit)
    rows = await tx.fetch_all(query)
    return rows[::-1] if from_the_end else rows


async def save_tombstone(tx: Transaction, row: Row, orderings: Iterable[Ordering]) -> None:
    """Of an item that this transaction deletes; `orderings` are all that it is listed by, `row` has their columns."""
    listed = tuple(orderings)
    first = listed[0]
    sort_values = {ordering.sort.name: row[ordering.sort.name] for ordering in listed}
    await tombstones.save(tx, row[first.id.name], first.what, first.within, sort_values)


def _key(ordering: Ordering, *, ascending: bool) -> ColumnElement[Any]:
    if not ordering.nullable:
        return ordering.sort
    return func.coalesce(ordering.sort, literal(_without_value(ascending), ordering.sort.type))


def _without_value(ascending: bool) -> int:
    return _LAST if ascending else -1


async def _locate(tx: Transaction, key: ColumnElement[Any], ordering: Ordering, cursor: str) -> tuple[Any, str] | None:
    found = await tx.fetch_one(select(key.label("sort")).where(and_(ordering.id == cursor, *ordering.scope)))
    return None if found is None else (found["sort"], cursor)


async def _locate_deleted(
    tx: Transaction, ordering: Ordering, cursor: str, *, ascending: bool
) -> tuple[int | None, str]:
    stood = await tombstones.find(tx, cursor, ordering.what, ordering.within)
    if stood is None or ordering.sort.name not in stood:
        raise NotFound(f"{ordering.what} {cursor} not found")
    sort = stood[ordering.sort.name]
    return _without_value(ascending) if sort is None and ordering.nullable else sort, cursor


def _beyond(key: ColumnElement[Any], ordering: Ordering, cursor: tuple[Any, str], greater: bool) -> ColumnElement[bool]:
    here = tuple_(literal(cursor[0], ordering.sort.type), literal(cursor[1], ordering.id.type))
    pair = tuple_(key, ordering.id)
    return pair > here if greater else pair < here

"""Walking a list page by page, the way the client library does, meets every item exactly once."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from sqlalchemy import select

from holdfast import ids
from holdfast.core.records import Thread
from holdfast.errors import NotFound
from holdfast.store import threads
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.tables import threads as table
from holdfast.store.transaction import Database

from .world import NOW, add_agent, call, look, walk

Order = Literal["asc", "desc"]
_BY_AGE = Ordering(sort=table.c.created_us, id=table.c.id, what="Thread")
_BY_MESSAGE = Ordering(sort=table.c.last_message_us, id=table.c.id, what="Thread", nullable=True)


class Item:
    def __init__(self, id_: str) -> None:
        self.id = id_


async def fill(database: Database) -> list[str]:
    """Eleven conversations; ages tie in threes, and every second one never had a message. Oldest first."""
    agent_id = await add_agent(database)
    made = [
        Thread(
            id=ids.derive("conv", "paging", number),
            agent_id=agent_id,
            created_us=NOW + number // 3,
            updated_us=NOW,
            last_message_us=NOW + number // 4 if number % 2 else None,
        )
        for number in range(11)
    ]
    for thread in made:
        await call(database, threads.insert, thread)
    return [thread.id for thread in sorted(made, key=lambda thread: (thread.created_us, thread.id))]


async def page_of(database: Database, ordering: Ordering, page: Page) -> list[Item]:
    query = select(table.c.id).where(table.c.id != table.c.agent_id)
    rows: list[Any] = await look(database, fetch_page, query, ordering, page)
    return [Item(row["id"]) for row in rows]


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 11, 50])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_walking_forward_meets_every_item_once_in_order(database: Database, order: Order, limit: int) -> None:
    oldest_first = await fill(database)

    async def fetch(after: str | None = None) -> list[Item]:
        return await page_of(database, _BY_AGE, Page(limit=limit, after=after, order=order))

    assert await walk(fetch) == (oldest_first if order == "asc" else oldest_first[::-1])


@pytest.mark.parametrize("limit", [1, 4, 50])
@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_walking_back_from_an_item_meets_all_before_it_once(database: Database, order: Order, limit: int) -> None:
    oldest_first = await fill(database)
    shown = oldest_first if order == "asc" else oldest_first[::-1]

    async def fetch(before: str) -> list[Item]:
        return await page_of(database, _BY_AGE, Page(limit=limit, before=before, order=order))

    assert await walk(fetch, before=shown[8]) == shown[:8]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_before_a_cursor_is_the_one_nearest_to_it(database: Database, order: Order) -> None:
    oldest_first = await fill(database)
    shown = oldest_first if order == "asc" else oldest_first[::-1]
    page = await page_of(database, _BY_AGE, Page(limit=2, before=shown[5], order=order))
    assert [item.id for item in page] == shown[3:5]


async def test_both_cursors_give_what_lies_between(database: Database) -> None:
    oldest_first = await fill(database)
    page = Page(after=oldest_first[2], before=oldest_first[6], order="asc")
    assert [item.id for item in await page_of(database, _BY_AGE, page)] == oldest_first[3:6]


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_items_without_a_sort_value_come_last_in_either_order(database: Database, order: Order) -> None:
    await fill(database)

    async def fetch(after: str | None = None) -> list[Item]:
        return await page_of(database, _BY_MESSAGE, Page(limit=2, after=after, order=order))

    walked = await walk(fetch)
    assert len(walked) == len(set(walked)) == 11
    dated = [ids.derive("conv", "paging", number) for number in range(1, 11, 2)]
    assert set(walked[:5]) == set(dated)


async def test_chronological_pages_are_oldest_first_and_start_at_the_end_that_order_names(database: Database) -> None:
    oldest_first = await fill(database)

    async def shown(order: Order, **cursors: Any) -> list[str]:
        page = Page(limit=3, order=order, chronological=True, **cursors)
        return [item.id for item in await page_of(database, _BY_AGE, page)]

    assert await shown("desc") == oldest_first[-3:]
    assert await shown("asc") == oldest_first[:3]
    for order in ("asc", "desc"):
        assert await shown(order, after=oldest_first[4]) == oldest_first[5:8]
        assert await shown(order, before=oldest_first[4]) == oldest_first[1:4]
    assert await shown("desc", after=oldest_first[-1]) == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_chronological_walks_never_repeat_and_miss_nothing_before_a_cursor(
    database: Database, order: Order
) -> None:
    oldest_first = await fill(database)

    async def fetch(**cursors: Any) -> list[Item]:
        return await page_of(database, _BY_AGE, Page(limit=3, order=order, chronological=True, **cursors))

    assert await walk(fetch, before=oldest_first[9]) == oldest_first[:9]
    assert await walk(fetch) == (oldest_first if order == "asc" else oldest_first[-3:])


async def test_no_limit_means_everything(database: Database) -> None:
    oldest_first = await fill(database)
    assert len(await page_of(database, _BY_AGE, Page(limit=None))) == len(oldest_first)


@pytest.mark.parametrize("cursor", ["before", "after"])
async def test_an_unknown_cursor_is_not_found(database: Database, cursor: str) -> None:
    unknown: dict[str, Any] = {cursor: "conv-unknown"}
    with pytest.raises(NotFound, match="Thread conv-unknown not found"):
        await page_of(database, _BY_AGE, Page(**unknown))


async def test_a_cursor_outside_the_scope_is_not_found(database: Database) -> None:
    oldest_first = await fill(database)
    scoped = Ordering(sort=table.c.created_us, id=table.c.id, what="Thread", scope=(table.c.agent_id == "another",))
    with pytest.raises(NotFound):
        await page_of(database, scoped, Page(after=oldest_first[0]))

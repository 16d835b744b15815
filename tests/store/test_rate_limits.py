"""The buckets that all processes take from, by the database's clock."""

from __future__ import annotations

import asyncio

from holdfast.core.rate_limits import Limit
from holdfast.store import rate_limits
from holdfast.store.transaction import Database

from .world import NOW, add_agent, add_run, call, look

HOURLY = Limit("acme", 100, "requests", 3600.0)


async def test_what_is_taken_is_gone_for_everybody(database: Database) -> None:
    first = await call(database, rate_limits.take, HOURLY, 90, 0.0)
    assert first.amount == 90
    assert -3_600_000_000 <= first.wait_us <= 0
    assert (await call(database, rate_limits.take, HOURLY, 90, 0.0)).amount == 10
    assert (await call(database, rate_limits.take, HOURLY, 1, 0.0)).amount == 0
    other = Limit("acme", 100, "tokens", 3600.0)
    assert (await call(database, rate_limits.take, other, 1, 0.0)).amount == 1, "a bucket of its own"


async def test_many_who_take_at_once_are_given_no_more_than_there_is(database: Database) -> None:
    taken = await asyncio.gather(*(call(database, rate_limits.take, HOURLY, 7, 0.0) for _ in range(20)))
    assert sum(each.amount for each in taken) == 100
    assert len({each.full_at_us for each in taken if each.amount}) == 15, "each has a turn of its own"


async def test_a_wait_is_on_record_until_it_is_swept_away(database: Database) -> None:
    waiting, over = [await add_run(database, await add_agent(database)) for _ in range(2)]
    assert await look(database, rate_limits.wait_of, waiting.id) is None
    for until_us in (NOW - 5, NOW + 5):
        await call(database, rate_limits.record_wait, waiting.id, "acme", until_us)
    await call(database, rate_limits.record_wait, over.id, "acme", NOW - 5)
    assert await look(database, rate_limits.wait_of, waiting.id) == ("acme", NOW + 5)
    assert await call(database, rate_limits.delete_waits, NOW) == 1
    assert await look(database, rate_limits.wait_of, over.id) is None
    assert await look(database, rate_limits.wait_of, waiting.id) == ("acme", NOW + 5)

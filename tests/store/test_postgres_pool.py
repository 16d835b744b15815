"""Connections that are kept open: each is lent to one at a time, lost ones are replaced, unused ones are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from holdfast.store.postgres_pool import Pool
from holdfast.store.transaction import DatabaseError
from tests.scenario import eventually

_driver: Any = asyncpg
PATIENT_S = 30.0


@pytest.fixture
async def pool_of(postgres_url: str) -> AsyncIterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def made(most: int, **options: Any) -> Pool:
        pools.append(Pool(lambda: _driver.connect(postgres_url), most, **options))
        return pools[-1]

    yield made
    for pool in pools:
        pool.terminate()


async def backend_of(connection: Any) -> int:
    return await connection.fetchval("SELECT pg_backend_pid()")


async def test_the_connection_that_was_used_last_is_lent_first(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(3)
    first, second = await pool.acquire(PATIENT_S), await pool.acquire(PATIENT_S)
    assert (pool.open, pool.used) == (2, 2)
    pool.release(second)
    pool.release(first)
    assert (pool.open, pool.used) == (2, 0)
    assert await pool.acquire(PATIENT_S) is first
    assert await pool.acquire(PATIENT_S) is second


async def test_whoever_finds_all_in_use_waits_in_line_and_no_longer_than_asked(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(1)
    connection = await pool.acquire(PATIENT_S)
    with pytest.raises(TimeoutError):
        await pool.acquire(0.01)
    served: list[str] = []

    async def take(name: str) -> None:
        taken = await pool.acquire(PATIENT_S)
        served.append(name)
        pool.release(taken)

    tasks = [asyncio.create_task(take(name)) for name in ("first", "leaves", "last")]
    await asyncio.sleep(0)
    tasks[1].cancel()
    pool.release(connection)
    await asyncio.wait(tasks)
    assert served == ["first", "last"]
    assert (pool.open, pool.used) == (1, 0)


async def test_nobody_overtakes_those_who_wait(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(1)
    connection = await pool.acquire(PATIENT_S)
    waiting = asyncio.create_task(pool.acquire(PATIENT_S))
    await asyncio.sleep(0)
    pool.release(connection)
    with pytest.raises(TimeoutError):
        await pool.acquire(0.01)
    assert await waiting is connection


async def test_a_connection_that_was_lost_is_replaced(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(2)
    lost, killer = await pool.acquire(PATIENT_S), await pool.acquire(PATIENT_S)
    backend = await backend_of(lost)
    pool.release(lost)
    await killer.execute("SELECT pg_terminate_backend($1, 5000)", backend)
    await eventually(lost.is_closed)
    assert await backend_of(await pool.acquire(PATIENT_S)) != backend
    killer.terminate()
    pool.release(killer)
    assert (pool.open, pool.used) == (1, 1)


async def test_a_connection_that_cannot_be_opened_takes_no_place(postgres_url: str) -> None:
    refused = True

    async def connect() -> Any:
        if refused:
            raise ConnectionRefusedError("not yet")
        return await _driver.connect(postgres_url)

    pool = Pool(connect, 1)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await pool.acquire(PATIENT_S)
    refused = False
    pool.release(await pool.acquire(PATIENT_S))
    await pool.close()


async def test_connections_that_nobody_needs_are_closed_but_for_one(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(3, idle_s=0.05)
    taken = [await pool.acquire(PATIENT_S) for _ in range(3)]
    for connection in taken:
        pool.release(connection)
    await eventually(lambda: pool.open == 1)
    assert [connection.is_closed() for connection in taken] == [True, True, False]
    assert await pool.acquire(PATIENT_S) is taken[2]


async def test_closing_waits_for_what_is_lent_and_then_nobody_gets_any(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(2)
    lent, idle = await pool.acquire(PATIENT_S), await pool.acquire(PATIENT_S)
    pool.release(idle)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    assert await lent.fetchval("SELECT 1") == 1
    pool.release(lent)
    await closing
    assert idle.is_closed()
    assert lent.is_closed()
    with pytest.raises((TimeoutError, DatabaseError)):
        await pool.acquire(0.01)


async def test_terminating_cuts_off_what_is_lent(pool_of: Callable[..., Pool]) -> None:
    pool = pool_of(1)
    lent = await pool.acquire(PATIENT_S)
    pool.terminate()
    assert lent.is_closed()
    pool.release(lent)
    with pytest.raises(DatabaseError, match="closed"):
        await pool.acquire(PATIENT_S)

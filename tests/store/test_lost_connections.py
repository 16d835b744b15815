"""PostgreSQL goes away, hangs, or has no connection left: every such failure is a DatabaseError, within its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import asyncpg
import pytest

from holdfast.store import kv, tables
from holdfast.store.database import open_database
from holdfast.store.postgres import DRIVER_ERRORS, ConnectionLost, PostgresDatabase, explained
from holdfast.store.postgres_transaction import PostgresTransaction
from holdfast.store.statements import insert_into
from holdfast.store.transaction import DatabaseError, Transaction
from tests.postgres import WAITING_FOR_LOCKS

_driver: Any = asyncpg


@pytest.fixture
def timeout_s() -> float:
    """Long enough for a busy machine. Tests that wait for it to pass have a shorter one."""
    return 30.0


@pytest.fixture
async def database(postgres_url: str, timeout_s: float) -> AsyncIterator[PostgresDatabase]:
    opened = await open_database(postgres_url, pool_size=2, timeout_s=timeout_s)
    assert isinstance(opened, PostgresDatabase)
    yield opened
    await opened.aclose()


async def wait_for_blocked_statement(admin: Any) -> None:
    """Returns when a session of this database waits for a lock of another one."""
    async with asyncio.timeout(60):
        while True:
            if await admin.fetchval(WAITING_FOR_LOCKS):
                return
            await asyncio.sleep(0.01)  # PostgreSQL sends no event


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[Any]:
    connection = await _driver.connect(postgres_url)
    yield connection
    await connection.close()


async def cut_all(admin: Any) -> None:
    """As a fail-over or a restarted proxy does."""
    await admin.fetch(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'holdfast' AND datname = current_database()"
    )


async def test_idle_connections_that_were_cut_are_replaced_and_no_caller_notices(
    database: PostgresDatabase, admin: Any
) -> None:
    for number in range(5):
        await cut_all(admin)
        await database.write(lambda tx, value=number: kv.set_number(tx, "n", value))
        await cut_all(admin)
        assert await database.read(lambda tx: kv.number(tx, "n")) == number
        await cut_all(admin)
        await database.write_lease(lambda tx: kv.set_number(tx, "lease", 1))


async def test_a_job_whose_connection_is_cut_before_its_commit_is_run_again(
    database: PostgresDatabase, admin: Any
) -> None:
    tries = 0

    async def job(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        await kv.set_number(tx, "n", tries)
        if tries == 1:
            await cut_all(admin)
        await kv.set_number(tx, "m", tries)
        return tries

    assert await database.write(job) == 2
    assert await database.read(lambda tx: kv.number(tx, "m")) == 2


async def test_a_job_whose_connection_is_lost_between_two_messages_of_one_statement_is_run_again(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg says AttributeError then: it goes on with a protocol that it has let go of."""
    prepare, tries, lost = _driver.Connection._get_statement, 0, 0

    async def prepare_and_lose(connection: Any, query: str, *given: Any, **options: Any) -> Any:
        nonlocal lost
        prepared = await prepare(connection, query, *given, **options)
        if tries == 1 and not lost:
            lost += 1
            connection.terminate()
        return prepared

    async def job(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        await kv.set_number(tx, "n", tries)
        return tries

    monkeypatch.setattr(_driver.Connection, "_get_statement", prepare_and_lose)
    assert await database.write(job) == 2
    assert (lost, await database.read(lambda tx: kv.number(tx, "n"))) == (1, 2)


async def test_an_attribute_error_of_a_job_on_a_live_connection_is_its_own(database: PostgresDatabase) -> None:
    async def job(tx: Transaction) -> None:
        raise AttributeError("a bug of ours")

    with pytest.raises(AttributeError, match="a bug of ours"):
        await database.write(job)


async def test_a_connection_cut_between_the_last_statement_and_the_commit_is_a_database_error_and_no_bug(
    database: PostgresDatabase, admin: Any
) -> None:
    async def job(tx: Transaction) -> None:
        await kv.set_number(tx, "n", 1)
        await cut_all(admin)

    with pytest.raises(DatabaseError, match="during a commit, which may have happened"):
        await database.write(job)
    assert await database.read(lambda tx: kv.number(tx, "n")) is None


async def test_an_error_of_the_job_stays_its_own_though_the_connection_is_lost_meanwhile(
    database: PostgresDatabase, admin: Any
) -> None:
    async def job(tx: Transaction) -> None:
        await cut_all(admin)
        raise LookupError("the job's own")

    with pytest.raises(LookupError, match="the job's own"):
        await database.write(job)
    await database.write(lambda tx: kv.set_number(tx, "n", 1))


@pytest.mark.parametrize("timeout_s", [2.0])
async def test_a_transaction_that_waits_for_a_lock_longer_than_its_timeout_is_a_database_error(
    database: PostgresDatabase, admin: Any
) -> None:
    await database.write(lambda tx: kv.set_number(tx, "n", 1))
    async with admin.transaction():
        await admin.execute("SELECT * FROM facts FOR UPDATE")
        async with asyncio.timeout(60):
            with pytest.raises(DatabaseError, match="did not finish a transaction within 2 s"):
                await database.write(lambda tx: kv.set_number(tx, "n", 2))
    await database.write(lambda tx: kv.set_number(tx, "n", 3))
    assert await database.read(lambda tx: kv.number(tx, "n")) == 3


@pytest.mark.parametrize("timeout_s", [2.0])
async def test_more_rows_than_the_connection_can_hold_end_with_the_timeout_too(
    database: PostgresDatabase, admin: Any
) -> None:
    rows = [{"key": f"{number}", "value": "x" * 100_000} for number in range(500)]
    async with admin.transaction():
        await admin.execute("INSERT INTO facts (key, value) VALUES ('0', '')")  # which the first row waits for
        async with asyncio.timeout(30):
            with pytest.raises(DatabaseError, match="did not finish a transaction within 2 s"):
                await database.write(lambda tx: tx.execute_many(insert_into(tables.facts), rows))
    await database.write(lambda tx: kv.set_number(tx, "n", 3))


@pytest.mark.parametrize("timeout_s", [2.0])
async def test_a_pool_without_a_free_connection_is_a_database_error_and_leases_are_renewed_all_the_same(
    database: PostgresDatabase,
) -> None:
    taken = [await database._pool.acquire(1.0) for _ in range(2)]
    await database.write_lease(lambda tx: kv.set_number(tx, "lease", 1))
    assert await database.check() > 0
    async with asyncio.timeout(60):
        with pytest.raises(DatabaseError, match="no connection could be had within 2 s"):
            await database.read(lambda tx: kv.number(tx, "n"))
    for connection in taken:
        database._pool.release(connection)
    assert await database.read(lambda tx: kv.number(tx, "lease")) == 1


async def test_closing_does_not_wait_for_a_transaction_that_hangs(postgres_url: str, admin: Any) -> None:
    database = await open_database(postgres_url, timeout_s=60)
    await database.write(lambda tx: kv.set_number(tx, "n", 1))
    async with admin.transaction():
        await admin.execute("SELECT * FROM facts FOR UPDATE")
        hanging = asyncio.create_task(database.write(lambda tx: kv.set_number(tx, "n", 2)))
        await wait_for_blocked_statement(admin)
        async with asyncio.timeout(30):
            await database.aclose()
        with pytest.raises(DatabaseError):
            await hanging


@pytest.mark.parametrize("error", DRIVER_ERRORS, ids=lambda error: error.__name__)
def test_whatever_the_driver_raises_at_the_start_is_a_sentence(error: type[Exception]) -> None:
    with pytest.raises(DatabaseError, match="cannot be used"), explained("postgresql://somewhere/holdfast"):
        raise error("cannot switch to state 12")


async def test_a_connection_lost_while_the_schema_is_looked_at_is_a_lost_connection(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which asyncpg may not notice between two messages of one statement."""

    async def lose_connection(tx: PostgresTransaction, *_: object) -> None:
        tx._connection.terminate()
        raise AttributeError("'NoneType' object has no attribute 'decode'")

    monkeypatch.setattr(PostgresTransaction, "fetch_one", lose_connection)
    with pytest.raises(ConnectionLost):
        await database.is_newest()


async def test_a_read_whose_caller_is_cancelled_again_and_again_leaves_no_open_transaction(
    database: PostgresDatabase, admin: Any
) -> None:
    """A web server cancels the reader of a stream that was left at each of its steps, not once."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await admin.execute("BEGIN; LOCK TABLE facts")

    async def read() -> None:
        await database.read(lambda tx: kv.number(tx, "n"))

    async with anyio.create_task_group() as group:
        for _ in range(2):  # one waits in a statement, the other perhaps in its BEGIN
            group.start_soon(read)
        await wait_for_blocked_statement(admin)
        group.cancel_scope.cancel()
    await admin.execute("ROLLBACK")

    assert await database.read(lambda tx: kv.number(tx, "n")) is None
    await database.aclose()
    assert reported == []


async def test_a_single_statement_whose_caller_leaves_before_it_is_executed_disturbs_nobody(postgres_url: str) -> None:
    """The driver prepares a statement first. From then on PostgreSQL is in a transaction, which the execution ends; the
    driver does not know of it."""
    opened = await open_database(postgres_url, pool_size=1)
    prepared = asyncio.Event()

    async def leave_between(tx: Transaction) -> None:
        assert isinstance(tx, PostgresTransaction)
        await tx._connection.prepare("SELECT count(*) FROM runs")
        prepared.set()
        await asyncio.Event().wait()

    reading = asyncio.create_task(opened.read_one(leave_between))
    await prepared.wait()
    reading.cancel()
    await asyncio.wait([reading])
    assert await opened.read(lambda tx: kv.number(tx, "n")) is None
    await opened.aclose()

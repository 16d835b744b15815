"""Writes whose outcome nobody waits for reach PostgreSQL together, and do what they would have done one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from sqlalchemy import bindparam, select, update

from holdfast.errors import NotFound
from holdfast.store.database import open_database
from holdfast.store.postgres_transaction import Batch, Part, joined
from holdfast.store.statements import insert_into, insert_or_ignore, insert_or_update
from holdfast.store.tables import facts
from holdfast.store.transaction import Database, IntegrityError, Transaction

_INSERT = insert_into(facts)
_SAVE = insert_or_update(facts, ["key"], ["value"])
_ADD = insert_or_ignore(facts)
_CHANGE = update(facts).where(facts.c.key == bindparam("of")).values(value=bindparam("to"))
_ALL = select(facts.c.key, facts.c.value).order_by(facts.c.key)


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    opened = await open_database(postgres_url)
    yield opened
    await opened.aclose()


def fact(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}


async def everything(tx: Transaction) -> dict[str, str]:
    return {row["key"]: row["value"] for row in await tx.fetch_all(_ALL)}


def test_parameters_are_numbered_on_from_part_to_part_and_from_row_to_row() -> None:
    row = "INSERT INTO t (a, b) VALUES ($1::VARCHAR, $2::BIGINT)"
    change = "UPDATE u SET a=$1::VARCHAR WHERE u.id = $2::VARCHAR"
    assert joined((Part(change), Part(row, 2), Part(change))) == (
        "WITH part_0 AS (UPDATE u SET a=$1::VARCHAR WHERE u.id = $2::VARCHAR), "
        "part_1 AS (INSERT INTO t (a, b) VALUES ($3::VARCHAR, $4::BIGINT), ($5::VARCHAR, $6::BIGINT)) "
        "UPDATE u SET a=$7::VARCHAR WHERE u.id = $8::VARCHAR"
    )
    assert joined((Part(row),)) == row


def test_of_parts_that_must_affect_one_row_the_rows_are_counted() -> None:
    row, change = "INSERT INTO t (a) VALUES ($1::VARCHAR)", "UPDATE u SET a=$1::VARCHAR"
    parts = (Part(change, must_affect_one=True), Part(row), Part(change, must_affect_one=True))
    first, second = "(SELECT count(*) FROM part_0)", "(SELECT count(*) FROM part_2)"
    assert joined(parts) == (
        "WITH part_0 AS (UPDATE u SET a=$1::VARCHAR RETURNING 1), "
        "part_1 AS (INSERT INTO t (a) VALUES ($2::VARCHAR)), "
        "part_2 AS (UPDATE u SET a=$3::VARCHAR RETURNING 1) "
        f"SELECT CASE WHEN {first} = 1 AND {second} = 1 THEN 1 "
        f"ELSE ('rows affected by a write of one row: ' || {first} || ' ' || {second})::int END"
    )


def test_many_rows_and_rows_that_are_not_inserted_are_sent_by_themselves() -> None:
    row, change = "INSERT INTO t (a) VALUES ($1::VARCHAR)", "UPDATE t SET a=$1::VARCHAR"
    batch = Batch()
    assert not batch.add(row, [["x"]] * 9)
    assert not batch.add(change, [["x"]] * 2)
    assert not batch
    assert batch.add(row, [["x"]] * 8) and batch.add(change.replace(" t ", " u "), [["x"]])
    assert len(batch.take()[1]) == 9
    assert not batch


def test_a_table_occurs_twice_only_if_both_parts_insert() -> None:
    row, change = "INSERT INTO t (a) VALUES ($1::VARCHAR)", "UPDATE t SET a=$1::VARCHAR"
    save = "INSERT INTO t (a) VALUES ($1::VARCHAR) ON CONFLICT (a) DO UPDATE SET a = excluded.a"
    for first, second, together in ((row, row, True), (row, change, False), (change, row, False), (save, save, False)):
        batch = Batch()
        assert batch.add(first, [["x"]])
        assert batch.add(second, [["y"]]) is together


async def test_inserts_upserts_and_updates_that_are_put_off_are_all_done(database: Database) -> None:
    await database.write(lambda tx: tx.execute_many(_INSERT, [fact("a", "1"), fact("b", "1"), fact("c", "1")]))

    async def job(tx: Transaction) -> None:
        await tx.execute_many(_CHANGE, [{"of": "a", "to": "2"}])
        await tx.execute_many(_SAVE, [fact("b", "2"), fact("f", "2")])
        await tx.execute_many(_ADD, [fact("c", "2"), fact("d", "2")])
        await tx.execute_many(_INSERT, [fact("e", "2")])

    await database.write(job)
    assert await database.read(everything) == {"a": "2", "b": "2", "c": "1", "d": "2", "e": "2", "f": "2"}


async def test_what_follows_in_the_transaction_sees_what_was_put_off(database: Database) -> None:
    async def job(tx: Transaction) -> tuple[int, dict[str, str]]:
        await tx.execute_many(_INSERT, [fact("a", "1")])
        changed = await tx.execute(_CHANGE, {"of": "a", "to": "2"})
        await tx.execute_many(_INSERT, [fact("b", "1")])
        return changed, await everything(tx)

    assert await database.write(job) == (1, {"a": "2", "b": "1"})


async def test_what_is_refused_at_the_end_undoes_the_whole_transaction(database: Database) -> None:
    async def job(tx: Transaction) -> str:
        await tx.execute(_INSERT, fact("a", "1"))
        await tx.execute_many(_INSERT, [fact("b", "1")])
        await tx.execute_many(_INSERT, [fact("a", "2")])
        return "done"

    with pytest.raises(IntegrityError):
        await database.write(job)
    assert await database.read(everything) == {}


async def test_a_job_that_fails_sends_nothing_of_what_was_put_off(database: Database) -> None:
    async def job(tx: Transaction) -> Any:
        await tx.execute_many(_INSERT, [fact("a", "1")])
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(job)
    assert await database.read(everything) == {}


@pytest.fixture(params=["sqlite", "postgres"])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    opened = await open_database(request.getfixturevalue(f"{request.param}_url"))
    yield opened
    await opened.aclose()


class Taken(NotFound):
    """Raised by a job that is told that a row was there already."""


async def add(tx: Transaction, key: str) -> None:
    if not await tx.execute_one(_ADD, fact(key, "1")):
        raise Taken(key)


async def test_a_statement_that_must_affect_one_row_and_does_is_joined_with_others(either: Database) -> None:
    async def job(tx: Transaction) -> None:
        await add(tx, "a")
        await tx.execute_many(_INSERT, [fact("b", "1")])

    await either.write(job)
    assert await either.read(everything) == {"a": "1", "b": "1"}


@pytest.mark.parametrize("there", ["b", "c"])
async def test_the_first_that_affects_no_row_is_told_and_nothing_is_done(either: Database, there: str) -> None:
    await either.write(lambda tx: tx.execute_many(_INSERT, [fact(there, "0")]))

    async def job(tx: Transaction) -> None:
        await tx.execute_many(_INSERT, [fact("a", "1")])
        await add(tx, "b")
        await add(tx, "c")
        await tx.execute_many(_INSERT, [fact("d", "1")])

    with pytest.raises(Taken, match=f"^{there}$"):
        await either.write(job)
    assert await either.read(everything) == {there: "0"}


async def test_a_job_that_is_told_so_may_go_on_otherwise(either: Database) -> None:
    await either.write(lambda tx: tx.execute_many(_INSERT, [fact("a", "0")]))

    async def job(tx: Transaction) -> str:
        await tx.execute_many(_INSERT, [fact("b", "1")])
        if await tx.execute_one(_ADD, fact("a", "1")):
            return "added"
        await tx.execute(_CHANGE, {"of": "a", "to": "2"})
        return "changed"

    assert await either.write(job) == "changed"
    assert await either.read(everything) == {"a": "2", "b": "1"}


async def test_one_that_affects_several_rows_is_told_too(either: Database) -> None:
    await either.write(lambda tx: tx.execute_many(_INSERT, [fact("a", "0"), fact("b", "0")]))
    everywhere = update(facts).values(value=bindparam("to"))
    assert not await either.write(lambda tx: tx.execute_one(everywhere, {"to": "1"}))


async def test_a_row_that_is_refused_beside_one_that_is_counted_is_named_by_its_constraint(either: Database) -> None:
    await either.write(lambda tx: tx.execute_many(_INSERT, [fact("b", "0")]))

    async def job(tx: Transaction) -> None:
        await add(tx, "a")
        await tx.execute_many(_INSERT, [fact("b", "1")])

    with pytest.raises(IntegrityError, match="facts"):
        await either.write(job)
    assert await either.read(everything) == {"b": "0"}


async def test_what_is_executed_next_sees_what_was_counted(either: Database) -> None:
    async def job(tx: Transaction) -> int:
        await add(tx, "a")
        return await tx.execute(_CHANGE, {"of": "a", "to": "2"})

    assert await either.write(job) == 1
    assert await either.read(everything) == {"a": "2"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to PostgreSQL, by its first word."""
    words: list[str] = []
    driver: Any = asyncpg.Connection
    execute = driver.execute

    def noted(connection: Any, query: str, *values: Any, **named: Any) -> Any:
        words.append(query.split()[0])
        return execute(connection, query, *values, **named)

    monkeypatch.setattr(driver, "execute", noted)
    return words


async def test_a_job_that_is_one_guarded_statement_needs_no_transaction_around_it(
    database: Database, sent: list[str]
) -> None:
    async def job(tx: Transaction) -> None:
        await add(tx, "a")
        await tx.execute_many(_INSERT, [fact("b", "1")])

    await database.write(job)
    assert sent == ["WITH"]
    assert await database.read(everything) == {"a": "1", "b": "1"}


async def test_one_that_could_happen_twice_has_a_transaction(database: Database, sent: list[str]) -> None:
    """If its connection is lost before the commit, it certainly did not happen, and is tried again."""
    await database.write(lambda tx: tx.execute_many(_INSERT, [fact("a", "1")]))
    assert sent == ["BEGIN", "INSERT", "COMMIT"]


async def test_a_job_that_sends_nothing_needs_no_transaction(database: Database, sent: list[str]) -> None:
    async def job(tx: Transaction) -> str:
        return "nothing to do"

    assert await database.write(job) == "nothing to do"
    assert sent == []


async def test_sessions_that_are_read_only_by_default_write_all_the_same(postgres_url: str) -> None:
    opened = await open_database(f"{postgres_url}{'&' if '?' in postgres_url else '?'}default_transaction_read_only=on")
    try:
        await opened.write(lambda tx: add(tx, "a"))
        assert await opened.read(everything) == {"a": "1"}
    finally:
        await opened.aclose()

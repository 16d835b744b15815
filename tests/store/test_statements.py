"""Statements are compiled once per shape, on both dialects, and their values are never mixed up."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, bindparam, select

from holdfast.errors import BugError
from holdfast.store.sqlite_connection import COMPILER
from holdfast.store.statements import in_array, insert_into, insert_or_ignore, insert_or_update
from holdfast.store.tables import facts, runs
from holdfast.store.transaction import Database, Transaction

_INSERT = insert_into(facts)


@pytest.fixture
async def letters(database: Database) -> Database:
    async def job(tx: Transaction) -> None:
        await tx.execute_many(_INSERT, [{"key": letter, "value": letter.upper()} for letter in "abcde"])

    await database.write(job)
    return database


async def test_two_statements_of_one_shape_keep_their_own_values(letters: Database) -> None:
    async def job(tx: Transaction) -> list[str]:
        found: list[str] = []
        for letter in "abcde":
            row = await tx.fetch_one(select(facts.c.value).where(facts.c.key == letter).limit(1))
            assert row is not None
            found.append(row["value"])
        return found

    assert await letters.read(job) == list("ABCDE")


async def test_a_list_is_one_parameter_by_name_or_by_value(letters: Database) -> None:
    by_name = select(facts.c.key).where(in_array(facts.c.key, "wanted")).order_by(facts.c.key)

    async def job(tx: Transaction) -> list[list[str]]:
        found = [await tx.fetch_all(by_name, {"wanted": wanted}) for wanted in (["a", "d"], ["e"], [])]
        found.append(await tx.fetch_all(select(facts.c.key).where(in_array(facts.c.key, ("b", "c", "x")))))
        return [sorted(row["key"] for row in rows) for rows in found]

    assert await letters.read(job) == [["a", "d"], ["e"], [], ["b", "c"]]


async def test_an_in_list_works_whatever_its_length(letters: Database) -> None:
    async def job(tx: Transaction) -> list[int]:
        lists: list[list[str]] = [["a"], ["a", "b", "c"], []]
        return [len(await tx.fetch_all(select(facts.c.key).where(facts.c.key.in_(wanted)))) for wanted in lists]

    assert await letters.read(job) == [1, 3, 0]


async def test_a_conflict_can_be_ignored_or_can_overwrite(letters: Database) -> None:
    ignore, overwrite = insert_or_ignore(facts), insert_or_update(facts, ["key"], ["value"])

    async def job(tx: Transaction) -> tuple[int, int, int]:
        return (
            await tx.execute(ignore, {"key": "a", "value": "ignored"}),
            await tx.execute(ignore, {"key": "f", "value": "F"}),
            await tx.execute(overwrite, {"key": "b", "value": "new"}),
        )

    async def look(tx: Transaction) -> dict[str, str]:
        return {row["key"]: row["value"] for row in await tx.fetch_all(select(facts))}

    assert await letters.write(job) == (0, 1, 1)
    assert await letters.read(look) == {"a": "A", "b": "new", "c": "C", "d": "D", "e": "E", "f": "F"}


async def test_a_forgotten_parameter_is_a_bug_not_a_null(letters: Database) -> None:
    statement = select(facts).where(facts.c.key == bindparam("fact"))

    async def job(tx: Transaction) -> None:
        await tx.fetch_all(statement, {"wrong": "a"})

    with pytest.raises(BugError, match="fact"):
        await letters.read(job)


def test_a_list_built_anew_for_every_call_is_not_compiled_anew() -> None:
    first, second = (COMPILER.prepare(_listing(number), {}) for number in (1, 2))

    assert second.shape is first.shape
    assert [prepared.bind({})[1][:2] for prepared in (first, second)] == [["agent-1", 1], ["agent-2", 2]]


def _listing(number: int) -> Select[Any]:
    return (
        select(runs)
        .where(runs.c.agent_id == f"agent-{number}", runs.c.created_us < number, in_array(runs.c.status, ["created"]))
        .order_by(runs.c.created_us.desc(), runs.c.id.desc())
        .limit(number)
    )

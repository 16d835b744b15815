"""A database is copied into another one of either kind, and ends as the same, wherever the copying was interrupted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from holdfast.core.search_words import query_words
from holdfast.errors import ConfigError, Invalid
from holdfast.store import move, move_record, passage_search
from holdfast.store.database import open_database, sqlite_path
from holdfast.store.migrations import revision
from holdfast.store.move import Verified
from holdfast.store.move_sides import open_source, open_target, place_of
from holdfast.store.passage_search import PassageFilter
from holdfast.store.sqlite import only_server
from holdfast.store.statements import insert_into
from holdfast.store.tables import blocks, facts, messages, runs
from holdfast.store.transaction import Database, Transaction

from .filled import fill
from .world import a_message, add_agent, add_run, call, say

ROWS = 5


class Killed(Exception):
    """In place of SIGKILL: nothing is done after it."""


def quietly(phase: str, table: str, rows: int) -> None:
    pass


def killed_after(batches: int) -> Callable[[str, str, int], None]:
    left = batches

    def progress(phase: str, table: str, rows: int) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1

    return progress


async def moved(
    source_url: str, target_url: str, progress: move.Progress = quietly, most_rows: int = 2
) -> list[Verified]:
    async with open_source(source_url, leaving_s=0) as source, open_target(target_url, source, leaving_s=1) as target:
        record = await move.begin(source, target)
        await move.copy(source, target, record, progress, most_rows)
        tables = await move.verify(source, target, quietly)
        if all(table.same for table in tables):
            await move.finish(target)
        return tables


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Database]:
    database = await open_database(url)
    try:
        yield database
    finally:
        await database.aclose()


@pytest.fixture(params=["sqlite to postgres", "postgres to sqlite", "sqlite to sqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of a source with its schema and a target without."""
    source, _, target = request.param.split()
    to = "empty_postgres_url" if target == "postgres" else None
    target_url = request.getfixturevalue(to) if to else f"sqlite:///{tmp_path}/target/holdfast.db"
    return request.getfixturevalue(f"{source}_url"), target_url


async def test_every_row_of_every_table_arrives_as_it_was(urls: tuple[str, str]) -> None:
    async with opened(urls[0]) as database:
        await fill(database, ROWS)
    tables = await moved(*urls)
    assert [table.table for table in tables if not table.same] == []
    assert {table.target_rows for table in tables} == {ROWS}


async def test_there_and_back_again_is_the_same(sqlite_url: str, empty_postgres_url: str, tmp_path: Path) -> None:
    async with opened(sqlite_url) as database:
        await fill(database, ROWS)
    there = await moved(sqlite_url, empty_postgres_url)
    back = await moved(empty_postgres_url, f"sqlite:///{tmp_path}/back.db")
    assert [table.source_hash for table in there] == [table.target_hash for table in back]


async def test_what_is_derived_is_made_anew_and_numbers_go_on(urls: tuple[str, str]) -> None:
    async with opened(urls[0]) as database:
        await fill(database, ROWS)
    await moved(*urls)
    async with opened(urls[1]) as database:

        async def search(tx: Transaction) -> list[str]:
            within = PassageFilter(archive_ids=("Zebra archives id 2",))  # which is a folder too, as all of them are
            return await passage_search.by_words(tx, query_words("w2"), within, 10)

        (found,) = await database.read_long(search)
        assert found.endswith("passages id 2")
        largest = await _largest(database)
        agent_id = await add_agent(database)
        await say(database, agent_id, agent_id, [a_message("next")])
        assert await _largest(database) == largest + 1


@pytest.mark.slow
async def test_a_move_that_was_killed_anywhere_is_finished_by_the_next_one(urls: tuple[str, str]) -> None:
    """At every boundary between batches, one after the other: each attempt gets one batch further, from what it reads
    in the databases. Every tenth opens them anew, too."""
    async with opened(urls[0]) as database:
        await fill(database, 3)
    attempts, is_done = 0, False
    while not is_done:
        async with open_source(urls[0], leaving_s=0) as source, open_target(urls[1], source, leaving_s=1) as target:
            for _ in range(10):
                try:
                    await move.copy(source, target, await move.begin(source, target), killed_after(0), most_rows=2)
                except Killed:
                    attempts += 1
                else:
                    is_done = True
                    break
    tables = await moved(*urls)
    assert attempts == 2 * len(tables)  # of three rows in batches of two
    assert all(table.same for table in tables)
    async with opened(urls[1]) as database:
        await database.read(move_record.require_whole)


async def test_a_move_that_was_killed_before_its_last_step_is_finished_by_the_next_one(urls: tuple[str, str]) -> None:
    async with opened(urls[0]) as database:
        await fill(database, 3)
    async with open_source(urls[0], leaving_s=0) as source, open_target(urls[1], source, leaving_s=0) as target:
        await move.copy(source, target, await move.begin(source, target), quietly)
        assert all(table.same for table in await move.verify(source, target, quietly))
    assert all(table.same for table in await moved(*urls))
    async with opened(urls[1]) as database:
        await database.read(move_record.require_whole)


@pytest.mark.parametrize("batches", [0, 1, 30])
async def test_no_server_uses_a_target_that_is_not_whole(urls: tuple[str, str], batches: int) -> None:
    async with opened(urls[0]) as database:
        await fill(database, ROWS)
    with pytest.raises(Killed):
        await moved(*urls, killed_after(batches))
    async with opened(urls[1]) as database:
        with pytest.raises(ConfigError, match="has not ended"):
            await database.read(move_record.require_whole)


@pytest.mark.slow
async def test_a_batch_that_was_not_committed_is_copied_again(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_url) as database:
        await fill(database, ROWS)
    write, calls = move_record.write, 0

    async def dies(tx: Transaction, record: Any) -> None:
        nonlocal calls
        calls += 1
        await write(tx, record)
        if calls % 4 == 0:
            raise Killed  # after the rows and the record, before the commit

    target = f"sqlite:///{tmp_path}/target.db"
    monkeypatch.setattr(move_record, "write", dies)
    deaths = 0
    while True:
        try:
            tables = await moved(sqlite_url, target)
            break
        except Killed:
            deaths += 1
    assert deaths > ROWS
    assert all(table.same for table in tables)


async def test_a_source_that_changed_between_two_attempts_is_found_out(sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    async with opened(sqlite_url) as database:
        await fill(database, ROWS)
    with pytest.raises(Killed):
        await moved(sqlite_url, target, killed_after(60))
    async with opened(sqlite_url) as database:
        await call(database, _change_a_block)
    assert [table.table for table in await moved(sqlite_url, target) if not table.same] == ["blocks"]
    async with opened(target) as database:
        with pytest.raises(ConfigError):
            await database.read(move_record.require_whole)


async def test_a_target_that_holds_something_is_refused(urls: tuple[str, str]) -> None:
    async with opened(urls[1]) as database:
        await add_agent(database)
    with pytest.raises(ConfigError, match=r"not empty: there are rows in agents"):
        await moved(*urls)


async def test_an_unfinished_move_from_elsewhere_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    target, other = f"sqlite:///{tmp_path}/target.db", f"sqlite:///{tmp_path}/other.db"
    for url in (sqlite_url, other):
        async with opened(url) as database:
            await fill(database, 1)
    with pytest.raises(Killed):
        await moved(sqlite_url, target, killed_after(1))
    with pytest.raises(ConfigError, match="unfinished move from"):
        await moved(other, target)
    with pytest.raises(ConfigError, match="has not ended"):
        await moved(target, f"sqlite:///{tmp_path}/third.db")


async def test_a_sqlite_file_that_a_server_uses_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    with only_server(sqlite_path(sqlite_url)), pytest.raises(ConfigError, match="Another Holdfast server"):
        await moved(sqlite_url, target)
    with only_server(sqlite_path(target)), pytest.raises(ConfigError, match="Another Holdfast server"):
        await moved(sqlite_url, target)


async def test_a_postgresql_that_a_server_uses_is_refused(postgres_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    async with opened(postgres_url):
        with pytest.raises(ConfigError, match="sessions of 'holdfast'"):
            await moved(postgres_url, target)


async def test_a_run_with_a_live_lease_is_refused_and_one_without_moves_as_it_is(
    postgres_url: str, tmp_path: Path
) -> None:
    async with opened(postgres_url) as database:
        run = await add_run(database, await add_agent(database), status="running")
        now_us = await database.now_us()
        await call(database, _lease_until, run.id, now_us + 60_000_000)
    with pytest.raises(ConfigError, match="1 have a lease"):
        await moved(postgres_url, f"sqlite:///{tmp_path}/target.db")
    async with opened(postgres_url) as database:
        await call(database, _lease_until, run.id, now_us - 1)
    assert all(table.same for table in await moved(postgres_url, f"sqlite:///{tmp_path}/target.db"))


async def test_a_source_with_an_older_schema_says_what_to_run(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision, "HEAD", "9999")
    with pytest.raises(ConfigError, match="holdfast migrate"):
        await moved(sqlite_url, f"sqlite:///{tmp_path}/target.db")


async def test_what_is_no_database_of_ours_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    target = f"sqlite:///{tmp_path}/target.db"
    with pytest.raises(ConfigError, match="There is no database"):
        await moved(f"sqlite:///{tmp_path}/nothing.db", target)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(ConfigError, match="not a database"):
        await moved(f"sqlite:///{tmp_path}/text.db", target)
    with pytest.raises(Invalid, match="sqlite:///"):
        await moved("mysql://somewhere", target)
    with pytest.raises(Invalid, match="same database"):
        await moved(sqlite_url, sqlite_url)


async def test_a_disk_that_is_too_small_is_refused(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=10)

    monkeypatch.setattr("shutil.disk_usage", full)
    with pytest.raises(ConfigError, match="too small"):
        await moved(sqlite_url, f"sqlite:///{tmp_path}/target.db")


async def test_what_the_target_cannot_hold_is_named(sqlite_url: str, empty_postgres_url: str) -> None:
    async with opened(sqlite_url) as database:
        await call(database, _add_fact, "odd", "a\x00b")
    with pytest.raises(ConfigError, match=r"cannot hold rows of facts.*odd"):
        await moved(sqlite_url, empty_postgres_url)


def test_places_are_named_without_passwords() -> None:
    assert place_of("postgresql://me:secret@db:5432/holdfast?sslmode=require") == "postgresql://db:5432/holdfast"
    assert place_of("postgres+asyncpg://me:secret@/h?host=/run/pg") == "postgresql:///run/pg/h"


@pytest.mark.slow
async def test_batches_of_large_rows_are_small(sqlite_url: str, tmp_path: Path) -> None:
    async with opened(sqlite_url) as database:
        for place in range(200):
            await call(database, _add_fact, f"{place:03}", "x" * 200_000)
    sizes: list[int] = []
    await moved(sqlite_url, f"sqlite:///{tmp_path}/t.db", lambda phase, table, rows: sizes.append(rows), 2_000)
    assert sum(sizes) == 200
    assert max(sizes[1:]) <= 4 * 1024 * 1024 // 200_000


async def _largest(database: Database) -> int:
    async def job(tx: Transaction) -> int:
        row = await tx.fetch_one(select(func.max(messages.c.seq).label("largest")))
        assert row is not None
        return row["largest"]

    return await database.read(job)


async def _change_a_block(tx: Transaction) -> None:
    await tx.execute(update(blocks).values(value="changed"))


async def _lease_until(tx: Transaction, run_id: str, us: int) -> None:
    await tx.execute(update(runs).where(runs.c.id == run_id).values(lease_owner="w", lease_expires_us=us))


async def _add_fact(tx: Transaction, key: str, value: str) -> None:
    await tx.execute(insert_into(facts), {"key": key, "value": value, "number": None})

"""A migrated database is the one that tables.py describes, however many processes bring it there."""

from __future__ import annotations

import asyncio
import io
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic import command, op
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.core.search_words import query_words
from holdfast.store import passage_search, sqlite
from holdfast.store.database import open_database
from holdfast.store.migrations import revision, upgrade
from holdfast.store.passage_search import PassageFilter
from holdfast.store.schema import metadata
from holdfast.store.sqlite_connection import keep_a_log
from holdfast.store.transaction import DatabaseError

_driver: Any = asyncpg

# Without the generated column that only PostgreSQL has, and without its index.
_COLUMNS = """
    SELECT table_name, column_name, row_number() OVER (PARTITION BY table_name ORDER BY ordinal_position), data_type,
    is_nullable, column_default
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
    AND column_name <> 'lexemes' ORDER BY 1, 3
"""
_INDEXES = """
    SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    AND indexname <> 'passages_by_words' ORDER BY 1
"""
_CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version' ORDER BY 1, 2
"""


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory.from_config(upgrade.configuration()).get_current_head() == revision.HEAD


def test_a_new_sqlite_file_equals_one_that_the_migrations_have_made(tmp_path: Path) -> None:
    new, migrated = tmp_path / "new.db", tmp_path / "migrated.db"
    sqlite.migrate(new)
    upgrade.upgrade_sqlite(migrated)
    assert described(new) == described(migrated)


def described(path: Path) -> list[tuple[Any, ...]]:
    """Without the text of foreign keys, which a column that was added later spells otherwise; they are listed apart."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name in [row[1] for row in found if row[0] == "table"]:
            keys = connection.execute(f"SELECT * FROM pragma_foreign_key_list('{name}')").fetchall()
            found += sorted((name, *key[2:]) for key in keys)
        found += connection.execute(revision.READ).fetchall()
    return [tuple(_plain(text) if isinstance(text, str) else text for text in row) for row in found]


def _plain(sql: str) -> str:
    without_keys = re.sub(r",\s*FOREIGN KEY\(\w+\) (?=REFERENCES)|REFERENCES \w+ \(\w+\)( ON DELETE CASCADE)?", "", sql)
    return "".join(without_keys.split())


def test_a_migrated_sqlite_file_equals_the_tables(tmp_path: Path) -> None:
    migrated = tmp_path / "migrated.db"
    upgrade.upgrade_sqlite(migrated)
    engine = create_engine(f"sqlite:///{migrated}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "target_metadata": metadata,
                "include_name": _is_described,
            },
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()
    created = create_engine(f"sqlite:///{tmp_path}/created.db")
    metadata.create_all(created)
    created.dispose()
    # Alembic does not look at the conditions of partial indexes; those are the invariants, so compare their text.
    assert _indexes(migrated) == _indexes(tmp_path / "created.db")


def _is_described(name: str | None, kind: str, _: Any) -> bool:
    """SQLAlchemy knows no virtual tables. That a new file has this one too is tested above."""
    return kind != "table" or not str(name).startswith("passage_words")


def _indexes(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
        return {name: " ".join(sql.split()) for name, sql in rows}


async def test_a_migrated_postgresql_database_equals_the_tables(postgres_url: str, empty_postgres_url: str) -> None:
    dialect = PGDialect_asyncpg()
    described = await _driver.connect(empty_postgres_url)
    for table in metadata.sorted_tables:
        await described.execute(str(CreateTable(table).compile(dialect=dialect)))
        for index in table.indexes:
            index.dialect_options["postgresql"]["where"] = index.dialect_options["sqlite"]["where"]
            await described.execute(str(CreateIndex(index).compile(dialect=dialect)))
    migrated = await _driver.connect(postgres_url)
    for question in (_COLUMNS, _INDEXES, _CONSTRAINTS):
        expected = [tuple(row) for row in await described.fetch(question)]
        assert [tuple(row) for row in await migrated.fetch(question)] == expected
        assert expected
    await described.close()
    await migrated.close()


async def test_starting_twice_at_once_migrates_once(tmp_path: Path, empty_postgres_url: str) -> None:
    databases = await asyncio.gather(*(open_database(empty_postgres_url) for _ in range(4)))
    for database in databases:
        await database.aclose()
    path = tmp_path / "holdfast.db"
    await asyncio.gather(*(asyncio.to_thread(upgrade.upgrade_sqlite, path) for _ in range(4)))
    with closing(sqlite3.connect(path)) as connection:
        assert revision.of_sqlite(connection) == revision.HEAD


async def test_who_comes_second_waits_until_the_file_can_have_its_log(tmp_path: Path) -> None:
    path, waiting = tmp_path / "one.db", asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(sql: str) -> None:
        if sql == "BEGIN IMMEDIATE":
            loop.call_soon_threadsafe(waiting.set)

    with (
        closing(sqlite3.connect(path, isolation_level=None)) as first,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)) as second,
    ):
        first.execute("BEGIN IMMEDIATE")  # while the file has no log yet
        second.set_trace_callback(told)
        switched = asyncio.create_task(asyncio.to_thread(keep_a_log, second))
        await asyncio.wait({switched, asyncio.create_task(waiting.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert not switched.done()
        first.execute("COMMIT")
        await switched
        assert second.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_that_are_cut_short_between_two_revisions_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.db"

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(op, "add_column", fail)  # which only the second revision does
        with pytest.raises(KeyboardInterrupt):
            upgrade.upgrade_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
    upgrade.upgrade_sqlite(path)
    with closing(sqlite3.connect(path)) as connection:
        assert revision.of_sqlite(connection) == revision.HEAD


async def test_a_migration_that_is_cut_short_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "holdfast.db"

    def cut_short(*_: object) -> None:
        with closing(sqlite3.connect(path)) as connection:
            assert revision.of_sqlite(connection) is None
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(upgrade.command, "upgrade", cut_short)
        with pytest.raises(KeyboardInterrupt):
            upgrade.upgrade_sqlite(path)
    database = await open_database(f"sqlite:///{path}")
    await database.aclose()


@pytest.fixture(params=["sqlite", "new_postgres"])
def own_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


async def test_a_database_from_a_newer_release_is_left_alone(own_url: str) -> None:
    if own_url.startswith("sqlite"):
        with closing(sqlite3.connect(own_url.removeprefix("sqlite:///"))) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")
            connection.commit()
    else:
        connection = await _driver.connect(own_url)
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
        await connection.close()
    with pytest.raises(DatabaseError, match="newer release"):
        await open_database(own_url)


async def test_passages_that_postgresql_had_indexed_by_its_own_words_are_indexed_by_ours(
    empty_postgres_url: str,
) -> None:
    config = upgrade.configuration()
    config.output_buffer = io.StringIO()
    config.attributes["dialect"] = "postgresql"
    command.upgrade(config, "base:0007", sql=True)
    connection = await _driver.connect(empty_postgres_url)
    await connection.execute(config.output_buffer.getvalue())
    await connection.execute("INSERT INTO archives (id, name, created_us, updated_us) VALUES ('archive-1', 'a', 1, 1)")
    await connection.execute(
        "INSERT INTO passages (id, archive_id, text, words, tags, metadata, awaits_vector, created_us, updated_us) "
        "VALUES ('passage-1', 'archive-1', '03e2d', '03e2d ουρανος', '[]', '{}', false, 1, 1)"
    )
    await connection.close()
    database = await open_database(empty_postgres_url)
    for word in query_words("03e2d ΟΥΡΑΝΟΣ"):
        found = await database.read_long(lambda tx, word=word: passage_search.by_words(tx, [word], PassageFilter(), 1))
        assert found == ["passage-1"]
    await database.aclose()


def test_rows_survive_when_their_table_is_stored_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    _upgrade_to(path, "0016")
    places = [("thread-1", 0, "message-1", 0), ("thread-1", 1, "message-2", None), ("thread-2", 0, "message-1", 0)]
    otids = [("thread-1", "otid-1", "run-1"), ("thread-1", "otid-1", "run-2")]
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO thread_messages VALUES (?, ?, ?, ?)", places)
        connection.executemany("INSERT INTO run_otids VALUES (?, ?, ?)", otids)
        connection.commit()

    sqlite.migrate(path)

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM thread_messages ORDER BY 1, 2").fetchall() == places
        assert connection.execute("SELECT * FROM run_otids ORDER BY 1, 2, 3").fetchall() == otids
        with pytest.raises(sqlite3.IntegrityError, match="message_id"):
            connection.execute("INSERT INTO thread_messages VALUES ('thread-1', 2, 'message-1', 2)")
        with pytest.raises(sqlite3.IntegrityError, match="context_position"):
            connection.execute("INSERT INTO thread_messages VALUES ('thread-1', 3, 'message-3', 0)")


def _upgrade_to(path: Path, older: str) -> None:
    engine = create_engine(f"sqlite:///{path}")
    config = upgrade.configuration()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, older)
    engine.dispose()

"""The driver: what a transaction keeps, what it undoes, and who is told."""

from __future__ import annotations

import asyncio
import contextvars
import random
import shutil
import sqlite3
import string
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import bindparam, func, select, text, update

from holdfast.errors import BugError, Invalid, LeaseLost, NotFound
from holdfast.store import kv
from holdfast.store.database import open_database
from holdfast.store.sqlite import SQLiteDatabase
from holdfast.store.sqlite_connection import translate
from holdfast.store.statements import insert_into
from holdfast.store.tables import agent_tags, facts
from holdfast.store.transaction import Database, DatabaseError, IntegrityError, Transaction
from tests.scenario import eventually

_INSERT = insert_into(facts)
_VALUE = select(facts.c.value).where(facts.c.key == bindparam("fact"))
_CHANGE = update(facts).where(facts.c.key == bindparam("fact")).values(value=bindparam("to"))
_COUNT = select(func.count().label("rows")).select_from(facts)


def put(key: str, value: str = "x") -> Callable[[Transaction], Any]:
    async def job(tx: Transaction) -> str:
        await tx.execute(_INSERT, {"key": key, "value": value})
        return key

    return job


async def value_of(database: Database, key: str) -> str | None:
    async def job(tx: Transaction) -> str | None:
        row = await tx.fetch_one(_VALUE, {"fact": key})
        return row["value"] if row else None

    return await database.read(job)


async def count(database: Database) -> int:
    async def job(tx: Transaction) -> int:
        row = await tx.fetch_one(_COUNT)
        assert row is not None
        return row["rows"]

    return await database.read(job)


async def test_a_read_sees_the_write_awaited_before_it(database: Database) -> None:
    for number in range(20):
        assert await database.write(put(f"k{number}", str(number))) == f"k{number}"
        assert await value_of(database, f"k{number}") == str(number)


async def test_a_job_is_told_as_performed_once_and_with_its_result_before_the_write_returns(database: Database) -> None:
    told: list[str] = []
    where = contextvars.ContextVar("where", default="nowhere")
    where.set("here")
    written = await asyncio.gather(
        *(database.write(put(f"k{number}"), lambda key: told.append(f"{key} {where.get()}")) for number in range(5))
    )
    assert sorted(told) == [f"{key} here" for key in sorted(written)]


async def test_a_job_that_raises_is_not_told_as_performed(database: Database) -> None:
    await database.write(put("there"))
    told: list[str] = []
    outcomes = await asyncio.gather(
        *(database.write(put(key), told.append) for key in ("there", "new")), return_exceptions=True
    )
    assert isinstance(outcomes[0], IntegrityError)
    assert told == ["new"]


async def test_a_job_that_raises_leaves_nothing_and_its_caller_gets_the_exception(database: Database) -> None:
    async def job(tx: Transaction) -> None:
        await tx.execute(_INSERT, {"key": "gone", "value": "x"})
        raise NotFound("no such thing")

    with pytest.raises(NotFound, match="no such thing"):
        await database.write(job)
    assert await value_of(database, "gone") is None


async def test_a_failing_job_does_not_poison_the_jobs_that_are_committed_with_it(database: Database) -> None:
    async def refused(tx: Transaction) -> None:
        await tx.execute(_INSERT, {"key": "refused", "value": "x"})
        await tx.execute(_INSERT, {"key": "refused", "value": "x"})

    jobs = [refused if number % 3 == 0 else put(f"k{number}") for number in range(60)]
    outcomes = await asyncio.gather(*(database.write(job) for job in jobs), return_exceptions=True)
    assert [isinstance(outcome, IntegrityError) for outcome in outcomes] == [n % 3 == 0 for n in range(60)]
    assert await count(database) == 40


async def test_affected_rows_are_counted(database: Database) -> None:
    await database.write(put("there"))

    async def job(tx: Transaction) -> tuple[int, int]:
        hit = await tx.execute(_CHANGE, {"fact": "there", "to": "y"})
        return hit, await tx.execute(_CHANGE, {"fact": "absent", "to": "y"})

    assert await database.write(job) == (1, 0)


async def test_an_unforeseen_conflict_names_the_constraint(database: Database) -> None:
    await database.write(put("twice"))
    with pytest.raises(IntegrityError) as caught:
        await database.write(put("twice"))
    assert "facts" in caught.value.constraint


async def test_a_value_that_the_index_has_no_room_for_is_nothing_to_try_again(postgres_url: str) -> None:
    key = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=6_000))
    database = await open_database(postgres_url)
    with pytest.raises(BugError, match="index row size"):
        await database.write(put(key))
    assert await count(database) == 0
    await database.aclose()


def test_a_value_that_is_too_large_for_sqlite_is_nothing_to_try_again() -> None:
    assert isinstance(translate(sqlite3.DataError("string or blob too big")), BugError)
    assert isinstance(translate(sqlite3.OperationalError("disk I/O error")), DatabaseError)


async def test_foreign_keys_are_enforced(database: Database) -> None:
    async def job(tx: Transaction) -> None:
        await tx.execute(insert_into(agent_tags), {"agent_id": "agent-nobody", "tag": "t"})

    with pytest.raises(IntegrityError):
        await database.write(job)


async def test_a_read_cannot_write(database: Database) -> None:
    with pytest.raises((DatabaseError, BugError)):
        await database.read(put("sneaky"))
    assert await value_of(database, "sneaky") is None
    assert await database.write(put("proper")) == "proper"


async def test_the_job_of_a_cancelled_caller_is_still_committed(database_url: str) -> None:
    database = await open_database(database_url)
    task = asyncio.create_task(database.write(put("kept")))
    await asyncio.sleep(0)  # the job is asked for, and cannot have been done yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.write(put("later"))
    await database.aclose()
    again = await open_database(database_url)
    assert [await value_of(again, key) for key in ("kept", "later")] == ["x", "x"]
    await again.aclose()


async def _fail_unseen(database_url: str, failure: Exception) -> None:
    database = await open_database(database_url)

    async def failing(tx: Transaction) -> None:
        raise failure

    task = asyncio.create_task(database.write(failing))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.aclose()


@pytest.mark.parametrize(
    "failure", [NotFound("no such agent"), DatabaseError("the connection was lost"), LeaseLost("it is another's")]
)
async def test_a_job_that_fails_after_its_caller_has_left_is_a_line_in_the_log(
    database_url: str, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    await _fail_unseen(database_url, failure)
    [record] = [each for each in caplog.records if "after its caller had left" in each.message]
    assert str(failure) in record.message
    assert record.exc_info is None


@pytest.mark.parametrize("failure", [BugError("a rule was broken"), KeyError("missing")])
async def test_a_job_that_fails_of_a_bug_after_its_caller_has_left_is_logged_whole(
    database_url: str, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    await _fail_unseen(database_url, failure)
    [record] = [each for each in caplog.records if "after its caller had left" in each.message]
    assert record.exc_info is not None
    assert record.exc_info[1] is failure


async def test_closing_finishes_what_was_asked_for_and_a_restart_finds_it(database_url: str) -> None:
    database = await open_database(database_url)
    tasks = [asyncio.create_task(database.write(put(f"k{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    await database.aclose()
    assert await asyncio.gather(*tasks) == [f"k{number}" for number in range(50)]
    again = await open_database(database_url)
    assert await count(again) == 50
    await again.aclose()


async def test_a_closed_database_says_so(database_url: str) -> None:
    database = await open_database(database_url)
    await database.aclose()
    await database.aclose()
    with pytest.raises(DatabaseError, match="closed"):
        await database.write(put("late"))
    with pytest.raises(DatabaseError, match="closed"):
        await database.read(put("late"))


async def test_the_clock_moves_forward_in_microseconds(database: Database) -> None:
    first, second = await database.now_us(), await database.now_us()
    assert 1_600_000_000_000_000 < first <= second < 4_000_000_000_000_000


async def test_a_multi_statement_read_is_one_consistent_view(database_url: str) -> None:
    database = await open_database(database_url)
    other = await open_database(database_url)
    await database.write(put("balance", "before"))

    async def job(tx: Transaction) -> tuple[str, str]:
        first = await tx.fetch_one(_VALUE, {"fact": "balance"})
        if isinstance(database, SQLiteDatabase):
            _in_a_thread(other, "after")  # nothing may be awaited here, so the other writer has its own loop
        else:
            await other.write(_set_balance("after"))
        second = await tx.fetch_one(_VALUE, {"fact": "balance"})
        assert first is not None and second is not None
        return first["value"], second["value"]

    assert await database.read(job) == ("before", "before")
    assert await value_of(database, "balance") == "after"
    await other.aclose()
    await database.aclose()


def _set_balance(to: str) -> Callable[[Transaction], Any]:
    async def job(tx: Transaction) -> int:
        return await tx.execute(_CHANGE, {"fact": "balance", "to": to})

    return job


def _in_a_thread(database: Database, to: str) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(database.write(_set_balance(to))))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


async def test_deadlocked_jobs_are_run_again_until_both_commit(postgres_url: str) -> None:
    database = await open_database(postgres_url)
    await database.write(put("a", "0"))
    await database.write(put("b", "0"))
    met = asyncio.Barrier(2)
    attempts = 0

    def crossing(first: str, second: str) -> Callable[[Transaction], Any]:
        async def job(tx: Transaction) -> None:
            nonlocal attempts
            attempts += 1
            await tx.execute(_CHANGE, {"fact": first, "to": first + second})
            if attempts <= 2:
                await met.wait()
            await tx.execute(_CHANGE, {"fact": second, "to": first + second})

        return job

    await asyncio.gather(database.write(crossing("a", "b")), database.write(crossing("b", "a")))
    # Usually 3. Who begins again may be quicker than who was woken up; then they meet once more.
    assert attempts > 2
    assert await value_of(database, "a") == await value_of(database, "b")
    await database.aclose()


async def test_a_job_that_awaits_something_else_is_called_out_by_name(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)

    async def dawdling(tx: Transaction) -> None:
        await tx.execute(_INSERT, {"key": "dawdled", "value": "x"})
        await asyncio.sleep(0)

    async def loitering(tx: Transaction) -> None:
        await asyncio.sleep(0)

    with pytest.raises(BugError, match="dawdling"):
        await database.write(dawdling)
    with pytest.raises(BugError, match="loitering"):
        await database.read(loitering)
    assert await value_of(database, "dawdled") is None
    await database.aclose()


async def test_a_full_disk_fails_the_whole_group_and_keeps_nothing_of_it(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)

    async def fill_up(tx: Transaction) -> None:
        row = await tx.fetch_one(text("PRAGMA page_count"))
        assert row is not None
        await tx.fetch_all(text(f"PRAGMA max_page_count = {row['page_count'] + 4}"))

    async def room_again(tx: Transaction) -> None:
        await tx.fetch_all(text("PRAGMA max_page_count = 100000"))

    await database.write(fill_up)
    small = [asyncio.create_task(database.write(put(f"small{number}"))) for number in range(5)]
    large = asyncio.create_task(database.write(put("large", "x" * 200_000)))
    outcomes = await asyncio.gather(*small, large, return_exceptions=True)
    assert isinstance(outcomes[-1], DatabaseError)
    kept = sum(1 for outcome in outcomes if not isinstance(outcome, BaseException))
    assert await count(database) == kept
    await database.write(room_again)
    await database.write(put("large", "x" * 200_000))
    await database.aclose()


async def test_jobs_that_queue_up_are_committed_together(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)
    assert isinstance(database, SQLiteDatabase)
    traced: list[str] = []
    database._writer._connection.set_trace_callback(traced.append)
    entered, go_on = threading.Event(), threading.Event()

    async def slow(tx: Transaction) -> None:
        entered.set()
        assert go_on.wait(60)

    first = asyncio.create_task(database.write(slow))
    await asyncio.get_running_loop().run_in_executor(None, entered.wait, 60)
    rest = [asyncio.create_task(database.write(put(f"k{number}"))) for number in range(30)]
    await asyncio.sleep(0)
    assert await count(database) == 0
    go_on.set()
    await asyncio.gather(first, *rest)
    assert traced.count("COMMIT") == 2
    assert await count(database) == 30
    await database.aclose()


async def test_reads_use_the_connection_of_the_writer_but_only_while_it_has_nothing_to_write(sqlite_url: str) -> None:
    """Its cache holds what was just written; what is not committed must not be seen, nor be waited for."""
    database = await open_database(sqlite_url)
    assert isinstance(database, SQLiteDatabase)
    await database.write(put("first"))
    traced: list[str] = []
    database._writer._connection.set_trace_callback(traced.append)
    entered, go_on = threading.Event(), threading.Event()

    async def slow(tx: Transaction) -> None:
        await tx.execute(_INSERT, {"key": "second", "value": "x"})
        entered.set()
        assert go_on.wait(60)

    async def counted_there() -> int:
        """As soon as the writer has tidied up, which it does after it has told of a write."""
        traced.clear()
        while True:
            rows = await count(database)
            if any("count(" in statement for statement in traced):
                return rows
            await asyncio.sleep(0.001)

    assert await counted_there() == 1
    writing = asyncio.create_task(database.write(slow))
    await asyncio.get_running_loop().run_in_executor(None, entered.wait, 60)
    traced.clear()
    assert await count(database) == 1
    assert traced == []
    go_on.set()
    await writing
    assert await counted_there() == 2
    await database.aclose()


async def test_reads_that_follow_each_other_do_not_keep_the_writer_from_its_connection(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)
    assert isinstance(database, SQLiteDatabase)
    writer, traced = database._writer, list[str]()
    writer._connection.set_trace_callback(traced.append)
    with writer.busy:  # a read is under way
        writing = asyncio.create_task(database.write(put("first")))
        await eventually(lambda: writer.waits)
        # The next read comes when the first has given the connection back and the writer has not taken it yet.
        given_back, writer.busy = writer.busy, threading.Lock()
        assert await count(database) == 0
        assert traced == []
        writer.busy = given_back
    await writing
    assert "COMMIT" in traced
    await database.aclose()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_is_stored_can_be_read_when_a_bug_has_ended_the_writer(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)
    assert isinstance(database, SQLiteDatabase)
    await database.write(put("kept"))
    database._writer.queue.put(cast("Any", "no job"))
    await asyncio.get_running_loop().run_in_executor(None, database._writer.thread.join, 60)
    assert await value_of(database, "kept") == "x"
    with pytest.raises(DatabaseError, match="has stopped"):
        await database.write(put("lost"))
    await database.aclose()


async def test_two_processes_may_write_one_sqlite_file(sqlite_url: str) -> None:
    one, two = await open_database(sqlite_url), await open_database(sqlite_url)
    await asyncio.gather(*(each.write(put(f"{name}{n}")) for n in range(50) for name, each in (("a", one), ("b", two))))
    assert await count(one) == await count(two) == 100
    await one.aclose()
    await two.aclose()


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "sqlite:///:memory:"])
async def test_an_address_that_cannot_be_opened_is_refused_in_words(url: str) -> None:
    with pytest.raises(Invalid, match=r"sqlite:///path/to/file\.db"):
        await open_database(url)


async def test_every_spelling_of_a_postgresql_address_is_accepted(postgres_url: str) -> None:
    for scheme in ("postgresql", "postgres", "postgresql+asyncpg"):
        database = await open_database(scheme + postgres_url.removeprefix("postgresql"))
        assert await count(database) == 0
        await database.aclose()


async def test_the_log_has_room_to_spare_and_is_recovered_all_the_same(tmp_path: Path) -> None:
    """As a crash leaves it: the files are copied while the database is open."""
    database = await open_database(f"sqlite:///{tmp_path}/one.db")
    try:
        for number in range(300):
            await database.write(put(f"k{number}", "x" * 5_000))
        log = tmp_path / "one.db-wal"
        assert not any(log.read_bytes()[-4096:])
        for ending in ("", "-wal", "-shm"):
            shutil.copy(tmp_path / f"one.db{ending}", tmp_path / f"two.db{ending}")
    finally:
        await database.aclose()
    recovered = await open_database(f"sqlite:///{tmp_path}/two.db")
    try:
        assert await count(recovered) == 300
        await recovered.write(put("another"))
        assert await count(recovered) == 301
    finally:
        await recovered.aclose()


async def test_a_job_of_one_statement_is_held_to_it(postgres_url: str) -> None:
    """Without a transaction around them, two statements would not see the same."""
    database = await open_database(postgres_url)
    try:
        assert await database.read_one(lambda tx: kv.number(tx, "missing")) is None

        async def twice(tx: Transaction) -> None:
            await kv.number(tx, "missing")
            await kv.number(tx, "missing")

        with pytest.raises(BugError, match="one statement"):
            await database.read_one(twice)
    finally:
        await database.aclose()

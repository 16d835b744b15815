"""Long reads delay no other work, and end when their caller is cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import BigInteger, func, literal, select

from holdfast.core.messages import Message
from holdfast.errors import HoldfastError
from holdfast.store import kv, messages
from holdfast.store.database import open_database
from holdfast.store.sqlite import LONG_READERS, _LongRead
from holdfast.store.sqlite_connection import SQLiteTransaction
from holdfast.store.transaction import Database, DatabaseError, Row, Transaction

from .world import a_message, add_agent, look, say


async def count_for_ever(tx: Transaction) -> object:
    numbers = select(literal(1, BigInteger).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(select(numbers.c.n + 1).where(numbers.c.n < literal(10**12, BigInteger)))
    return await tx.fetch_one(select(func.count().label("n")).select_from(numbers))


async def one(tx: Transaction) -> object:
    row = await tx.fetch_one(select(literal(1).label("n")))
    return row["n"] if row else None


async def test_a_long_read_that_nobody_waits_for_any_more_is_interrupted(database: Database) -> None:
    for _ in range(LONG_READERS + 1):  # one that was left running would keep a reader from the others
        reading = asyncio.create_task(database.read_long(count_for_ever))
        await asyncio.sleep(0.05)  # nothing tells when the database has begun; before that it is called off as well
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await asyncio.wait_for(database.read_long(one), 60) == 1


async def test_a_long_read_that_is_called_off_just_before_its_statement_begins_ends(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await open_database(sqlite_url)
    loop, about_to_begin, called_off = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    begin, call_off = SQLiteTransaction._run, _LongRead.call_off

    def begin_late(self: SQLiteTransaction, *given: Any) -> Any:
        if threading.current_thread().name.startswith("holdfast-reader"):
            loop.call_soon_threadsafe(about_to_begin.set)
            called_off.wait(60)
        return begin(self, *given)

    def call_off_and_tell(self: _LongRead) -> None:
        call_off(self)
        called_off.set()

    monkeypatch.setattr(SQLiteTransaction, "_run", begin_late)
    monkeypatch.setattr(_LongRead, "call_off", call_off_and_tell)
    reading = asyncio.create_task(database.read_long(count_for_ever))
    await about_to_begin.wait()
    reading.cancel()
    await asyncio.wait([reading])
    await asyncio.wait_for(database.aclose(), 60)  # waits for its readers


async def test_the_event_loop_goes_on_during_a_long_read(database: Database) -> None:
    reading = asyncio.create_task(database.read_long(count_for_ever))
    for _ in range(100):
        assert await database.read(one) == 1
        await asyncio.sleep(0)
    assert not reading.done()
    reading.cancel()
    await asyncio.wait([reading])


async def test_closing_the_database_ends_long_reads(sqlite_url: str) -> None:
    database = await open_database(sqlite_url)  # PostgreSQL ends them with its connections
    reading = asyncio.create_task(database.read_long(count_for_ever))
    await asyncio.sleep(0.05)
    await asyncio.wait_for(database.aclose(), 60)
    with pytest.raises(DatabaseError):
        await reading


async def test_a_long_read_cannot_write_and_sees_what_was_written_before(database: Database) -> None:
    agent_id = await add_agent(database)
    (message,) = await say(database, agent_id, agent_id, [a_message("hello")])
    found = await database.read_long(lambda tx: messages.search(tx, agent_id, "HELLO"))
    assert [row.id for row in found] == [message]
    with pytest.raises(HoldfastError):
        await database.read_long(lambda tx: kv.set_number(tx, "n", 1))
    assert await look(database, kv.number, "n") is None


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("stra\u00dfe", "\u00df"),
        ("STRA\u1e9eE", "\u00df"),
        ("\u00dcberall", "\u00fcberall"),
        ("\u00fcberall", "\u00dcBERALL"),
        ("\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2"),
        ("5 k\u2126", "\u03c9"),
        ("\u0130stanbul", "\u0130stanbul"),
        ("\u0130stanbul", "i\u0307s"),
        ("\u0130STANBUL", "\u0307stan"),
        ("0\u0130", "0i"),
        ("300 \u212a", "300 k"),
        ("\u03bb\u03cc\u03b3\u03bf\u03c2", "\u039f\u03a3"),
        ("\u039b\u039f\u0393\u039f\u03a3", "\u03bf\u03c2"),
        ('she said "no"', '"NO"'),
        ("c:\\temp", "C:\\T"),
        ("one\ntwo", "one\ntwo"),
        ("100 % sure_ly", "% SURE_"),
        ("\u65e5\u672c\u8a9e", "\u672c"),
        ("\U0001f600 ok", "\U0001f600"),
        ("\u01c5ungla", "\u01c6"),
    ],
)
async def test_search_finds_text_of_any_alphabet_whatever_its_case(database: Database, said: str, wanted: str) -> None:
    agent_id = await add_agent(database)
    (message,) = await say(database, agent_id, agent_id, [a_message(said)])
    await say(database, agent_id, agent_id, [a_message("something else")])
    found = await look(database, messages.search, agent_id, wanted)
    assert [row.id for row in found] == [message]


async def test_search_finds_the_odd_capitals_of_unicode_by_their_small_forms(database: Database) -> None:
    agent_id = await add_agent(database)
    all_capitals = [char for char in map(chr, range(0x110000)) if char.lower() != char]
    capitals = [char for char in all_capitals if char.lower().upper() != char] + all_capitals[::20]
    said = await say(database, agent_id, agent_id, [a_message(f"0{char}0") for char in capitals])
    for message_id, char in zip(said, capitals, strict=True):
        found = await look(database, messages.search, agent_id, f"0{char.lower()}0")
        assert message_id in [row.id for row in found], f"{ord(char):x}"


async def test_a_search_for_a_very_long_text_is_answered(database: Database) -> None:
    agent_id = await add_agent(database)
    long = "abc " * 25_000
    (message,) = await say(database, agent_id, agent_id, [a_message(f"Look: {long}!")])
    assert [row.id for row in await look(database, messages.search, agent_id, long)] == [message]
    assert await look(database, messages.search, agent_id, long + "d") == []


async def test_a_search_in_vain_for_a_foreign_letter_decodes_no_message(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_id = await add_agent(database)
    await say(database, agent_id, agent_id, [a_message(f"plain {number}") for number in range(20)])

    def refuse(row: Row) -> Message:
        raise AssertionError(f"decoded {row['id']}")

    monkeypatch.setattr(messages, "message_of", refuse)
    for wanted in ("\u00df", '"', "\u00fcberall zebra"):
        assert await look(database, messages.search, agent_id, wanted) == []

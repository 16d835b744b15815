"""The change feed: who is told what, when a reader has to read everything again, and what it costs nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.core.changes import Change
from holdfast.engine import feed as feeds
from holdfast.engine.bus import Bus
from holdfast.engine.feed import Feed, FeedReader, Hello, News, Resync
from holdfast.errors import ShuttingDown
from holdfast.store.database import open_database
from holdfast.store.postgres_signals import PostgresSignals
from holdfast.store.transaction import Database

from ..scenario import eventually
from ..store.world import add_agent, add_conversation, add_run, end_run

RUN = Change("run", "run-1", "created", "agent-1", "agent-1")
AGENT = Change("agent", "agent-1", "changed", "agent-1")


class Line:
    """What one process sends, all others hear, unless the line is cut."""

    def __init__(self, hub: list[Line]) -> None:
        self.connected = True
        self.sent: list[str] = []
        self.cut = False
        self._hub = hub
        self._heard: Callable[[str], None] | None = None
        self.missed: Callable[[], None] = lambda: None
        hub.append(self)

    def send(self, signal: str) -> None:
        self.sent.append(signal)
        for other in self._hub:
            if other is not self and other._heard is not None and not self.cut:
                other._heard(signal)

    async def run_forever(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
        self._heard, self.missed = heard, missed
        await asyncio.Event().wait()


class Process:
    def __init__(self, database: Database, hub: list[Line]) -> None:
        self.line = Line(hub)
        self.bus = Bus(self.line)
        self.feed = Feed(database, self.bus)
        self.database = database


def _nothing(*_: Any) -> None:
    pass


@asynccontextmanager
async def processes(database_url: str, *, looking: bool = True) -> AsyncGenerator[list[Process]]:
    """Two that share a database. `looking`: they look for lost changes by themselves, every few seconds."""
    hub: list[Line] = []
    databases = [await open_database(database_url)]
    made = [Process(databases[0], hub) for _ in range(2)]
    tasks = [asyncio.create_task(each.bus.listen(_nothing, _nothing)) for each in made]
    if looking:
        tasks += [asyncio.create_task(each.feed.run_forever()) for each in made]
    await eventually(lambda: all(line._heard is not None for line in hub))
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        for database in databases:
            await database.aclose()


async def next_of(reader: FeedReader) -> list[News]:
    news = await reader.next(20)
    assert news is not None
    return list(news)


@pytest.fixture
async def alone(database_url: str) -> AsyncGenerator[Feed]:
    database = await open_database(database_url)
    feed = Feed(database, Bus())
    database.tell_of_commits(feed.committed)
    yield feed
    await database.aclose()


async def test_a_reader_is_greeted_and_told_what_is_committed(alone: Feed) -> None:
    with alone.reading() as reader:
        assert await next_of(reader) == [Hello()]
        alone.committed([RUN])
        alone.committed([AGENT])
        assert await next_of(reader) == [RUN, AGENT]
    assert alone.readers == 0


async def test_what_store_functions_write_is_told_after_the_commit_and_not_if_it_is_undone(alone: Feed) -> None:
    database = alone._database
    with alone.reading() as reader:
        assert await next_of(reader) == [Hello()]
        agent_id = await add_agent(database)
        run = await add_run(database, agent_id)
        await end_run(database, run, "failed", stop_reason="llm_api_error")

        async def undone(tx: Any) -> None:
            tx.changes.append(AGENT)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await database.write(undone)
        told = await next_of(reader)
        assert [(each.id, each.status, each.stop_reason) for each in told if isinstance(each, Change)] == [
            (run.id, "created", None),
            (run.id, "failed", "llm_api_error"),
        ]


async def test_an_agent_that_was_created_is_not_told_of_as_changed_too(alone: Feed) -> None:
    created = Change("agent", "agent-1", "created", "agent-1")
    with alone.reading() as reader:
        await next_of(reader)
        alone.committed([created, AGENT, AGENT])
        assert await next_of(reader) == [created]


async def test_a_reader_that_falls_behind_is_told_to_read_everything_again(alone: Feed) -> None:
    with alone.reading() as slow, alone.reading() as quick:
        await next_of(slow)
        await next_of(quick)
        taken = 0
        for _ in range(feeds.MOST_UNREAD + 1):
            alone.committed([RUN])
            taken += len(await next_of(quick))
        assert taken == feeds.MOST_UNREAD + 1
        assert await next_of(slow) == [Resync()]
        alone.committed([AGENT])
        assert await next_of(slow) == [AGENT]


async def test_a_reader_is_let_go_when_the_server_stops_and_none_is_taken_after_that(alone: Feed) -> None:
    with alone.reading() as reader:
        await next_of(reader)
        waiting = asyncio.create_task(reader.next(20))
        await asyncio.sleep(0)
        alone.close()
        assert await waiting is None
        assert await reader.next(20) is None
    with pytest.raises(ShuttingDown), alone.reading():
        pass


async def test_silence_is_told_as_nothing(alone: Feed) -> None:
    with alone.reading() as reader:
        await next_of(reader)
        assert await reader.next(0.001) == ()


async def test_a_change_reaches_the_readers_of_another_process(database_url: str) -> None:
    async with processes(database_url) as (here, there):
        with there.feed.reading() as reader:
            assert await next_of(reader) == [Hello()]
            here.feed.committed([RUN])
            here.feed.committed([AGENT])
            assert await next_of(reader) == [RUN, AGENT]


async def test_with_no_reader_anywhere_nothing_is_sent(database_url: str) -> None:
    async with processes(database_url) as (here, _):
        here.feed.committed([RUN, AGENT])
        assert here.line.sent == []


async def test_a_reader_that_comes_while_a_change_is_committed_elsewhere_reads_again(database_url: str) -> None:
    """The other process did not know of it yet, and so did not tell. It knows when that was."""
    async with processes(database_url, looking=False) as (here, there):
        here.feed.committed([AGENT])
        with there.feed.reading() as reader:
            await there.feed.look()
            assert await next_of(reader) == [Hello()]
            there.bus.tell_feeds("readers")
            assert await next_of(reader) == [Resync()]
            here.feed.committed([AGENT])
            assert await next_of(reader) == [AGENT]


async def test_a_run_of_which_nobody_told_is_found_by_looking(database_url: str) -> None:
    """As when a process dies between a commit and its signal."""
    async with processes(database_url, looking=False) as (here, there):
        now_us = await here.database.now_us()
        agent_id = await add_agent(here.database)
        await add_run(here.database, agent_id, created_us=now_us, status="completed")
        with there.feed.reading() as reader:
            await there.feed.look()
            assert await next_of(reader) == [Hello()]  # what was there before, it reads itself
            await add_run(here.database, agent_id, await add_conversation(here.database, agent_id), created_us=now_us)
            await there.feed.look()
            assert await reader.next(0.001) == ()  # its signal may still be on its way
            await there.feed.look()
            assert await next_of(reader) == [Resync()]
            await there.feed.look()
            await there.feed.look()
            assert await reader.next(0.001) == ()  # once


async def test_runs_that_were_told_of_are_not_missed(database_url: str) -> None:
    async with processes(database_url, looking=False) as (here, there):
        here.database.tell_of_commits(here.feed.committed)
        agent_id = await add_agent(here.database)
        with there.feed.reading() as reader:
            await there.feed.look()
            there.bus.tell_feeds("readers")
            assert await next_of(reader) == [Hello()]
            run = await add_run(here.database, agent_id, created_us=await here.database.now_us())
            for _ in range(3):
                await there.feed.look()
            await end_run(here.database, run, completed_us=await here.database.now_us())
            for _ in range(3):
                await there.feed.look()
            told = await next_of(reader)
            assert [each.status for each in told if isinstance(each, Change)] == ["created", "completed"]
            assert not any(isinstance(each, Resync) for each in told)


async def test_when_signals_were_lost_readers_here_and_there_read_again(database_url: str) -> None:
    async with processes(database_url) as (here, there):
        with here.feed.reading() as one, there.feed.reading() as other:
            assert await next_of(one) == [Hello()]
            assert await next_of(other) == [Hello()]
            here.line.missed()
            assert await next_of(one) == [Resync()]
            assert await next_of(other) == [Resync()]


@pytest.mark.postgres
async def test_by_notifications_a_change_reaches_another_process(postgres_url: str) -> None:
    database = await open_database(postgres_url)
    lines = [PostgresSignals(postgres_url) for _ in range(2)]
    buses = [Bus(line) for line in lines]
    here, there = (Feed(database, bus) for bus in buses)
    tasks = [asyncio.create_task(bus.listen(_nothing, _nothing)) for bus in buses]
    tasks += [asyncio.create_task(feed.run_forever()) for feed in (here, there)]
    try:
        await eventually(lambda: all(line.connected for line in lines))
        with there.reading() as reader:
            assert await next_of(reader) == [Hello()]
            await eventually(lambda: here._others_read_until > 0)
            odd = Change("agent", "agent-1", 'a "name"\nwith lines', "agent-1")
            here.committed([odd])
            told = await next_of(reader)
            while told == [Resync()]:  # of the other process, which has just connected
                told = await next_of(reader)
            assert [each for each in told if each != Resync()] == [odd]
    finally:
        for task in tasks:
            task.cancel()
        await database.aclose()

"""Signals between processes: sent together, heard by everybody else, and hints at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.store.postgres_signals import PostgresSignals
from holdfast.store.signals import open_signals

from ..scenario import eventually

pytestmark = pytest.mark.postgres
_driver: Any = asyncpg  # ships no types for its functions


class Process:
    def __init__(self, url: str) -> None:
        self.signals = PostgresSignals(url)
        self.heard: list[str] = []
        self.missed = 0
        self._task = asyncio.create_task(self.signals.run_forever(self.heard.append, self._miss))

    def _miss(self) -> None:
        self.missed += 1

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def processes(url: str, count: int) -> AsyncGenerator[list[Process]]:
    made = [Process(url) for _ in range(count)]
    try:
        await eventually(lambda: all(process.signals.connected for process in made))
        yield made
    finally:
        for process in made:
            await process.stop()


async def test_a_signal_is_heard_by_every_other_process_and_not_by_its_sender(postgres_url: str) -> None:
    async with processes(postgres_url, 3) as (one, two, three):
        one.signals.send("cancel run-1")
        await eventually(lambda: two.heard == three.heard == ["cancel run-1"])
        three.signals.send("work")
        await eventually(lambda: "work" in one.heard)
        assert one.heard == ["work"]


async def test_signals_that_are_sent_together_are_heard_once_each_in_their_order(postgres_url: str) -> None:
    sent = [f"changed run-{number:036}" for number in range(1_000)]  # more than one notification can hold
    async with processes(postgres_url, 2) as (one, two):
        for signal in (*sent, *sent):
            one.signals.send(signal)
        await eventually(lambda: len(two.heard) >= len(sent))
        one.signals.send("last")
        await eventually(lambda: two.heard[-1] == "last")
        assert two.heard == [*sent, "last"]


async def cut_connections(url: str) -> None:
    connection = await _driver.connect(url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast signals'"
        )
    finally:
        await connection.close()


async def test_a_lost_connection_is_repaired_and_whoever_listens_is_told_that_signals_were_missed(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with processes(postgres_url, 2) as (one, two):
        assert one.missed == two.missed == 1  # nobody knows what was sent before
        await cut_connections(postgres_url)
        await eventually(lambda: one.missed == two.missed == 2)
        one.signals.send("work")
        await eventually(lambda: two.heard == ["work"])
        assert "signals between servers are lost until PostgreSQL is back" in caplog.text


async def test_a_database_that_cannot_be_reached_is_tried_again_without_an_end(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = _driver.connect
    tried = 0

    async def unreachable(*given: Any, **named: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried <= 2:
            raise OSError("nobody listens there")
        return await connect(*given, **named)

    monkeypatch.setattr(asyncpg, "connect", unreachable)
    async with processes(postgres_url, 1) as (process,):
        assert tried == 3
        assert process.missed == 1


def test_one_process_alone_has_no_signals() -> None:
    assert open_signals("sqlite:///holdfast.db") is None

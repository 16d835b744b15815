"""The model is asked while the input is still on its way to the disk. Nobody hears of it before it has got there."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.deltas import Delta
from holdfast.llm.base import ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.offline.model import OfflineModel
from holdfast.store.sqlite import SQLiteDatabase
from tests.invariants import assert_invariants
from tests.scenario import eventually
from tests.served import ServedClient, served

from .asking import history


class SlowDisk:
    """In place of the writer's connection: a commit takes until it is let go, and then may fail."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._let_go = threading.Event()
        self._fails = False
        self.reached = threading.Event()

    def execute(self, sql: str) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.reached.set()
            assert self._let_go.wait(60)
            if self._fails:
                self._fails = False
                raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql)

    def let_go(self, *, failing: bool = False) -> None:
        self._fails = failing
        self._let_go.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path) as made:
        yield made


def slow_down(client: ServedClient) -> SlowDisk:
    assert isinstance(client.deps.database, SQLiteDatabase)
    writer: Any = client.deps.database._writer
    disk = writer._connection = SlowDisk(writer._connection)
    return disk


class Listening(OfflineModel):
    """Knows what it has replied to."""

    def __init__(self) -> None:
        super().__init__()
        self.replied = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                yield delta
        self.replied += 1


@pytest.mark.parametrize("path", ["", "/stream"])
async def test_the_model_is_asked_before_the_input_is_on_the_disk_and_nobody_hears_its_reply(
    client: ServedClient, path: str
) -> None:
    assert isinstance(client.deps.catalog, ModelCatalog)
    model = client.deps.catalog.offline.model = Listening()
    agent = await client.agent()
    disk = slow_down(client)
    body = {"input": "Hello [[say:Here I am.]]"}
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages{path}", json=body))
    await eventually(lambda: model.replied == 1)
    assert not asking.done()
    assert await client.ask("GET", "/v1/runs/") == []
    disk.let_go()
    answer = await asking
    assert answer.status_code == 200
    assert "Here I am." in answer.text
    await assert_invariants(client.deps.database, idle=True)


async def test_a_request_that_nobody_waits_for_any_more_is_carried_out_once_it_is_stored(client: ServedClient) -> None:
    agent = await client.agent()
    disk = slow_down(client)
    body = {"input": "Hello [[say:Here I am.]]"}
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages", json=body))
    await eventually(disk.reached.is_set)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    disk.let_go()
    await client.all_stored()
    await eventually(lambda: not client.deps.worker._owned)
    (said,) = await history(client, agent.id, "assistant_message")
    assert said.content == "Here I am."
    await assert_invariants(client.deps.database, idle=True)


async def test_a_server_that_stops_before_the_input_is_stored_hands_it_over(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        agent = await client.agent()
        disk = slow_down(client)
        body = {"input": "Hello [[say:Here I am.]]"}
        asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages", json=body))
        await eventually(disk.reached.is_set)
        await client.http.aclose()  # which ends whatever serves its requests
        answer = await asking
        disk.let_go()
        assert answer.status_code == 503
        assert "could not finish this in time" in answer.json()["detail"]
    async with served(tmp_path) as client:
        await eventually(lambda: not client.deps.worker._owned)
        (said,) = await history(client, agent.id, "assistant_message")
        assert said.content == "Here I am."
        await assert_invariants(client.deps.database, idle=True)


@pytest.mark.parametrize("text", ["[[stall]] Hello", "Hello"])
async def test_an_input_that_never_got_to_the_disk_is_refused_and_leaves_nothing(
    client: ServedClient, text: str
) -> None:
    """Whether or not the model had replied by then."""
    agent = await client.agent()
    await client.say(agent.id, "Hello")
    before = await history(client, agent.id)
    disk = slow_down(client)
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages", json={"input": text}))
    silent = "stall" in text
    await eventually(
        lambda: disk.reached.is_set() and bool(client.deps.worker._owned) and silent == client.open_model_streams
    )
    disk.let_go(failing=True)
    answer = await asking
    assert answer.status_code == 503
    assert "disk I/O error" in answer.json()["detail"]
    await eventually(lambda: not client.deps.worker._owned and not client.open_model_streams)
    assert await history(client, agent.id) == before
    await client.say(agent.id, "And again?")
    said = [row for row in await history(client, agent.id) if row.message_type == "user_message"]
    assert [row.content for row in said] == ["Hello", "And again?"]
    await assert_invariants(client.deps.database, idle=True)

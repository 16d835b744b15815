"""No room left for the database: clear refusals, nothing corrupted, and all well again once there is room."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from holdfast.core.deltas import Delta
from holdfast.llm.base import ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.offline.model import OfflineModel
from holdfast.store.sqlite import SQLiteDatabase
from holdfast.store.sqlite_connection import SQLiteTransaction
from holdfast.store.transaction import Transaction
from tests.invariants import assert_invariants
from tests.scenario import eventually
from tests.served import ServedClient, served

from .asking import history

BIG = "This takes room. " * 4_000
LEASE_S = 0.3


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path, lease_ttl_s=LEASE_S) as made:
        yield made


class Held(OfflineModel):
    """Says nothing before it is let go, so that the disk is full by then. May be held up later on, too."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()
        self.gates = {0: self.let_go}  # by how much has been said

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        said = 0
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                if said in self.gates:
                    await self.gates[said].wait()
                yield delta
                said += 1


@pytest.fixture
def model(client: ServedClient) -> Held:
    assert isinstance(client.deps.catalog, ModelCatalog)
    held = client.deps.catalog.offline.model = Held()
    return held


async def fill_up(client: ServedClient, pages_left: int = 0) -> None:
    """From now on the database may grow by so many pages only, as on a disk that is full."""

    async def job(tx: Transaction) -> None:
        assert isinstance(tx, SQLiteTransaction)
        used = tx._connection.execute("PRAGMA page_count").fetchone()[0]
        free = tx._connection.execute("PRAGMA freelist_count").fetchone()[0]
        tx._connection.execute(f"PRAGMA max_page_count = {used - free + pages_left}").fetchall()

    await client.deps.database.write(job)


def refuse_writes(client: ServedClient, *, refused: bool) -> None:
    """Not even a small one. Past the writer's queue, because that could not be told to end it."""
    assert isinstance(client.deps.database, SQLiteDatabase)
    client.deps.database._writer._connection.execute(f"PRAGMA query_only = {int(refused)}").fetchall()


async def make_room(client: ServedClient) -> None:
    async def job(tx: Transaction) -> None:
        assert isinstance(tx, SQLiteTransaction)
        tx._connection.execute("PRAGMA max_page_count = 1000000").fetchall()

    await client.deps.database.write(job)


async def check_that_all_is_well_again(client: ServedClient, agent_id: str) -> None:
    """Runs that could not be finished are carried on as soon as their lease has run out."""
    await make_room(client)
    async with asyncio.timeout(60):
        while (await client.ask("GET", "/v1/runs/", active=True)) != []:
            await client.deps.worker.recover()
            await asyncio.sleep(LEASE_S / 3)
    answer = await client.say(agent_id, "Hello again [[say:Here I am.]]")
    assert answer.messages[-1].content == "Here I am."
    await assert_invariants(client.deps.database, idle=True)
    checked = await client.deps.database.read(_check_integrity)
    assert checked == "ok"


async def _check_integrity(tx: Transaction) -> str:
    assert isinstance(tx, SQLiteTransaction)
    return tx._connection.execute("PRAGMA integrity_check").fetchone()[0]


async def test_a_message_that_does_not_fit_is_refused_whole_and_says_why(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "Hello")
    before = await history(client, agent.id)
    await fill_up(client)
    answer = await client.http.post(f"/v1/agents/{agent.id}/messages", json={"input": BIG})
    assert answer.status_code == 503
    assert "full" in answer.json()["detail"]
    assert await history(client, agent.id) == before
    await assert_invariants(client.deps.database, idle=True)
    await check_that_all_is_well_again(client, agent.id)


@pytest.mark.parametrize("path", ["", "/stream"])
async def test_a_run_that_runs_out_of_room_keeps_its_reply_until_there_is_some(
    client: ServedClient, model: Held, path: str
) -> None:
    agent = await client.agent()
    text = "Hello [[tokens:30000]]"
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages{path}", json={"input": text}))
    await client.model_asked()
    await fill_up(client)
    model.let_go.set()
    answer = await asking
    assert answer.status_code == (200 if path else 503)
    assert "carried on" in answer.text
    assert '"stop_reason"' not in answer.text, "an end that nobody could write down is not told"
    (run,) = await client.ask("GET", "/v1/runs/")
    assert run["status"] == "running"
    model.gates.clear()
    model.let_go.clear()  # asked again, it would say nothing: what is stored in the end is the reply that it gave
    await check_that_all_is_well_again(client, agent.id)
    assert (await client.ask("GET", f"/v1/runs/{run['id']}"))["stop_reason"] == "end_turn"
    assert len(await history(client, agent.id, "assistant_message")) == 2


@pytest.mark.parametrize("trouble", ["full", "read-only"])
async def test_a_server_that_cannot_write_says_that_it_is_not_ready(
    client: ServedClient, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await client.http.get("/v1/ready/")).status_code == 200
    if trouble == "full":
        await fill_up(client)
        await client.http.post("/v1/agents/", json={"name": "x", "system": BIG, "model": "holdfast/offline"})
    refuse_writes(client, refused=True)
    assert isinstance(client.deps.database, SQLiteDatabase)
    client.deps.database._check_again_at = 0.0  # an answer is good for a second
    answer = await client.http.get("/v1/ready/")
    assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")
    # Whoever has no key learns nothing about the database; the operator does.
    assert answer.json()["detail"] == "The database cannot be read or written now. The log of the server says why."
    assert re.search("not ready: .*(full|readonly|read-only)", caplog.text)
    refuse_writes(client, refused=False)
    await make_room(client)
    assert (await client.http.get("/v1/ready/")).status_code == 200


async def test_a_run_whose_very_failure_finds_no_room_is_carried_on_when_there_is_some(
    client: ServedClient, model: Held
) -> None:
    agent = await client.agent()
    body = {"input": "Hello [[tokens:30000]]"}
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages", json=body))
    await client.model_asked()
    refuse_writes(client, refused=True)
    model.let_go.set()
    answer = await asking
    assert answer.status_code == 503
    assert "carried on" in answer.json()["detail"]
    refuse_writes(client, refused=False)
    await check_that_all_is_well_again(client, agent.id)
    assert len(await history(client, agent.id, "assistant_message")) == 2


async def test_a_background_stream_that_runs_out_of_room_does_not_take_the_server_with_it(
    client: ServedClient, model: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """Its frames are stored by a task that serves all runs."""
    agent = await client.agent()
    noticed = model.gates[500] = asyncio.Event()
    text = "Hello [[no_reasoning]] [[tokens:600]]"
    body = {"input": text, "stream_tokens": True, "background": True}
    asking = asyncio.create_task(client.http.post(f"/v1/agents/{agent.id}/messages/stream", json=body))
    await client.model_asked()
    await fill_up(client)
    model.let_go.set()
    await eventually(lambda: "the worker will try to flush again" in caplog.text)
    noticed.set()
    assert "stop_reason" not in (await asking).text, "an end that nobody could write down is not told"
    (run,) = await client.ask("GET", "/v1/runs/")
    await check_that_all_is_well_again(client, agent.id)
    assert (await client.ask("GET", f"/v1/runs/{run['id']}"))["stop_reason"] == "end_turn"
    *_, stop, _, end = await client.events(f"/v1/runs/{run['id']}/stream")
    assert isinstance(stop, dict)
    assert (stop["message_type"], stop["stop_reason"], end) == ("stop_reason", "end_turn", "[DONE]")

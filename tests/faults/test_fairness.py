"""A real server with room for two runs, and an agent that has many."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
import pytest

from holdfast.core.records import Run
from holdfast.store import runs
from holdfast.store.database import open_database
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from tests.serving import ServerProcess

from . import fleet

FLOOD = 60
SLOW = "Hi [[no_reasoning]] [[tokens:20]] [[delay:0.05]]"
pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


async def flood(url: str, agent_id: str) -> None:
    """Each in a conversation of its own, so that none has to wait for another's thread. A few at a time: a busy machine
    does not answer all of them in time."""
    free = asyncio.Semaphore(8)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:

        async def one() -> None:
            async with free:
                made = await http.post("/v1/conversations/", params={"agent_id": agent_id}, json={})
                assert made.status_code == 200, made.text
                body = {"messages": [{"role": "user", "content": SLOW}], "background": True, "streaming": True}
                path = f"/v1/conversations/{made.json()['id']}/messages"
                async with http.stream("POST", path, json=body) as answer:
                    assert answer.status_code == 200

        await asyncio.gather(*(one() for _ in range(FLOOD)))


async def stored(url: str, agent_id: str) -> list[Run]:
    database = await open_database(url)
    try:
        return await database.read(lambda tx: runs.list_runs(tx, RunFilter(agent_ids=(agent_id,)), Page(limit=None)))
    finally:
        await database.aclose()


async def test_the_run_of_another_agent_is_the_next_to_begin_however_many_wait(
    tmp_path: Path, postgres_url: str
) -> None:
    shared = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_DRAIN_S": "0"}
    with ServerProcess(tmp_path / "server", **shared, HOLDFAST_MAX_RUNS="2") as server:
        many, one = await fleet.make_agent(server.url), await fleet.make_agent(server.url)
        await flood(server.url, many)
        run_id = await fleet.begin(server.url, one, SLOW)
        accepted_us = time.time_ns() // 1_000  # until now it might not have been stored
        await fleet.wait_for_end(server.url, run_id)
        (mine,) = await stored(postgres_url, one)
        others = await stored(postgres_url, many)
    assert mine.started_us is not None
    begun = [run.started_us for run in others if run.started_us is not None]
    between = [at for at in begun if accepted_us < at < mine.started_us]
    assert len(between) <= 2, f"no more than were being claimed just then: {between} of {accepted_us}"
    assert len(others) == FLOOD
    assert len([at for at in begun if at < mine.started_us]) < FLOOD - 10, "many had to wait for longer"

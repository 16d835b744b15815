"""A process that dies, or stops for longer than its lease, while others live: its runs move on, and it does no harm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.store import runs
from holdfast.store.database import open_database
from holdfast.store.transaction import Database
from tests.serving import ServerProcess, WorkerProcess

from . import fleet
from .listening import attaching, sending
from .paid_model import PaidModel
from .tally import Tally

LEASE_S = 2.0
MOVES_WITHIN_S = LEASE_S + 2.0
TRIES = 3  # the machine may be busy: one that is in time shows that it can be
SHARED = {"HOLDFAST_LOG_LEVEL": "WARNING", "HOLDFAST_ENCRYPTION_KEY": "the key that the servers share"}

pytestmark = pytest.mark.timeout(180)


async def test_a_run_of_a_killed_worker_moves_again_within_its_lease_and_two_seconds(
    tmp_path: Path, postgres_url: str
) -> None:
    """From the kill until another worker has claimed the run, by the database."""
    environment = SHARED | {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_LEASE_TTL_S": str(LEASE_S)}
    driving, other = (WorkerProcess(tmp_path / f"worker-{number}", **environment) for number in range(2))
    took: list[float] = []
    async with AsyncExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path / "server", **environment, HOLDFAST_WORKER="no"))
        stack.enter_context(driving)
        database = await stack.enter_async_context(opened(postgres_url))
        run_id = await fleet.begin(server.url, await fleet.make_agent(server.url), "Hi [[no_reasoning]] [[stall]]")

        async def claimed(times: int) -> bool | None:
            return (await database.read(lambda tx: runs.get(tx, run_id))).lease == times or None

        await fleet.poll(partial(claimed, 1))
        stack.enter_context(other)
        for number in range(TRIES):
            killed_at = time.monotonic()
            await asyncio.to_thread(driving.kill)
            await fleet.poll(partial(claimed, number + 2))
            took.append(time.monotonic() - killed_at)
            await asyncio.to_thread(driving.start)
            driving, other = other, driving
    assert min(took) <= MOVES_WITHIN_S, took


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[Database]:
    database = await open_database(url)
    try:
        yield database
    finally:
        await database.aclose()


async def test_a_process_that_was_paused_for_longer_than_its_lease_starts_no_tool_and_shows_nothing_of_its_own(
    tmp_path: Path, postgres_url: str
) -> None:
    """Its model has replied with a call while it was paused: it finds the reply when it goes on."""
    tally = Tally()
    async with tally.listening():
        model = PaidModel(call=("mark", json.dumps({"port": tally.port, "key": "once", "pause": 0.0})))
        settings = {"HOLDFAST_LEASE_TTL_S": "1"}
        async with (
            model.listening(),
            fleet.running(tmp_path, postgres_url, 2, [model.environment] * 2, **settings) as servers,
        ):
            paused, other = servers.servers
            mark, _ = await fleet.make_tools(other.url)
            agent_id = await fleet.make_agent(other.url, model=model.handle, tool_ids=[mark])
            first = sending(paused.url, agent_id, "Hello", background=True)
            reading = [asyncio.create_task(first.read())]
            await asyncio.wait_for(model.answering.wait(), 60)
            await fleet.poll(first.has_content)
            second = attaching(paused.url, first.run_id, 0)
            reading.append(asyncio.create_task(second.read()))
            await fleet.poll(second.has_content)
            paused.pause()
            model.let_go.set()
            run = await fleet.wait_for_end(other.url, first.run_id)
            shown = [len(listener.events) for listener in (first, second)]
            paused.resume()
            await asyncio.gather(*reading)
            whole = attaching(other.url, first.run_id, 0)
            await whole.read()
            await servers.read_database(idle=True)
            servers.check_alive()
        assert run["status"] == "completed"
        stored = [event for event in whole.events if event != "[DONE]" and event["message_type"] != "ping"]
        for listener, before in zip((first, second), shown, strict=True):
            later = [event for event in listener.events[before:] if event != "[DONE]"]
            own = [event for event in later if event["message_type"] not in ("ping", "error_message")]
            assert [event for event in own if event not in stored] == []
    assert tally.marks == {"once": 1}

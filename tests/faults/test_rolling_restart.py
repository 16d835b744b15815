"""Two servers behind a load balancer are replaced one after the other, under load: no request fails, no run is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.histories import REPLAY, Answered, Lost, Record, Shown, violations

from . import fleet
from .balancer import Balancer
from .clients import Client, CutOff, Line, Reader
from .fleet import Fleet
from .paid_model import PaidModel
from .tally import Tally

CLIENTS = 3
UNREADY_S = 3.0  # longer than the balancer takes to notice, also on a busy machine
DRAIN_S = 4.0  # longer than what clients wait for takes
LONG_RUNS = 4

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def balanced(directory: Path, url: str, **own: str) -> AsyncGenerator[tuple[Fleet, Balancer]]:
    settings = {"HOLDFAST_UNREADY_S": str(UNREADY_S), "HOLDFAST_DRAIN_S": str(DRAIN_S), "HOLDFAST_KEEPALIVE_S": "2"}
    async with fleet.running(directory, url, 2, **settings | own) as servers:
        balancer = Balancer(servers.urls, random.Random(1))
        async with balancer.listening():
            yield servers, balancer


async def follow_long_run(url: str, model: PaidModel, history: list[Record]) -> Reader:
    """It lasts until its model is let go. Returns when its reader has seen the end, wherever that was."""
    agent_id = await fleet.make_agent(url, model=model.handle)
    body = {"input": "Hello", "background": True, "stream_tokens": True}
    line = Line([url], history, random.Random(2))
    async with line.http:
        reader = Reader(line, f"reader of {agent_id}")
        try:
            async with line.http.stream("POST", f"{url}/v1/agents/{agent_id}/messages/stream", json=body) as answer:
                await reader.read(answer)
        except CutOff:
            await reader.read_to_end()
    return reader


async def replace_each(servers: Fleet, balancer: Balancer) -> None:
    for number, server in enumerate(servers.servers):
        await asyncio.to_thread(server.stop)
        assert server.exit_code == 0
        await asyncio.to_thread(server.start)
        await balancer.until_ready(number)


async def test_a_rolling_restart_fails_no_request_and_every_stream_ends_with_its_stop_reason(
    tmp_path: Path, postgres_url: str
) -> None:
    tally, model, history = Tally(), PaidModel(), list[Record]()
    async with (
        tally.listening(),
        model.listening(),
        balanced(tmp_path, postgres_url, **model.environment) as (servers, balancer),
    ):
        tools = await fleet.make_tools(balancer.url)
        clients = [Client([balancer.url], tally, history, seed) for seed in range(CLIENTS)]
        for client in clients:
            await client.set_up(tools)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            long = [group.create_task(follow_long_run(balancer.url, model, history)) for _ in range(LONG_RUNS)]
            for client in clients:
                group.create_task(client.keep_busy(stop))
            await replace_each(servers, balancer)
            model.let_go.set()
            stop.set()
        runs = [run_id for client in clients for run_id in client.background]
        await fleet.read_again(balancer.url, [*runs, *(task.result().run_id for task in long)], history)
        snapshot = await servers.read_database(idle=True)
        assert balancer.failed == []
        servers.check_logs()
    assert [record for record in history if isinstance(record, Lost)] == []
    assert [record for record in history if isinstance(record, Answered) and record.status >= 500] == []
    assert violations([*history, *tally.effects], snapshot) == []
    handed_over = {record.run_id for record in history if isinstance(record, Shown) and record.is_cut}
    assert handed_over >= {task.result().run_id for task in long}, "each had to go on elsewhere"
    ends = {record.reader for record in history if isinstance(record, Shown) and record.kind == "stop_reason"}
    assert ends >= {f"{REPLAY}{run_id}" for run_id in runs}


async def test_a_client_that_keeps_its_connection_is_never_cut_off_between_two_requests(
    tmp_path: Path, postgres_url: str
) -> None:
    """A connection that it keeps leads to one server; that one says with its last answer that it closes it."""
    async with balanced(tmp_path, postgres_url) as (servers, balancer):
        agents = [await fleet.make_agent(balancer.url) for _ in range(4)]
        statuses: set[int] = set()
        stop = asyncio.Event()

        async def keep_asking(agent_id: str) -> None:
            async with httpx.AsyncClient(base_url=balancer.url, timeout=60) as http:
                while not stop.is_set():
                    statuses.add((await http.get(f"/v1/agents/{agent_id}")).status_code)

        async with asyncio.TaskGroup() as group:
            for agent_id in agents:
                group.create_task(keep_asking(agent_id))
            await replace_each(servers, balancer)
            stop.set()
        assert (statuses, balancer.failed) == ({200}, [])

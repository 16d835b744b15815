"""Several processes on one PostgreSQL: what it costs that one accepts and another drives, and that one is asked to
cancel what another drives.

The floor of each figure is the same between two requests to one process that does everything, measured in turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.postgres import create_database, running_server
from tests.serving import ServerProcess, WorkerProcess

from bench.client import Client, until
from bench.sections import Row, at_most, median_ms, p99_ms

STARTS = 100
CANCELS = 100
HELLO = "[[tokens:1]] [[no_reasoning]] go"
ENDLESS = "[[tokens:100000]] [[delay:0.01]] [[no_reasoning]] go"


class Fleet(NamedTuple):
    alone: Client  # a process that does everything, on a database of its own
    front: Client  # it drives nothing in the background: that does a worker
    other: Client  # one more that only serves


async def fleet(directory: Path) -> list[Row]:
    async with _running(directory) as processes:
        started, cancelled = await _starts(processes), await _cancels(processes)
    here, there = median_ms(started["one process"]), median_ms(started["another"])
    same, across = p99_ms(cancelled["one process"]), p99_ms(cancelled["another"])
    return [
        at_most("accept → start on another process p50", there, "ms", 10),
        at_most("… against a start where it is accepted", there / here, "×", 10),
        at_most("cancel from another process → terminal event p99", across, "ms", 100),
        at_most("… against a cancel where the run is driven", across / same, "×", 10),
    ]


@asynccontextmanager
async def _running(directory: Path) -> AsyncGenerator[Fleet]:
    async with AsyncExitStack() as stack:
        postgres = await asyncio.to_thread(stack.enter_context, running_server())  # has an event loop of its own
        urls = [await create_database(postgres.uri) for _ in range(2)]
        own, shared = ({"HOLDFAST_DATABASE_URL": url, "HOLDFAST_ENCRYPTION_KEY": "one for all"} for url in urls)
        serving = shared | {"HOLDFAST_WORKER": "no"}
        servers = [
            stack.enter_context(ServerProcess(directory / name, **environment))
            for name, environment in (("alone", own), ("front", serving), ("other", serving))
        ]
        stack.enter_context(WorkerProcess(directory / "worker", **shared))
        yield Fleet(*[await stack.enter_async_context(Client(server.url)) for server in servers])


async def _starts(processes: Fleet) -> dict[str, list[float]]:
    """From the acceptance of an asynchronous message to the moment when the model is asked, by the machine's clock."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    agents = {client: await client.agent() for client in (processes.alone, processes.front)}
    for number in range(STARTS + 10):
        for name, client in (("one process", processes.alone), ("another", processes.front)):
            seconds = await _start_s(client, agents[client])
            if number >= 10:
                taken[name].append(seconds)
    return taken


async def _start_s(client: Client, agent: str) -> float:
    body = {"messages": [{"role": "user", "content": HELLO}]}
    run = await client.call("POST", f"/agents/{agent}/messages/async", body)
    # Seldom: with two cores, questions would take from what is measured.
    await until(lambda: _is_over(client, run["id"]), pause_s=0.05)
    (step,) = await client.call("GET", f"/runs/{run['id']}/steps")
    metrics = await client.call("GET", f"/steps/{step['id']}/metrics")
    return metrics["llm_request_start_ns"] / 1e9 - datetime.fromisoformat(run["created_at"]).timestamp()


async def _is_over(client: Client, run_id: str) -> bool:
    run: dict[str, Any] = await client.call("GET", f"/runs/{run_id}")
    return run["status"] not in ("created", "running")


async def _cancels(processes: Fleet) -> dict[str, list[float]]:
    """From the cancel leaving here to the terminal event arriving here. The reader, the driver and whoever is asked to
    cancel are three processes."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(CANCELS):
        taken["one process"].append(await _cancel_s(processes.alone, processes.alone))
        taken["another"].append(await _cancel_s(processes.front, processes.other))
    return taken


async def _cancel_s(reading: Client, cancelling: Client) -> float:
    agent = await reading.agent()
    flowing, ended = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def read() -> None:
        async for piece in reading.stream(agent, ENDLESS, background=True, stream_tokens=True):
            flowing.set()
            if b'"stop_reason":"cancelled"' in piece:
                ended.set_result(time.perf_counter())

    task = asyncio.create_task(read())
    await flowing.wait()
    began = time.perf_counter()
    await cancelling.call("POST", f"/agents/{agent}/messages/cancel", {})
    seconds = await ended - began
    await task
    return seconds

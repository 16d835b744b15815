"""How long a run of one agent takes while a thousand of another wait, beside how long it takes on an idle server.

python -m bench.fairness [--waiting 1000] [--database sqlite|postgresql]

A real server with room for a few runs. All runs are alike. In the best case a run begins when the next one ends, so
that it takes at most twice as long as on an idle server; and what the wait of the thousand costs is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, get_args

import uvloop

from bench.client import Client, until
from bench.postgres import Kind, databases
from bench.process import Server

ROOM: Final = 4
TIMES: Final = 15
TEXT: Final = "Hi [[no_reasoning]] [[tokens:30]] [[delay:0.01]]"


async def begin(client: Client, path: str) -> str:
    body = {"messages": [{"role": "user", "content": TEXT}]}
    return (await client.call("POST", f"{path}/messages/async", body))["id"]


async def flood(client: Client, agent: str, count: int) -> None:
    """In conversations of their own, some at a time."""
    free = asyncio.Semaphore(8)

    async def one() -> None:
        async with free:
            made = await client.call("POST", f"/conversations/?agent_id={agent}", {})
            body = {"messages": [{"role": "user", "content": TEXT}], "background": True, "streaming": True}
            await client.begin_stream(f"/conversations/{made['id']}/messages", body)

    await asyncio.gather(*(one() for _ in range(count)))


async def took_ms(client: Client, agent: str) -> float:
    began = time.perf_counter()
    run = await begin(client, f"/agents/{agent}")

    async def ended() -> bool:
        return (await client.call("GET", f"/runs/{run}"))["status"] == "completed"

    await until(ended, 120)
    return (time.perf_counter() - began) * 1e3


async def measure(url: str, waiting: int) -> None:
    async with Client(url) as client:
        one, many = await client.agent(), await client.agent()
        idle = [await took_ms(client, one) for _ in range(TIMES)]
        await flood(client, many, waiting)
        loaded: list[float] = []
        left: list[int] = []
        for _ in range(TIMES):
            loaded.append(await took_ms(client, one))
            left.append(len(await client.call("GET", f"/runs/?agent_id={many}&active=true&limit=1000")))
        alone, beside = statistics.median(idle), statistics.median(loaded)
        print(f"idle: {alone:.0f} ms; while {left[0]} to {left[-1]} of another agent wait: {beside:.0f} ms", end="")
        print(f" ({min(loaded):.0f} – {max(loaded):.0f}), × {beside / alone:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument("--database", choices=get_args(Kind), default="sqlite")
    given = parser.parse_args()
    with databases(given.database, 1) as (told,), tempfile.TemporaryDirectory() as folder:
        room = {"HOLDFAST_MAX_RUNS": str(ROOM), "HOLDFAST_DRAIN_S": "0"}
        with Server(Path(folder), **told, **room) as server:
            uvloop.run(measure(server.url, given.waiting))


if __name__ == "__main__":
    main()

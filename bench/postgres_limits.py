"""What one PostgreSQL carries of what Holdfast writes to it: small commits, rows of frames, and signals.

python -m bench.postgres_limits [--seconds 3] [--docs]

Without a server of ours: functions of the store, on connections of this process, which takes a good part of the CPU.
So the figures are a lower bound for a database on a machine of its own. Each is measured with and without waiting for
the disk. --docs puts the table into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import uvloop
from tests.postgres import create_database, running_server

from bench.client import Client
from bench.process import Server
from holdfast.store import frames
from holdfast.store.database import open_database
from holdfast.store.frames import FrameBatch
from holdfast.store.postgres_signals import CHANNEL
from holdfast.store.transaction import Database

RUNS: Final = 250
FRAME: Final = bytes(200)  # of one token
LISTENERS: Final = 4
SIGNALS_AT_ONCE: Final = 100
MARKS: Final = "<!-- limits:start -->", "<!-- limits:end -->"
_driver: Any = asyncpg
_seq = itertools.count(1)


class Limit(NamedTuple):
    what: str
    per_s: float


async def measure(server_uri: str, seconds: float) -> list[Limit]:
    url = await create_database(server_uri)
    runs = await _accepted_runs(url)
    database = await open_database(url)
    try:
        commits = await _repeated(seconds, 32, lambda number: _store(database, runs[number : number + 1]))
        by_one = await _repeated(seconds, 1, lambda _: _store(database, runs))
        by_four = await _repeated(seconds, 4, lambda number: _store(database, runs[number::4]))
    finally:
        await database.aclose()
    return [
        Limit("commits of one row, 32 at once", commits),
        Limit(f"rows of frames, one process that stores those of {RUNS} runs at a time", by_one * RUNS),
        Limit(f"rows of frames, four processes that share {RUNS} runs", by_four * RUNS / 4),
        Limit(f"signals, each heard by {LISTENERS} processes", await _signals(url, seconds)),
    ]


async def _accepted_runs(url: str) -> list[str]:
    """Runs that wait, so that nobody else writes their frames."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_WORKER": "0", "HOLDFAST_MAX_CONNECTIONS_PER_PEER": "0"}
        with Server(Path(folder), **settings) as server:
            async with Client(server.url) as client:
                agents = [await client.agent() for _ in range(RUNS)]
                sent = [(f"/agents/{agent}/messages/async", {"input": "hello"}) for agent in agents]
                accepted = [await client.call("POST", path, body) for path, body in sent]
    return [run["id"] for run in accepted]


async def _store(database: Database, runs: list[str]) -> None:
    seq = next(_seq)
    await database.write(lambda tx: frames.append_many(tx, [FrameBatch(run, seq, seq, FRAME) for run in runs]))


async def _repeated(seconds: float, writers: int, work: Callable[[int], Awaitable[None]]) -> float:
    """How often per second, by so many writers together."""
    began, done = time.perf_counter(), 0

    async def repeat(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await work(number)
            done += 1

    await asyncio.gather(*(repeat(number) for number in range(writers)))
    return done / (time.perf_counter() - began)


async def _signals(url: str, seconds: float) -> float:
    heard = 0

    def on_signal(*_: Any) -> None:
        nonlocal heard
        heard += 1

    listeners = [await _driver.connect(url) for _ in range(LISTENERS)]
    for listener in listeners:
        await listener.add_listener(CHANNEL, on_signal)
    sender = await _driver.connect(url)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        payloads = [f"frames run-{next(_seq):036}" for _ in range(SIGNALS_AT_ONCE)]
        await sender.execute("SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload", CHANNEL, payloads)
    took_s = time.perf_counter() - began
    for connection in (sender, *listeners):
        await connection.close()
    return heard / LISTENERS / took_s


def table(without_disk: list[Limit], with_disk: list[Limit]) -> str:
    lines = ["| what | without waiting for the disk | with |", "|---|---|---|"]
    for quick, safe in zip(without_disk, with_disk, strict=True):
        lines.append(f"| {quick.what} | {quick.per_s:,.0f} /s | {safe.per_s:,.0f} /s |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres_limits", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/scaling.md")
    given = parser.parse_args()
    with running_server() as server:
        without_disk = uvloop.run(measure(server.uri, given.seconds))
        server.configure(fsync="on", synchronous_commit="on")
        made = table(without_disk, uvloop.run(measure(server.uri, given.seconds)))
    print(made)
    if given.docs:
        page, (start, end) = Path("docs/scaling.md"), MARKS
        before, rest = page.read_text().split(start)
        page.write_text(f"{before}{start}\n{made}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()

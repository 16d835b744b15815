"""What a fleet carries: several processes on one PostgreSQL, next to one process on SQLite, in one run.

python -m bench.scaling [--only turns,tools,accepting,streams,readers,bytes] [--seconds 5] [--streams 500] [--docs]

It takes some minutes and prints one table; --docs puts it into docs/scaling.md. PostgreSQL is started for the purpose.
It does not wait for the disk, and SQLite does: compare rows of one database with each other.

The load is made by this process, on the same machine: with two cores, it takes about a quarter of them.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop
from tests.postgres import running_server

from bench.client import ECHO_TOOL, Client
from bench.postgres import Kind
from bench.process import Server
from bench.socket_client import async_lines
from bench.stored_bytes import new_database, stored_bytes

CLIENTS: Final = 32
MOST_ACCEPTED_PER_S: Final = 2_000
TOKENS_PER_S: Final = 20
GOAL_DELAY_MS: Final = 250
_FRAME: Final = b'"assistant_message"'


class Setup(NamedTuple):
    kind: Kind
    processes: int = 1

    def __str__(self) -> str:
        name = "SQLite" if self.kind == "sqlite" else "PostgreSQL"
        return name if self.kind == "sqlite" else f"{name}, {self.processes} process{'es' * (self.processes > 1)}"


SQLITE: Final = Setup("sqlite")
FLEETS: Final = (SQLITE, *(Setup("postgresql", count) for count in (1, 2, 4)))


class Line(NamedTuple):
    what: str
    setup: Setup
    value: float
    unit: str
    goal: str = ""


class Chosen(NamedTuple):
    seconds: float
    streams: int
    postgres: str  # the address of a PostgreSQL in which databases can be made


@asynccontextmanager
async def serving(setup: Setup, chosen: Chosen, **environment: str) -> AsyncGenerator[Server]:
    limits = {
        "HOLDFAST_MAX_CONNECTIONS_PER_PEER": "0",
        "HOLDFAST_PROCESSES": str(setup.processes),
        "HOLDFAST_DRAIN_S": "0.1",  # some runs never end
    }
    database = await new_database(setup.kind, chosen.postgres)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), **limits | database | environment) as server:
        yield server


async def turns(setup: Setup, chosen: Chosen) -> list[Line]:
    """Blocking turns without a tool, and what each costs all our processes."""
    async with serving(setup, chosen) as server, Client(server.url) as client:
        rate, cpu_ms = await _turns(server, client, chosen.seconds, await _agents(client, CLIENTS), "hello")
        memory = server.memory_mb()
    return [
        Line(f"turns, {CLIENTS} clients", setup, rate, "/s"),
        Line("CPU of a turn, all processes of ours", setup, cpu_ms, "ms", "≤ 2.5"),
        Line("memory of all processes under this load", setup, memory, "MB", "≤ 120 for one process"),
    ]


async def tool_turns(setup: Setup, chosen: Chosen) -> list[Line]:
    """Blocking turns with one call of a custom tool. The sandbox is among our processes."""
    async with serving(setup, chosen) as server, Client(server.url) as client:
        agents = await _agents(client, CLIENTS, await client.tool(ECHO_TOOL))
        rate, cpu_ms = await _turns(server, client, chosen.seconds, agents, "Call bench_echo with 'hi'")
    return [
        Line(f"one-tool turns, {CLIENTS} clients", setup, rate, "/s"),
        Line("CPU of a one-tool turn, all processes of ours", setup, cpu_ms, "ms", "≤ 8"),
    ]


async def _turns(server: Server, client: Client, seconds: float, agents: list[str], text: str) -> tuple[float, float]:
    """How many per second, and how many milliseconds of CPU each takes."""
    await _at_once(1.0, lambda number: client.turn(agents[number], text))
    before = server.family_cpu_s()
    done, took_s = await _at_once(seconds, lambda number: client.turn(agents[number], text))
    return done / took_s, (server.family_cpu_s() - before) / done * 1e3


async def accepting(setup: Setup, chosen: Chosen) -> list[Line]:
    """Background runs that are stored and then wait for a slot, so that the acceptance alone is measured."""
    async with serving(setup, chosen, HOLDFAST_MAX_RUNS="1") as server, Client(server.url) as client:
        agents = await _agents(client, round(chosen.seconds * MOST_ACCEPTED_PER_S))
        async with async_lines(server.url, CLIENTS) as lines:

            async def accept(number: int) -> None:
                if not agents:
                    raise RuntimeError("there are too few agents for this pace: raise MOST_ACCEPTED_PER_S")
                await lines[number].ask("POST", f"/agents/{agents.pop()}/messages/async", {"input": "[[stall]]"})

            before = server.family_cpu_s()
            done, took_s = await _at_once(chosen.seconds, accept)
        cpu_ms = (server.family_cpu_s() - before) / done * 1e3
    return [
        Line(f"background runs accepted, {CLIENTS} clients", setup, done / took_s, "/s", "≥ 1,000"),
        Line("CPU of an acceptance, all processes of ours", setup, cpu_ms, "ms"),
    ]


async def streams(setup: Setup, chosen: Chosen) -> list[Line]:
    """Background runs that stream slowly, each with a reader. The delay of a frame: how much later it comes after the
    one before it than the model's pause."""
    pause_s, count = 1 / TOKENS_PER_S, chosen.streams
    tokens = round((chosen.seconds + 5) * TOKENS_PER_S)
    text = f"[[tokens:{tokens}]] [[delay:{pause_s:g}]] [[no_reasoning]] go"
    late_ms: list[float] = []
    counting = False

    async def read(client: Client, agent: str) -> None:
        last = 0.0
        async for piece in client.stream(agent, text, stream_tokens=True, background=True):
            frames, now = piece.count(_FRAME), time.perf_counter()
            if frames and last and counting:
                late_ms.extend([max(0.0, now - last - pause_s) * 1e3] * frames)
            last = now if frames else last

    async with serving(setup, chosen) as server, Client(server.url) as client:
        agents = await _agents(client, count)
        readers = [asyncio.create_task(read(client, agent)) for agent in agents]
        await asyncio.sleep(3)  # all of them are under way
        counting, before, began = True, server.family_cpu_s(), time.perf_counter()
        await asyncio.sleep(chosen.seconds)
        counting, took_s = False, time.perf_counter() - began
        cpu_s = server.family_cpu_s() - before
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
    wanted = 0.95 * count * TOKENS_PER_S
    name = f"{count} background runs at {TOKENS_PER_S} tokens/s"
    return [
        Line(f"{name}: frames that arrive", setup, len(late_ms) / took_s, "/s", f"≥ {wanted:,.0f}"),
        Line(f"{name}: delay of a frame, p99", setup, _percentile(late_ms, 0.99), "ms", f"≤ {GOAL_DELAY_MS}"),
        Line(f"{name}: CPU of a frame, all processes of ours", setup, cpu_s / max(1, len(late_ms)) * 1e6, "µs"),
    ]


async def readers(setup: Setup, chosen: Chosen) -> list[Line]:
    """Readers of a run that says nothing."""
    async with serving(setup, chosen) as server, Client(server.url) as client:
        agent = await client.agent()
        first = client.stream(agent, "[[stall]]", stream_tokens=True, background=True, include_pings=True)
        await anext(first)
        run = (await client.run_of(agent))["id"]
        few = [await _attached(server, run) for _ in range(100)]  # the first ones make room for others, too
        await asyncio.sleep(2)  # the sandbox starts beside them
        before = server.memory_mb()
        many = [await _attached(server, run) for _ in range(chosen.streams)]
        each_kb = (server.memory_mb() - before) * 1024 / len(many)
        for writer in (*few, *many):
            writer.close()
        await first.aclose()
    return [Line("memory of an idle attached stream", setup, each_kb, "kB")]


async def _attached(server: Server, run: str) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"POST /v1/runs/{run}/stream HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
    await reader.readuntil(b"ping")
    return writer


async def stored(setup: Setup, chosen: Chosen) -> list[Line]:
    """What turns leave in the database. It depends on neither the machine nor its load."""
    return [Line(what, setup, value, unit) for what, value, unit in await stored_bytes(setup.kind, chosen.postgres)]


async def _agents(client: Client, count: int, *tools: str) -> list[str]:
    made: list[str] = []
    while len(made) < count:
        made += await asyncio.gather(*(client.agent(*tools) for _ in range(CLIENTS)))
    return made[:count]


async def _at_once(seconds: float, work: Callable[[int], Awaitable[Any]]) -> tuple[int, float]:
    """How often it was done by all clients, each of which is told its number, and how long that took."""
    began, done = time.perf_counter(), 0

    async def repeat(number: int) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await work(number)
            done += 1

    await asyncio.gather(*(repeat(number) for number in range(CLIENTS)))
    return done, time.perf_counter() - began


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


MARKS: Final = "<!-- scaling:start -->", "<!-- scaling:end -->"
POSTGRES: Final = Setup("postgresql", 1)
SECTIONS: Final = {
    "turns": (turns, FLEETS),
    "tools": (tool_turns, FLEETS),
    "accepting": (accepting, (SQLITE, POSTGRES, Setup("postgresql", 2))),
    "streams": (streams, (SQLITE, POSTGRES, Setup("postgresql", 2))),
    "readers": (readers, (SQLITE, POSTGRES)),
    "bytes": (stored, (SQLITE, POSTGRES)),
}


async def measure(only: set[str], chosen: Chosen) -> list[Line]:
    lines: list[Line] = []
    for name, (section, setups) in SECTIONS.items():
        for setup in setups if not only or name in only else ():
            lines += await section(setup, chosen)
            print(f"{name}: {setup}", flush=True)
    return lines


def table(lines: list[Line]) -> str:
    shown = ["| what | where | value | goal |", "|---|---|---|---|"]
    for what, setup, value, unit, goal in lines:
        number = f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
        shown.append(f"| {what} | {setup} | {number} {unit} | {goal} |")
    return "\n".join(shown)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--only", default="", help=f"comma list of {', '.join(SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--streams", type=int, default=500, help="at once")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/scaling.md")
    given = parser.parse_args()
    with running_server() as postgres:
        chosen = Chosen(given.seconds, given.streams, postgres.uri)
        made = table(uvloop.run(measure({name for name in given.only.split(",") if name}, chosen)))
    print(made)
    if given.docs:
        page, (start, end) = Path("docs/scaling.md"), MARKS
        before, rest = page.read_text().split(start)
        page.write_text(f"{before}{start}\n{made}\n{end}{rest.split(end)[1]}")


if __name__ == "__main__":
    main()

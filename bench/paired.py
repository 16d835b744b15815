"""Two servers side by side, measured in turns: what a change costs, on a machine whose pace changes by the minute.

python -m bench.paired /path/to/another/checkout [--rounds 40] [--database postgresql]

The other checkout needs its own environment (`make setup` there). Each round takes the same samples from both, in
alternating order. The figure is the median over rounds of ours against theirs: above 1.03 is a regression to explain.

With PostgreSQL, both servers use one that is started for the purpose, each with a database of its own. It does not wait
for the disk, so that the drivers show.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.client import ECHO_TOOL, PLAIN_AGENT, Client
from bench.postgres import databases
from bench.process import Server
from bench.sections import ONE_WORD, streaming, throughput
from bench.socket_client import Line

# The line to one server rests while the other one is measured.
PATIENT = {"HOLDFAST_HEADER_TIMEOUT_S": "600"}
SAMPLES = 8
AGENTS = 8
Samples = dict[str, list[float]]


class Side:
    """One of the two servers, with agents to talk to."""

    def __init__(self, server: Server, line: Line, plain: list[str], with_tool: list[str]) -> None:
        self.server = server
        self.samples: Samples = {}
        self._line = line
        self._plain = plain
        self._with_tool = with_tool

    def take_round(self, number: int) -> None:
        plain, busy, line = self._plain[number % AGENTS], self._with_tool[number % AGENTS], self._line
        self._take("no-tool turn", lambda: line.turn(plain))
        self._take_cpu("CPU of a no-tool turn", lambda: line.turn(plain))
        self._take("one-tool turn", lambda: line.turn(busy, "Call bench_echo with 'hi'"))
        self._take_cpu("CPU of a one-tool turn", lambda: line.turn(busy, "Call bench_echo with 'hi'"))
        family_s = self.server.family_cpu_s
        self._take_cpu("… its sandbox included", lambda: line.turn(busy, "Call bench_echo with 'hi'"), family_s)
        self._take("first token", lambda: line.first_piece(plain, ONE_WORD))
        self._take("create an agent", lambda: line.ask("POST", "/agents/", PLAIN_AGENT))
        self._take("list 50 agents", lambda: line.ask("GET", "/agents/?limit=50"))

    def _take_cpu(self, what: str, work: Callable[[], float], cpu_s: Callable[[], float] | None = None) -> None:
        """Of the server's own process, unless another clock is given."""
        cpu_s = cpu_s or self.server.cpu_s
        began_s = cpu_s()
        for _ in range(SAMPLES):
            work()
        self.samples.setdefault(what, []).append((cpu_s() - began_s) / SAMPLES)

    def _take(self, what: str, sample: Callable[[], float]) -> None:
        self.samples.setdefault(what, []).append(statistics.median(sample() for _ in range(SAMPLES)))


async def make_side(server: Server, line: Line) -> Side:
    async with Client(server.url) as client:
        tool = await client.tool(ECHO_TOOL)
        plain = [await client.agent() for _ in range(AGENTS)]
        return Side(server, line, plain, [await client.agent(tool) for _ in range(AGENTS)])


async def take_rates(side: Side) -> None:
    """Seconds for a fixed amount, so that for every figure less is better."""
    async with Client(side.server.url) as client:
        began_s, cpu_s = time.perf_counter(), side.server.cpu_s()
        [turns] = await throughput(side.server, client, seconds=3.0)
        taken = (side.server.cpu_s() - cpu_s) / (time.perf_counter() - began_s) / turns.value
        side.samples.setdefault(f"CPU of {turns.what}", []).append(taken)
        for row in [turns, *await streaming(side.server, client)]:
            side.samples.setdefault(row.what, []).append(1.0 / row.value)


async def compare(
    other: Path, rounds: int, rate_rounds: int, environments: list[dict[str, str]]
) -> list[tuple[str, float, float, float]]:
    """`environments`: of the server here, and of the one there."""
    with ExitStack() as open_things:
        sides: list[Side] = []
        for is_other, environment in enumerate(environments):
            server = Server(Path(open_things.enter_context(tempfile.TemporaryDirectory())), **PATIENT, **environment)
            if is_other:
                server.program = other / ".venv" / "bin" / "holdfast"
            open_things.enter_context(server)
            sides.append(await make_side(server, open_things.enter_context(Line(server.url))))
        for number in range(rounds + 1):
            for side in sides if number % 2 else reversed(sides):
                side.take_round(number)
            if number == 0:  # to warm up
                for side in sides:
                    side.samples.clear()
        for number in range(rate_rounds):
            for side in sides if number % 2 else reversed(sides):
                await take_rates(side)
    return [_figure(what, sides[0].samples[what], sides[1].samples[what]) for what in sides[0].samples]


def _figure(what: str, ours: list[float], theirs: list[float]) -> tuple[str, float, float, float]:
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return what, statistics.median(ours), statistics.median(theirs), ratio


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.paired", description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=40, help="of turns")
    parser.add_argument("--rate-rounds", type=int, default=5, help="of throughput and streams")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    with databases(given.database, 2) as environments:
        figures = uvloop.run(compare(given.other, given.rounds, given.rate_rounds, environments))
    for what, ours, theirs, ratio in figures:
        verdict = "ok  " if ratio <= 1.03 else "MORE"
        print(f"{verdict} {what}: {ratio:.3f} × (here {ours * 1e3:.4g} ms, there {theirs * 1e3:.4g} ms)", flush=True)


if __name__ == "__main__":
    main()

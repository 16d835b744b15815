"""The measurements. The model's own time, measured in the same run, is the floor that overheads are counted from.

`old` is what the retired server took on comparable hardware, measured once with the same method.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from bench.calibration import Figure, Gauge
from bench.client import BUSY_TOOL, ECHO_TOOL, PLAIN_AGENT, SLEEP_TOOL, Client, until
from bench.process import Server
from bench.socket_client import Line
from holdfast.core.deltas import Delta
from holdfast.core.messages import Text, Turn
from holdfast.llm.base import ModelRequest
from holdfast.llm.offline.model import OfflineModel

AGENTS: Final = 20
FEWEST_ROUNDS, MOST_ROUNDS = 20, 100
ONE_WORD: Final = "[[tokens:1]] [[no_reasoning]]"


class Row(NamedTuple):
    what: str
    value: float
    unit: str
    goal: str
    met: bool
    old: str
    at_any_pace: float | None = None  # for what can be told apart


def at_most(what: str, value: float | Figure, unit: str, goal: float, old: str = "") -> Row:
    """A figure has to meet its goal at the machine's full pace."""
    if isinstance(value, Figure):
        return Row(what, value.at_full_pace, unit, f"≤ {goal:,g}", value.at_full_pace <= goal, old, value.at_any_pace)
    return Row(what, value, unit, f"≤ {goal:,g}", value <= goal, old)


def at_least(what: str, value: float, unit: str, goal: float, old: str = "") -> Row:
    return Row(what, value, unit, f"≥ {goal:,g}", value >= goal, old)


def model_s(text: str, before: tuple[Turn, ...] = ()) -> float:
    """What the model itself takes for such a reply, in this process."""
    request = ModelRequest(handle="holdfast/offline", system="", turns=(*before, Turn("user", (Text(text),))))
    began = time.perf_counter()
    _read_out(OfflineModel().stream(request))
    return time.perf_counter() - began


def _read_out(deltas: AsyncGenerator[Delta]) -> None:
    """The model waits for nothing, so no event loop is needed, which would be most of what is timed."""
    while True:
        try:
            deltas.asend(None).send(None)
        except StopIteration:
            continue
        except StopAsyncIteration:
            return


async def turns(server: Server, client: Client) -> list[Row]:
    tool = await client.tool(ECHO_TOOL)
    agents = [await client.agent() for _ in range(AGENTS)]
    with_tool = [await client.agent(tool) for _ in range(AGENTS)]
    gauge = Gauge()
    with Line(server.url) as line:
        for agent in agents:
            line.turn(agent)
        for number in rounds(gauge):
            agent, busy = agents[number % AGENTS], with_tool[number % AGENTS]
            gauge.take("floor", partial(model_s, "hello"), 5)
            gauge.take("turn", partial(line.turn, agent), 10, server.cpu_s)
            gauge.take("tool turn", partial(line.turn, busy, "Call bench_echo with 'hi'"), 5)
            gauge.take("tool turn cpu", partial(_tool_cpu_s, server, line, with_tool), 1)
            gauge.take("first floor", partial(model_s, ONE_WORD), 5)
            gauge.take("first", partial(line.first_piece, agent, ONE_WORD), 5)
    return [
        at_most("no-tool turn, overhead p50", gauge.over("turn", "floor"), "ms", 5, "332 ms"),
        at_most("one-tool turn, overhead p50", gauge.over("tool turn", "floor", 2), "ms", 15, "4,270 ms"),
        at_most("CPU of a no-tool turn", gauge.mean_ms("turn cpu"), "ms", 5, "150 ms"),
        at_most("CPU of a one-tool turn, its sandbox included", gauge.mean_ms("tool turn cpu"), "ms", 8),
        at_most("time to the first token, over the floor", gauge.over("first", "first floor"), "ms", 3, "200 ms"),
    ]


def _tool_cpu_s(server: Server, line: Line, agents: Sequence[str]) -> float:
    """Of all processes, for one turn. The kernel tells it in hundredths of a second, so it is taken over several."""
    before = server.family_cpu_s()
    for agent in agents:
        line.turn(agent, "Call bench_echo with 'hi'")
    return (server.family_cpu_s() - before) / len(agents)


def rounds(gauge: Gauge) -> Iterator[int]:
    """Until there are enough samples at full pace, within reason."""
    for number in range(MOST_ROUNDS):
        if number >= FEWEST_ROUNDS and gauge.has_enough:
            return
        yield number


async def throughput(server: Server, client: Client, concurrency: int = 32, seconds: float = 5.0) -> list[Row]:
    agents = [await client.agent() for _ in range(concurrency)]
    done = 0
    began = time.perf_counter()

    async def keep_sending(agent: str) -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await client.turn(agent)
            done += 1

    await asyncio.gather(*(keep_sending(agent) for agent in agents))
    rate = done / (time.perf_counter() - began)
    return [at_least(f"turns per second, {concurrency} agents at once", rate, "/s", 200, "4 /s")]


async def streaming(server: Server, client: Client) -> list[Row]:
    agent = await client.agent()
    await _read(client, agent, 100)
    one = max([await _chunks_per_second(client, [agent], 2_000) for _ in range(5)])
    agents = [await client.agent() for _ in range(32)]
    many = max([await _chunks_per_second(client, agents, 500) for _ in range(3)])
    return [
        at_least("one stream of 2,000 tokens", one, "chunks/s", 20_000, "2,411 chunks/s"),
        at_least("32 streams of 500 tokens", many, "chunks/s", 20_000, "967 chunks/s"),
    ]


async def cancelling(server: Server, client: Client, times: int = 12) -> list[Row]:
    tools = [await client.tool(source) for source in (SLEEP_TOOL, BUSY_TOOL)]
    situations = {
        "tokens flowing": "[[tokens:100000]] [[delay:0.01]] go",
        "silent model": "[[stall]] go",
        "sleeping tool": "Call bench_sleep with 60 seconds",
        "busy tool": "Call bench_busy with 60 seconds",
    }
    modes: dict[str, dict[str, Any]] = {
        "blocking": {},
        "step stream": {},
        "token stream": {"stream_tokens": True},
        "background": {"stream_tokens": True, "background": True},
    }
    rows: list[Row] = []
    for situation, text in situations.items():
        taken: list[float] = []
        for mode, options in modes.items():
            for _ in range(times):
                taken.append(await _cancel_s(client, await client.agent(*tools), text, mode, options))
        old = "337–522 ms" if situation == "tokens flowing" else "did not end"
        rows.append(at_most(f"cancel → terminal event p99, {situation}, 4 modes", p99_ms(taken), "ms", 50, old))
    return rows


async def agents_section(server: Server, client: Client) -> list[Row]:
    with Line(server.url) as line:
        created = [line.ask("POST", "/agents/", PLAIN_AGENT) for _ in range(100)]
        for _ in range((1_000 - len(created)) // 20):
            await asyncio.gather(*(client.agent() for _ in range(20)))
        listed = [line.ask("GET", "/agents/?limit=50") for _ in range(100)]
    return [
        at_most("agent create p50", median_ms(created), "ms", 5, "72 ms"),
        at_most("list 50 of 1,000 agents p50", median_ms(listed), "ms", 5, "69 ms"),
    ]


def median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def p99_ms(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))] * 1e3


async def _read(client: Client, agent: str, tokens: int) -> int:
    return await client.tokens(agent, f"[[tokens:{tokens}]] [[no_reasoning]] go")


async def _chunks_per_second(client: Client, agents: list[str], tokens: int) -> float:
    began = time.perf_counter()
    counts = await asyncio.gather(*(_read(client, agent, tokens) for agent in agents))
    taken = time.perf_counter() - began
    if any(count < tokens for count in counts):
        raise RuntimeError(f"tokens were lost: {counts}")
    return sum(counts) / taken


async def _cancel_s(client: Client, agent: str, text: str, mode: str, options: dict[str, Any]) -> float:
    """From the cancel request leaving here to the terminal event arriving here."""
    terminal: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def wait_blocking() -> None:
        answer = await client.turn(agent, text)
        assert answer["stop_reason"]["stop_reason"] == "cancelled"
        terminal.set_result(time.perf_counter())

    async def wait_stream() -> None:
        async for piece in client.stream(agent, text, **options):
            if b'"stop_reason":"cancelled"' in piece and not terminal.done():
                terminal.set_result(time.perf_counter())

    waiting: Callable[[], Coroutine[Any, Any, None]] = wait_blocking if mode == "blocking" else wait_stream
    task = asyncio.create_task(waiting())
    await until(lambda: _is_under_way(client, agent, text))
    began = time.perf_counter()
    await client.call("POST", f"/agents/{agent}/messages/cancel", {})
    ended = await terminal
    await task
    return ended - began


async def _is_under_way(client: Client, agent: str, text: str) -> bool:
    runs = await client.call("GET", f"/runs/?agent_id={agent}&limit=1")
    if not runs or runs[0]["status"] != "running":
        return False
    if "bench_" not in text:
        return True
    why = await client.call("GET", f"/runs/{runs[0]['id']}/why")
    return why["phase"] == "acting"

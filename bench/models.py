"""What a real vendor's stream costs on its way through the whole server, next to a bare client reading the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from bench.client import Client
from bench.line import Line
from bench.process import Server
from bench.sections import Row, at_least, at_most, median_ms
from bench.vendor import Vendor

MODEL: Final = "openai-proxy/bench"
# Streams, tokens in each, and microseconds between them: slow enough that every token is a packet of its own.
ONE: Final = (1, 4_000, 400)
MANY: Final = (32, 500, 8_000)


async def models(data_dir: Path) -> list[Row]:
    with Vendor() as vendor, Server(data_dir, OPENAI_API_KEY="bench", OPENAI_BASE_URL=vendor.url) as server:
        async with Client(server.url) as client:
            rows = [
                at_least(
                    f"vendor's chunks per CPU-second at {streams} run{'s' * (streams > 1)}, against a bare client",
                    await _through_server(server, client, streams, tokens, pause_us)
                    / vendor.bare_chunks_per_cpu_s(streams, tokens, pause_us)
                    * 100,
                    "%",
                    40,
                )
                for streams, tokens, pause_us in (ONE, MANY)
            ]
            agents = [await client.agent(model=MODEL) for _ in range(20)]
            with Line(server.url) as line:
                taken = [line.turn(agent, "stream 1 every 0 us") for agent in agents for _ in range(10)]
            with Line(vendor.url.removesuffix("/v1")) as floor:
                bare = [floor.chat() for _ in range(200)]
    return [*rows, at_most("no-tool turn through a vendor, overhead p50", median_ms(taken) - median_ms(bare), "ms", 5)]


async def _through_server(server: Server, client: Client, streams: int, tokens: int, pause_us: int) -> float:
    agents = [await client.agent(model=MODEL) for _ in range(streams)]
    text = f"stream {tokens} every {pause_us} us"

    async def read(agent: str, asked: str) -> int:
        seen = 0
        async for piece in client.stream(agent, asked, stream_tokens=True):
            seen += piece.count(b"assistant_message")
        return seen

    await read(agents[0], "stream 10 every 0 us")
    before = server.cpu_s()
    seen = sum(await asyncio.gather(*(read(agent, text) for agent in agents)))
    used = server.cpu_s() - before
    if seen < streams * tokens:
        raise RuntimeError(f"tokens were lost: {seen} of {streams * tokens} came")
    return seen / used

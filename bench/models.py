"""What a vendor's words cost on their way through the whole server, next to a bare client reading the same."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.baseline import bare_chunks_per_cpu_s
from bench.client import Client
from bench.process import Server
from bench.sections import Row, at_least, at_most
from bench.vendor import Vendor
from bench.vendor_turns import vendor_turns
from holdfast.core.messages import Text, ToolCall, ToolReturn, Turn
from holdfast.llm.anthropic.adapter import AnthropicModel
from holdfast.llm.base import ModelInfo, ModelRequest, ToolSchema
from holdfast.llm.chat.adapter import ChatModel
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import Http

_TIMES: Final = 200
MODEL: Final = "openai-proxy/bench"
# Streams, tokens in each, and microseconds between them: slow enough that every token is a packet of its own.
ONE: Final = (1, 5_000, 250)
MANY: Final = (32, 1_000, 2_000)
_PAIRS: Final = 5


async def models(data_dir: Path) -> list[Row]:
    with Vendor() as vendor:
        keys = {"OPENAI_API_KEY": "bench", "ANTHROPIC_API_KEY": "bench"}
        with Server(data_dir, OPENAI_BASE_URL=vendor.url, ANTHROPIC_BASE_URL=vendor.url, **keys) as server:
            async with Client(server.url) as client:
                rows = [await _share(server, client, vendor, *pace) for pace in (ONE, MANY)]
                rows += await vendor_turns(server, client, vendor)
    for name, adapter in (("OpenAI", ChatModel), ("Anthropic", AnthropicModel)):
        rows.append(await _encoding(name, adapter))
    return rows


async def _share(server: Server, client: Client, vendor: Vendor, streams: int, tokens: int, pause_us: int) -> Row:
    """The middle one of several pairs: between the halves of a pair the machine has little time to change its pace."""
    agents = [await client.agent(model=MODEL) for _ in range(streams)]
    await client.tokens(agents[0], "stream 10 every 0 us")
    shares: list[float] = []
    for _ in range(_PAIRS):
        bare = bare_chunks_per_cpu_s(vendor.url, streams, tokens, pause_us)
        shares.append(await _through_server(server, client, agents, tokens, pause_us) / bare * 100)
    runs = f"{streams} run{'s' * (streams > 1)}"
    what = f"vendor's chunks per CPU-second at {runs}, against a bare client"
    return at_least(what, statistics.median(shares), "%", 40)


async def _encoding(name: str, adapter: type[ChatModel] | type[AnthropicModel]) -> Row:
    """All that happens before a request's first byte leaves."""
    endpoint = Endpoint(provider_name="bench", provider_type=name.lower(), base_url="http://127.0.0.1:9")
    info = ModelInfo(
        handle="bench/bench", name="bench", provider_name="bench", provider_type=name.lower(), context_window=100_000
    )
    http = Http()
    model, request = adapter(endpoint, http, info), _long_request()
    before = time.process_time()
    for _ in range(_TIMES):
        msgspec.json.encode(model.payload(request))
    used_ms = (time.process_time() - before) / _TIMES * 1e3
    await http.aclose()
    return at_most(f"CPU to put 100 messages into {name}'s words", used_ms, "ms", 1, "20 ms")


def _long_request() -> ModelRequest:
    said: list[Turn] = []
    for number in range(25):
        call = ToolCall(f"call_{number}", "find", f'{{"query": "{number}"}}')
        said += [
            Turn("user", (Text(f"question {number} about something that takes a line to say"),)),
            Turn("assistant", (Text(f"let me look that up, it is number {number}"), call), "bench/bench"),
            Turn("tool", (ToolReturn(call.id, call.name, "success", "found " * 30),)),
            Turn("assistant", (Text(f"here is what was found about {number}: not much"),), "bench/bench"),
        ]
    parameters = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools = tuple(ToolSchema(f"find_{number}", "Finds things.", parameters) for number in range(10))
    return ModelRequest(handle="bench/bench", system="Be brief. " * 100, turns=tuple(said), tools=tools)


async def _through_server(server: Server, client: Client, agents: Sequence[str], tokens: int, pause_us: int) -> float:
    text = f"stream {tokens} every {pause_us} us"
    before = server.cpu_s()
    seen = sum(await asyncio.gather(*(client.tokens(agent, text) for agent in agents)))
    used = server.cpu_s() - before
    if seen < len(agents) * tokens:
        raise RuntimeError(f"tokens were lost: {seen} of {len(agents) * tokens} came")
    return seen / used

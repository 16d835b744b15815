"""The fake of a vendor as a process of its own: `python -m tests.llm.fakes anthropic` prints its address.

It ends when its input does, so it cannot outlive whoever started it. `GET /_open` tells how many replies are open, how
many were left before their end, and how many requests there were; `GET /_last` shows the last of them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable

from tests.llm.fakes.anthropic import AnthropicProtocol
from tests.llm.fakes.bedrock import BedrockProtocol
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.cohere import CohereProtocol
from tests.llm.fakes.gemini import GeminiProtocol
from tests.llm.fakes.mistral import MistralProtocol
from tests.llm.fakes.responses import ResponsesProtocol
from tests.llm.fakes.script import VendorProtocol
from tests.llm.fakes.server import FakeVendor

PROTOCOLS: dict[str, Callable[[], VendorProtocol]] = {
    "chat": ChatProtocol,
    "anthropic": AnthropicProtocol,
    "responses": ResponsesProtocol,
    "gemini": GeminiProtocol,
    "mistral": MistralProtocol,
    "cohere": CohereProtocol,
    "bedrock": BedrockProtocol,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.llm.fakes", description=__doc__)
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("--port", type=int, default=0, help="any free one, unless it is given")
    parser.add_argument("--context-window", type=int, default=128_000, help="in tokens")
    given = parser.parse_args()
    asyncio.run(_serve(given.protocol, given.port, given.context_window))


async def _serve(protocol: str, port: int, context_window: int) -> None:
    async with FakeVendor(PROTOCOLS[protocol](), context_window=context_window).serving(port) as vendor:
        print(vendor.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    main()

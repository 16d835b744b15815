"""A thin client: the bench measures the server, so nothing of an SDK may be in the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Self

import aiohttp
import msgspec

ECHO_TOOL = '''def bench_echo(text: str) -> str:
    """Give the text back.

    Args:
        text (str): The text.
    """
    return "echo: " + text
'''
SLEEP_TOOL = '''def bench_sleep(seconds: int) -> str:
    """Sleep.

    Args:
        seconds (int): How long.
    """
    import time
    time.sleep(seconds)
    return "slept"
'''
BUSY_TOOL = '''def bench_busy(seconds: int) -> str:
    """Keep a core busy and ignore SIGTERM.

    Args:
        seconds (int): How long.
    """
    import signal
    import time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    until = time.time() + seconds
    while time.time() < until:
        pass
    return "was busy"
'''


_FRAGMENT = b'"assistant_message"'
PLAIN_AGENT: dict[str, Any] = {"model": "holdfast/offline", "include_base_tools": False}


class Client:
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**20, timeout=aiohttp.ClientTimeout(total=120)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def call(self, method: str, path: str, body: Any = None, form: aiohttp.FormData | None = None) -> Any:
        return msgspec.json.decode(await self.text(path, method, body, form))

    async def text(
        self, path: str, method: str = "GET", body: Any = None, form: aiohttp.FormData | None = None
    ) -> bytes:
        async with self._http.request(method, f"{self._url}/v1{path}", json=body, data=form) as answer:
            data = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]!r}")
            return data

    async def tool(self, source: str) -> str:
        return (await self.call("PUT", "/tools/", {"source_code": source}))["id"]

    async def agent(self, *tool_ids: str, **fields: Any) -> str:
        return (await self.call("POST", "/agents/", PLAIN_AGENT | {"tool_ids": list(tool_ids)} | fields))["id"]

    async def turn(self, agent: str, text: str = "hello") -> Any:
        return await self.call("POST", f"/agents/{agent}/messages", {"input": text})

    async def stream(self, agent: str, text: str, **options: Any) -> AsyncGenerator[bytes]:
        """Raw pieces of the event stream, as they come off the socket."""
        body = {"messages": [{"role": "user", "content": text}], "include_pings": False} | options
        async with self._http.post(f"{self._url}/v1/agents/{agent}/messages/stream", json=body) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"stream: {answer.status} {await answer.text()}")
            async for piece in answer.content.iter_any():
                yield piece

    async def begin_stream(self, path: str, body: Any) -> None:
        """Of a run in the background, which goes on although nobody listens."""
        async with self._http.post(f"{self._url}/v1{path}", json=body) as answer:
            if answer.status >= 400:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")

    async def tokens(self, agent: str, text: str) -> int:
        """How many fragments of text a token stream brings."""
        seen, tail = 0, b""
        async for piece in self.stream(agent, text, stream_tokens=True):
            held = tail + piece
            seen += held.count(_FRAGMENT)
            tail = held[held.rfind(b"\n") + 1 :] if _FRAGMENT not in held[held.rfind(b"\n") + 1 :] else b""
        return seen

    async def run_of(self, agent: str) -> dict[str, Any]:
        return (await self.call("GET", f"/runs/?agent_id={agent}&limit=1"))[0]


async def until(condition: Any, limit_s: float = 10.0, pause_s: float = 0.002) -> None:
    deadline = asyncio.get_running_loop().time() + limit_s
    while not await condition():
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError("the condition did not come true")
        await asyncio.sleep(pause_s)

"""A vendor that streams one token per packet, as a process of its own; and its stream read by a bare client.

The bare client is the floor: aiohttp reads the socket, msgspec decodes every event, and nothing else is done with it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model"}]}'
_CHUNK = (
    b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":%b,"finish_reason":%b}]}'
)
_USAGE = (
    b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}'
)


def _event(data: bytes) -> bytes:
    body = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(body), body)


_TOKEN = _event(_CHUNK % (b'{"content":" token"}', b"null"))
_END = _event(_CHUNK % (b"{}", b'"stop"')) + _event(_USAGE) + _event(b"[DONE]") + b"0\r\n\r\n"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """`stream N every M us` in the request says how much, and how fast."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length.group(1))) if length else b""
            if head.startswith(b"GET"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_MODELS)
                )
                writer.write(_MODELS)
                continue
            asked = re.findall(rb"stream (\d+) every (\d+) us", body)
            count, pause_us = map(int, asked[-1]) if asked else (1, 0)
            writer.write(_HEAD)
            due = asyncio.get_running_loop().time()
            for _ in range(count):
                writer.write(_TOKEN)
                due += pause_us / 1e6
                await asyncio.sleep(due - asyncio.get_running_loop().time())
            writer.write(_END)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(_answer, sock=listener)
    async with server:
        await server.serve_forever()


class Vendor:
    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.vendor", "serve"], stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)

    def bare_chunks_per_cpu_s(self, streams: int, tokens: int, pause_us: int) -> float:
        """In a process of its own, so that only its own time is counted."""
        words = [str(number) for number in (streams, tokens, pause_us)]
        told = subprocess.run(
            [sys.executable, "-m", "bench.vendor", "read", self.url, *words],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parent.parent,
        )
        return float(told.stdout)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Said(msgspec.Struct):
    choices: list[_Choice]


async def _read_bare(url: str, streams: int, tokens: int, pause_us: int) -> float:
    decode = msgspec.json.Decoder(_Said).decode
    body = {"messages": [{"role": "user", "content": f"stream {tokens} every {pause_us} us"}], "stream": True}

    async def read(session: aiohttp.ClientSession) -> int:
        seen, rest = 0, b""
        async with session.post(f"{url}/chat/completions", json=body) as answer:
            async for piece in answer.content.iter_any():
                *events, rest = (rest + piece).split(b"\n\n")
                for event in events:
                    if event != b"data: [DONE]":
                        seen += len(decode(event[6:]).choices)
        return seen

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await read(session)
        before = _cpu_s()
        seen = sum(await asyncio.gather(*(read(session) for _ in range(streams))))
        return seen / (_cpu_s() - before)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["serve", "read"])
    parser.add_argument("rest", nargs="*")
    given: Any = parser.parse_args()
    if given.role == "read":
        url, *numbers = given.rest
        print(uvloop.run(_read_bare(url, *map(int, numbers))))
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvloop.run(_serve(listener))


if __name__ == "__main__":
    main()

"""A vendor that streams one token per packet, as a process of its own."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import uvloop

from bench.payload import ANTHROPIC, CHAT, Words

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","type":"model"}],"has_more":false}'
_LISTED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_MODELS) + _MODELS
CALL_ECHO = "call bench_echo"


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length.group(1))) if length else b""
            if head.startswith(b"GET"):
                writer.write(_LISTED)
            else:
                await _speak(writer, ANTHROPIC if b"/messages " in head else CHAT, body)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _speak(writer: asyncio.StreamWriter, words: Words, body: bytes) -> None:
    """`stream N every M us` in the request says how much, and how fast; a tool is called once for each request."""
    if CALL_ECHO.encode() in body and b"echo: hi" not in body.rpartition(CALL_ECHO.encode())[2]:
        writer.write(_HEAD + words.call)
        return
    asked = re.findall(rb"stream (\d+) every (\d+) us", body)
    count, pause_us = map(int, asked[-1]) if asked else (1, 0)
    writer.write(_HEAD + words.opening)
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(count):
        writer.write(words.token)
        due += pause_us / 1e6
        await asyncio.sleep(due - loop.time())
    writer.write(words.ending)


async def _serve(listener: socket.socket) -> None:
    async with await asyncio.start_server(_answer, sock=listener) as server:
        await server.serve_forever()


class Vendor:
    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.vendor"], stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent
        )
        assert self._process.stdout is not None
        self.root = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.url = f"{self.root}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        uvloop.run(_serve(listener))


if __name__ == "__main__":
    main()

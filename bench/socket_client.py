"""One connection and nothing else, for figures of a millisecond or two: a client library would be half of them.

`Line` blocks, for what is asked in turn. `AsyncLine` does not, for what is asked by many at once.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec


class Line:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, method: str, path: str, body: Any = None) -> float:
        """Seconds from the request leaving here to the last byte of the answer arriving here."""
        request = _request(self._host, method, path, body)
        began = time.perf_counter()
        self._socket.sendall(request)
        self._read_whole()
        return time.perf_counter() - began

    def turn(self, agent: str, text: str = "hello") -> float:
        return self.ask("POST", f"/agents/{agent}/messages", {"input": text})

    def first_piece(self, agent: str, text: str) -> float:
        """Seconds until the first words of a token stream arrive here. Reads the stream to its end."""
        body = {"messages": [{"role": "user", "content": text}], "include_pings": False, "stream_tokens": True}
        return self._chunked(f"/agents/{agent}/messages/stream", body, b"assistant_message")[0]

    def reply(self, path: str, text: str) -> float:
        """A whole reply of a vendor, asked for directly: what the turn of an agent cannot do without."""
        return self._chunked(path, {"messages": [{"role": "user", "content": text}]}, b" token")[1]

    def first_word(self, path: str, text: str) -> float:
        """Likewise, up to its first word."""
        return self._chunked(path, {"messages": [{"role": "user", "content": text}]}, b" token")[0]

    def _chunked(self, path: str, body: Any, word: bytes) -> tuple[float, float]:
        """Seconds until the word arrives here, and until the answer is whole."""
        request = _request(self._host, "POST", path, body)
        began, first, held = time.perf_counter(), 0.0, b""
        self._socket.sendall(request)
        while not held.endswith(b"\r\n0\r\n\r\n"):
            held += self._piece()
            if not first and word in held:
                first = time.perf_counter() - began
        return first, time.perf_counter() - began

    def _read_whole(self) -> None:
        held = b""
        while b"\r\n\r\n" not in held:
            held += self._piece()
        head, _, rest = held.partition(b"\r\n\r\n")
        missing = _length(head) - len(rest)
        while missing > 0:
            missing -= len(self._piece())

    def _piece(self) -> bytes:
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise RuntimeError("the server closed the connection")
        return piece


class AsyncLine:
    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        self._writer.write(_request(self._host, method, path, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        return await self._reader.readexactly(_length(head))


@asynccontextmanager
async def async_lines(url: str, count: int) -> AsyncGenerator[list[AsyncLine]]:
    parts = urlsplit(url)
    opened = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(count)]
    try:
        yield [AsyncLine(parts.netloc, reader, writer) for reader, writer in opened]
    finally:
        for _, writer in opened:
            writer.close()


def _request(host: str, method: str, path: str, body: Any) -> bytes:
    encoded = b"" if body is None else msgspec.json.encode(body)
    kind = b"content-type: application/json\r\n" if encoded else b""
    head = f"{method} /v1{path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(encoded)}\r\n"
    return head.encode() + kind + b"\r\n" + encoded


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    if not lines[0].startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode(errors="replace")[:500])
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))

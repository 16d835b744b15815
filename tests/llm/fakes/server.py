"""A vendor on a loopback socket: plain asyncio, so that bytes can be cut, held back and broken off anywhere.

What it says comes from queued scripts or, when there are none, from the offline model, which reads the same directives
through any protocol. A request that the real vendor would refuse is refused.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from itertools import cycle
from typing import Any

import msgspec

from holdfast.core.deltas import Delta, OmittedDelta, ReasoningDelta, RedactedDelta
from holdfast.errors import BadReply, ModelError, ModelUnavailable
from holdfast.llm.base import ModelRequest
from holdfast.llm.offline.model import OfflineModel
from tests.llm.fakes.script import THINKS, Failure, Rendering, Script, VendorProtocol, failure_of

Brain = Callable[[ModelRequest], AsyncGenerator[Delta]]
# Paths of our own, for tests in another process: how many replies are open, and what was last asked.
STANDING, LAST = "/_open", "/_last"
_THOUGHTS = (ReasoningDelta, RedactedDelta, OmittedDelta)


class Exchange:
    """One request and what became of it."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.raw = body
        self.body: dict[str, Any] = msgspec.json.decode(body) if body else {}
        self.keeps_connection = True
        self.answered = asyncio.Event()  # the first bytes of the answer are out
        self.ended = asyncio.Event()
        self.gone = asyncio.Event()  # the client closed the connection before the answer was whole
        self.gone_at: float | None = None


class _Cut(Exception):
    """The connection is to be lost now."""


class FakeVendor:
    def __init__(self, *protocols: VendorProtocol, brain: Brain | None = None, context_window: int = 128_000) -> None:
        self._protocols = protocols
        self._brain = brain or OfflineModel().stream
        self._context_window = context_window
        self._scripts: deque[Script] = deque()
        self._connections: set[asyncio.Task[None]] = set()
        self.exchanges: list[Exchange] = []
        self.arrivals: asyncio.Queue[Exchange] = asyncio.Queue()  # the same, for whoever waits for one
        self.connections_made = 0
        self.keeps_connections = True  # False: one request for each, so that the next has to look for the address
        self.redirects_to: str | None = None  # every request is sent there
        self.url = ""

    def will(self, *scripts: Script) -> None:
        """What the next requests for a reply get."""
        self._scripts.extend(scripts)

    @property
    def last(self) -> Exchange:
        return self.exchanges[-1]

    @property
    def asked(self) -> ModelRequest:
        """What was understood of the last request."""
        path = self.last.path.partition("?")[0]
        protocol = next(one for one in self._protocols if one.answers(self.last.method, path))
        return protocol.decode(path, self.last.body)

    @property
    def open_replies(self) -> int:
        return sum(not (one.ended.is_set() or one.gone.is_set()) for one in self.exchanges)

    @property
    def open_connections(self) -> int:
        """Also those that wait for the next request."""
        return len([task for task in self._connections if not task.done()])

    @property
    def abandoned_replies(self) -> int:
        return sum(one.gone.is_set() for one in self.exchanges)

    @asynccontextmanager
    async def serving(self, port: int = 0, *, bound: socket.socket | None = None) -> AsyncGenerator[FakeVendor]:
        """`bound`: a socket that has its address already."""
        where: dict[str, Any] = {"host": "127.0.0.1", "port": port} if bound is None else {"sock": bound}
        server = await asyncio.start_server(self._accept, **where)
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.connections_made += 1
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the vendor is shutting down: nobody is left to tell
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = b""
        while (exchange := await _read(reader, first)) is not None:
            if exchange.path not in (STANDING, LAST):
                self.exchanges.append(exchange)
                self.arrivals.put_nowait(exchange)
            next_byte = asyncio.create_task(reader.read(1))
            answer = asyncio.create_task(self._answer(exchange, writer))
            try:
                await asyncio.wait({next_byte, answer}, return_when=asyncio.FIRST_COMPLETED)
                # Who writes to a closed connection may hear of it before who reads from it.
                if not answer.done() or isinstance(answer.exception(), ConnectionError):
                    exchange.gone_at = time.perf_counter()
                    exchange.gone.set()
                    return
                exchange.ended.set()  # whole, cut or failed: nobody hears more of it
                await answer
                if not self.keeps_connections:
                    return
                first = await next_byte
            except _Cut:
                return
            finally:
                answer.cancel()
                next_byte.cancel()
                await asyncio.gather(answer, next_byte, return_exceptions=True)

    async def _answer(self, exchange: Exchange, writer: asyncio.StreamWriter) -> None:
        path = exchange.path.partition("?")[0]
        exchange.keeps_connection = self.keeps_connections
        protocol = next((one for one in self._protocols if one.answers(exchange.method, path)), None)
        if self.redirects_to is not None:
            await _whole(exchange, writer, 307, b"", {"location": self.redirects_to})
            return
        if path in (STANDING, LAST):
            standing = {"open": self.open_replies, "left": self.abandoned_replies, "asked": len(self.exchanges)}
            await _whole(exchange, writer, 200, msgspec.json.encode(standing if path == STANDING else self.last.body))
            return
        if protocol is None:
            await self._list(exchange, path, writer)
            return
        script = self._scripts.popleft() if self._scripts else None
        if script is not None and script.hangs == "before_headers":
            await asyncio.Event().wait()
        if complaint := protocol.complaint(path, exchange.body):
            status, body = protocol.refusal(Failure("bad_request", complaint))
            await _whole(exchange, writer, status, body)
        elif script is not None and script.failure is not None and script.fails_after is None:
            await self._refuse(exchange, writer, protocol, script.failure)
        elif script is not None:
            await self._play(exchange, writer, protocol.rendering(path, exchange.body), script)
        else:
            await self._improvise(exchange, writer, protocol, path)

    async def _list(self, exchange: Exchange, path: str, writer: asyncio.StreamWriter) -> None:
        found = next((body for one in self._protocols if (body := one.listing(path)) is not None), None)
        answer = (404, b'{"error":{"message":"no such path"}}') if found is None else (200, found)
        await _whole(exchange, writer, *answer)

    async def _refuse(
        self, exchange: Exchange, writer: asyncio.StreamWriter, protocol: VendorProtocol, failure: Failure
    ) -> None:
        status, body = protocol.refusal(failure)
        extra = {} if failure.retry_after is None else {"retry-after": f"{failure.retry_after:g}"}
        await _whole(exchange, writer, status, body, extra)

    async def _play(
        self, exchange: Exchange, writer: asyncio.StreamWriter, rendering: Rendering, script: Script
    ) -> None:
        out = _Stream(exchange, writer, script.piece_bytes)
        await out.open()
        if script.body is not None:
            await out.send([script.body])
        elif script.hangs == "before_content":
            await asyncio.Event().wait()
        else:
            await out.send(rendering.begin())
            for index, delta in enumerate(script.deltas):
                if script.cut_after == index:
                    raise _Cut
                if script.fails_after == index:
                    break
                await out.send(rendering.noise() if script.noise else [])
                await out.send(rendering.delta(delta))
            if script.cut_after is not None:
                raise _Cut
            await out.flush()
            if script.hangs == "mid_stream":
                await asyncio.Event().wait()
            await out.send(rendering.failure(script.failure) if script.failure else rendering.end())
        await out.close()

    async def _improvise(
        self, exchange: Exchange, writer: asyncio.StreamWriter, protocol: VendorProtocol, path: str
    ) -> None:
        """The offline model speaks. What it refuses before its first word is told by status."""
        asked = protocol.decode(path, exchange.body)
        asked = msgspec.structs.replace(asked, context_window=self._context_window)
        rendering, out = protocol.rendering(path, exchange.body), _Stream(exchange, writer, None)
        async with aclosing(self._brain(asked)) as said:
            try:
                async for delta in _opening(said, out, rendering):
                    if asked.settings.get(THINKS, True) or not isinstance(delta, _THOUGHTS):
                        await out.send(rendering.delta(delta))
            except ModelUnavailable as error:
                if out.is_open:
                    raise _Cut from error
                await self._refuse(exchange, writer, protocol, failure_of(error))
                return
            except BadReply as error:
                if not out.is_open:
                    await out.open()
                await out.send([b"data: {" + error.message.encode() + b"\n\n"])
            except ModelError as error:
                if not out.is_open:
                    await self._refuse(exchange, writer, protocol, failure_of(error))
                    return
                await out.send(rendering.failure(failure_of(error)))
            else:
                await out.send(rendering.end())
        await out.close()


async def _opening(said: AsyncGenerator[Delta], out: _Stream, rendering: Rendering) -> AsyncIterator[Delta]:
    async for delta in said:
        if not out.is_open:
            await out.open()
            await out.send(rendering.begin())
        yield delta


class _Stream:
    """An answer of unknown length, one HTTP chunk per piece. Pieces of a given size know nothing of events."""

    def __init__(
        self, exchange: Exchange, writer: asyncio.StreamWriter, piece_bytes: int | tuple[int, ...] | None
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._sizes = cycle((piece_bytes,) if isinstance(piece_bytes, int) else piece_bytes) if piece_bytes else None
        self._size = next(self._sizes) if self._sizes else 0
        self._held = b""
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True
        closing = b"" if self._exchange.keeps_connection else b"connection: close\r\n"
        self._writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%b\r\n" % closing
        )
        await self._writer.drain()
        self._exchange.answered.set()

    async def send(self, events: list[bytes]) -> None:
        for event in events:
            if self._sizes is None:
                await self._write(event)
                continue
            self._held += event
            while len(self._held) >= self._size:
                piece, self._held = self._held[: self._size], self._held[self._size :]
                self._size = next(self._sizes)
                await self._write(piece)
                await asyncio.sleep(0)  # or the reader would find the next piece beside this one

    async def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            await self._write(held)

    async def close(self) -> None:
        await self.flush()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _write(self, piece: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self._writer.drain()


async def _read(reader: asyncio.StreamReader, first: bytes) -> Exchange | None:
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    start, *lines = head.decode().rstrip("\r\n").split("\r\n")
    method, path, _ = start.split(" ")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        known = headers.get(name.strip().lower())
        headers[name.strip().lower()] = value.strip() if known is None else f"{known}, {value.strip()}"
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Exchange(method, path, headers, body)


async def _whole(
    exchange: Exchange, writer: asyncio.StreamWriter, status: int, body: bytes, extra: dict[str, str] | None = None
) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(extra or {})}
    if not exchange.keeps_connection:
        headers["connection"] = "close"
    shown = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Said\r\n{shown}\r\n".encode() + body)
    await writer.drain()
    exchange.answered.set()

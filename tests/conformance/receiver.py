"""A listener on loopback: tools ring it when they begin, and callbacks are delivered to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

PATIENCE_S = 60.0


class Receiver:
    """Answers every POST with `status`, but not before it `may_answer`; or, while `deaf`, not at all."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.deaf = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.received: list[bytes] = []
        self._news = asyncio.Condition()

    async def until(self, count: int) -> list[bytes]:
        """What has come, once there are so many."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.received) >= count)
            return list(self.received)

    async def one_json(self) -> dict[str, Any]:
        return json.loads((await self.until(1))[0])

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            body = await _body(reader)
            async with self._news:
                self.received.append(body)
                self._news.notify_all()
            if self.deaf:
                await reader.read()  # until the other side gives up
                return
            await self.may_answer.wait()
            writer.write(f"HTTP/1.1 {self.status} Fine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # whoever rang is gone: killed, as some of them are to be
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    lengths = [line.partition(":")[2] for line in head.splitlines() if line.startswith("content-length:")]
    return await reader.readexactly(int(lengths[0])) if lengths else b""


@asynccontextmanager
async def open_receiver() -> AsyncGenerator[Receiver]:
    receiver = Receiver()
    listener = await asyncio.start_server(receiver.answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}/"
    try:
        yield receiver
    finally:
        listener.close()

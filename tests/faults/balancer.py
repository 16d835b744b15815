"""A load balancer on loopback that asks each server whether it is ready, and sends new connections to those that are.

It repeats nothing: a connection that a server refuses, or closes without an answer, is a request that failed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from .link import finished, keep

LOOK_EVERY_S = 0.1
FALL = 4  # so often in a row a server must not be ready before it is sent nothing: one that is busy may miss a look
_READY = b"GET /v1/ready/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
_ANSWER_WITHIN_S = 2.0


class Balancer:
    def __init__(self, urls: Sequence[str], chance: random.Random) -> None:
        self._ports = [urlsplit(url).port or 0 for url in urls]
        self._chance = chance
        self._ready: set[int] = set()
        self._changed = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self.url = ""
        self.failed: list[str] = []  # connections that got nothing

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        looking = [asyncio.create_task(self._keep_looking(port)) for port in self._ports]
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                await self.until_ready(*range(len(self._ports)))
                yield
            finally:
                for task in looking:
                    task.cancel()
                await asyncio.wait(looking)
                for writer in self._writers:
                    writer.transport.abort()
                await finished(self._serving)

    async def until_ready(self, *numbers: int) -> None:
        """Those of the servers."""
        wanted = {self._ports[number] for number in numbers}
        async with self._changed:
            await self._changed.wait_for(lambda: wanted <= self._ready)

    async def _keep_looking(self, port: int) -> None:
        missed = 0
        while True:
            missed = 0 if await _is_ready(port) else missed + 1
            is_ready = missed == 0 or (missed < FALL and port in self._ready)
            if is_ready != (port in self._ready):
                (self._ready.add if is_ready else self._ready.discard)(port)
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep(self._serving)
        if not self._ready:
            self.failed.append("no server was ready")
            writer.close()
            return
        port = self._chance.choice(sorted(self._ready))
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            self.failed.append(f"port {port}, which was ready, refused a connection: {error}")
            writer.close()
            return
        self._writers |= {writer, behind_writer}
        asking = asyncio.create_task(_carry(reader, behind_writer))
        answered = await _carry(behind_reader, writer)
        if not answered and not reader.at_eof():  # which would mean that the client had left
            self.failed.append(f"port {port} closed a connection without an answer")
        await asking
        self._writers -= {writer, behind_writer}


async def _is_ready(port: int) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(_READY)
                line = await reader.readline()
            finally:
                writer.close()
            return line.split()[1:2] == [b"200"]
    except (OSError, TimeoutError):
        return False


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """How many bytes there were."""
    carried = 0
    with suppress(OSError):
        while data := await reader.read(65_536):
            carried += len(data)
            writer.write(data)
            await writer.drain()
    writer.close()
    return carried

"""The way of one process to PostgreSQL, over TCP on loopback, which can be cut and can fall silent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Link:
    """Carries bytes between a port of its own and PostgreSQL's socket. Others have links of their own: a process can
    lose the database while they keep it."""

    def __init__(self, database_url: str) -> None:
        parts = urlsplit(database_url)
        self._path = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://{parts.username}@127.0.0.1:{self._socket.getsockname()[1]}{parts.path}"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()

    @property
    def environment(self) -> dict[str, str]:
        return {"HOLDFAST_DATABASE_URL": self.url}

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        async with await asyncio.start_server(self._serve, sock=self._socket):
            try:
                yield
            finally:
                self._flowing.set()
                self.cut()
                await finished(self._serving)

    def cut(self) -> int:
        """Every connection, without a word. How many there were."""
        writers = list(self._writers)
        for writer in writers:
            writer.transport.abort()
        return len(writers) // 2

    @asynccontextmanager
    async def silent(self) -> AsyncGenerator[None]:
        """Connections stay open, and nothing comes through: what was sent arrives afterwards."""
        self._flowing.clear()
        try:
            yield
        finally:
            self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep(self._serving)
        self._writers.add(writer)
        try:
            behind_reader, behind_writer = await asyncio.open_unix_connection(self._path)
        except OSError:  # it is being restarted
            self._close(writer)
            return
        self._writers.add(behind_writer)
        await asyncio.gather(self._carry(reader, behind_writer), self._carry(behind_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # one of the ends is gone, and so is the other
        finally:
            self._close(writer)

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()


def keep(serving: set[asyncio.Task[Any]]) -> None:
    """Remembers the task that runs now for as long as it does."""
    task = asyncio.current_task()
    assert task is not None
    serving.add(task)
    task.add_done_callback(serving.discard)


async def finished(serving: set[asyncio.Task[Any]]) -> None:
    """Their connections are gone. A loop that is closed before they have noticed complains."""
    if serving:
        await asyncio.wait(serving)


@asynccontextmanager
async def links_to(database_url: str, count: int) -> AsyncGenerator[list[Link]]:
    links = [Link(database_url) for _ in range(count)]
    async with AsyncExitStack() as stack:
        for link in links:
            await stack.enter_async_context(link.listening())
        yield links

"""PostgreSQL for benches: one that is started for the purpose, and on request as far away as a network would put it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tests.postgres import create_database, running_server

Kind = Literal["sqlite", "postgresql"]


@contextmanager
def databases(kind: Kind, count: int) -> Generator[list[dict[str, str]]]:
    """What to tell each of so many servers about its database. With SQLite that is nothing: each has its directory."""
    if kind == "sqlite":
        yield [{} for _ in range(count)]
        return
    with running_server() as postgres:
        # Empty: the other server of a pair may be older, and does not know our schema.
        urls = [asyncio.run(create_database(postgres.uri, migrated=False)) for _ in range(count)]
        yield [{"HOLDFAST_DATABASE_URL": url} for url in urls]


@contextmanager
def new_database(latency_ms: float) -> Generator[str]:
    """The address of an empty database; with a latency, of one that every message takes so long to reach."""
    with running_server() as postgres:
        url = asyncio.run(create_database(postgres.uri))
        if not latency_ms:
            yield url
            return
        # In a process of its own, so that its time is not counted as the driver's.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        proxy = context.Process(target=_delay, args=(_socket_of(url), latency_ms / 1e3, theirs), daemon=True)
        proxy.start()
        parts = urlsplit(url)
        try:
            yield f"postgresql://{parts.username}@127.0.0.1:{ours.recv()}{parts.path}"
        finally:
            proxy.terminate()
            proxy.join()


def _socket_of(url: str) -> str:
    return f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"


def _delay(path: str, seconds: float, told: Connection) -> None:
    asyncio.run(_proxy(path, seconds, told))


async def _proxy(path: str, seconds: float, told: Connection) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(_carry(reader, behind_writer, seconds), _carry(behind_reader, writer, seconds))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    told.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """A message does not wait for the one before it, as on a network."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(65_536):
        loop.call_later(seconds, writer.write, data)
    loop.call_later(seconds, writer.close)

"""What a turn leaves in the database: rows, bytes of tables and indexes, and bytes of the log that is written first."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import asyncpg
from tests.postgres import create_database

from bench.client import ECHO_TOOL, Client
from bench.postgres import Kind
from bench.process import Server

TURNS: Final = 200
AGENTS: Final = 10
KINDS: Final = {
    "no-tool turn": "hello",
    "one-tool turn": "Call bench_echo with 'hi'",
    "background turn of 200 tokens": "[[tokens:200]] [[no_reasoning]] go",
}
_driver: Any = asyncpg
_PG_TABLES: Final = "SELECT relname FROM pg_stat_user_tables WHERE schemaname = current_schema()"
_SQLITE_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%search%'"
_FRAME_HEADER: Final = 24  # of each page in SQLite's log
_LAST_FRAME_AT: Final = 16  # in the index of the log: how many pages it holds
Figure = tuple[str, float, str]


class Reading(NamedTuple):
    rows: dict[str, int]
    size: int
    log: int


class Source(Protocol):
    def look(self) -> None: ...

    async def read(self) -> Reading: ...


class SQLiteSource:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "holdfast.db"
        self._frames = self._frames_before = 0

    def look(self) -> None:
        """The log begins anew now and then, so its pages are counted after every turn."""
        with Path(f"{self._path}-shm").open("rb") as index:
            index.seek(_LAST_FRAME_AT)
            [now] = struct.unpack("=I", index.read(4))
        self._frames += now - self._frames_before if now >= self._frames_before else now
        self._frames_before = now

    async def read(self) -> Reading:
        self.look()
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            tables = [name for [name] in connection.execute(_SQLITE_TABLES)]
            rows = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}
            [pages], [page] = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
        return Reading(rows, pages * page, self._frames * (page + _FRAME_HEADER))


class PostgresSource:
    def __init__(self, url: str) -> None:
        self._url = url

    def look(self) -> None:
        """Its log only grows."""

    async def read(self) -> Reading:
        connection = await _driver.connect(self._url)
        try:
            tables = [row["relname"] for row in await connection.fetch(_PG_TABLES)]
            rows = {name: await connection.fetchval(f'SELECT count(*) FROM "{name}"') for name in tables}
            sizes = [await connection.fetchval("SELECT pg_total_relation_size($1::regclass)", name) for name in tables]
            log = await connection.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        finally:
            await connection.close()
        return Reading(rows, sum(sizes), int(log))


async def new_database(kind: Kind, postgres: str) -> dict[str, str]:
    """What to tell a server of it. A SQLite database it makes itself."""
    return {} if kind == "sqlite" else {"HOLDFAST_DATABASE_URL": await create_database(postgres)}


async def stored_bytes(kind: Kind, postgres: str) -> list[Figure]:
    figures: list[Figure] = []
    for name in KINDS:
        environment = await new_database(kind, postgres)
        with tempfile.TemporaryDirectory() as folder, Server(Path(folder), **environment) as server:
            url = environment.get("HOLDFAST_DATABASE_URL")
            source = SQLiteSource(Path(folder)) if url is None else PostgresSource(url)
            figures += await _measured(server, name, source)
    return figures


async def _measured(server: Server, name: str, source: Source) -> list[Figure]:
    async with Client(server.url) as client:
        tools = [await client.tool(ECHO_TOOL)] if name == "one-tool turn" else []
        agents = [await client.agent(*tools) for _ in range(AGENTS)]
        for agent in agents:  # what only the first turn leaves
            await _turn(client, agent, name)
        before = await source.read()
        for number in range(TURNS):
            await _turn(client, agents[number % AGENTS], name)
            source.look()
        after = await source.read()
    rows = {table: (after.rows[table] - before.rows[table]) / TURNS for table in after.rows}
    print(f"{name}: rows", {table: count for table, count in rows.items() if count}, flush=True)
    return [
        (f"{name}: rows", sum(rows.values()), ""),
        (f"{name}: tables and indexes", (after.size - before.size) / TURNS, "bytes"),
        (f"{name}: log", (after.log - before.log) / TURNS, "bytes"),
    ]


async def _turn(client: Client, agent: str, name: str) -> None:
    if name.startswith("background"):
        async for _ in client.stream(agent, KINDS[name], stream_tokens=True, background=True):
            pass
    else:
        await client.turn(agent, KINDS[name])

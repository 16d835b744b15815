"""The world that every trial begins with, made once and brought back for each: thousands of trials need it at once.

On SQLite a trial has a copy of the file. A copy of a PostgreSQL database takes longer than most trials do, so there its
rows are put back instead.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import delete, select

from holdfast import ids
from holdfast.actions.tools.base_tools import sync_base_tools
from holdfast.core.records import Block
from holdfast.store import blocks, tools
from holdfast.store.database import open_database
from holdfast.store.schema import metadata
from holdfast.store.statements import insert_into
from holdfast.store.transaction import Database, Transaction
from tests.scenario import HASTY, World, sqlite_at, world_at

Rows = list[Mapping[str, Any]]


class SqliteTemplate(msgspec.Struct, frozen=True):
    path: Path
    agent_id: str

    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncGenerator[Database]:
        copy = directory / f"{ids.new('run')}.db"
        shutil.copy(self.path, copy)
        database = await open_database(f"sqlite:///{copy}")
        try:
            yield database
        finally:
            await database.aclose()
            copy.unlink()


class PostgresTemplate(msgspec.Struct, frozen=True):
    url: str
    agent_id: str
    rows: dict[str, Rows]

    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncGenerator[Database]:
        """Connections of its own: what a dead server had still under way ends with them, before the next trial."""
        database = await open_database(self.url)
        try:
            await database.write(self._put_back)
            yield database
        finally:
            await database.aclose()

    async def _put_back(self, tx: Transaction) -> None:
        for table in reversed(metadata.sorted_tables):
            await tx.execute(delete(table))
        for table in metadata.sorted_tables:
            await tx.execute_many(insert_into(table), self.rows[table.name])


Template = SqliteTemplate | PostgresTemplate


@asynccontextmanager
async def world_from(template: Template, directory: Path) -> AsyncGenerator[World]:
    async with template.opened(directory) as database:
        world = World(database)
        world.agent_id = template.agent_id
        world.tools.let_go.set()
        world.retry_policy = HASTY
        async with world.closing:
            yield world


async def sqlite_template(directory: Path) -> SqliteTemplate:
    async with _furnished(sqlite_at(directory)) as world:
        return SqliteTemplate(directory / "holdfast.db", world.agent_id)


async def postgres_template(url: str) -> PostgresTemplate:
    async with _furnished(url) as world:
        return PostgresTemplate(url, world.agent_id, await world.database.read(_everything))


@asynccontextmanager
async def _furnished(url: str) -> AsyncGenerator[World]:
    """An agent that has the counted tools, a memory block and a tool to edit it."""
    async with world_at(url) as world:
        await world.database.write(lambda tx: _give_memory(tx, world.agent_id))
        yield world


async def _everything(tx: Transaction) -> dict[str, Rows]:
    return {table.name: [dict(row) for row in await tx.fetch_all(select(table))] for table in metadata.sorted_tables}


async def _give_memory(tx: Transaction, agent_id: str) -> None:
    block = Block(id=ids.new("block"), label="notes", value="")
    await blocks.insert(tx, block)
    await blocks.attach(tx, agent_id, block)
    shipped = {tool.name: tool for tool in await sync_base_tools(tx, 0)}
    await tools.attach_many(tx, agent_id, [shipped["memory_insert"].id])

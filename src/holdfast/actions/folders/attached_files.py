"""The files of an agent: which it has, and which of them it sees."""

from __future__ import annotations

import msgspec

from holdfast.actions.queries import Page
from holdfast.core.records import Agent, AgentFile
from holdfast.core.system_prompt import MOST_LISTED, file_limits, visible_text
from holdfast.engine.attached_files import open_windows, shown_file
from holdfast.errors import Invalid, NotFound
from holdfast.store import agents as agent_rows
from holdfast.store import attached_files as agent_file_rows
from holdfast.store.attached_files import Window
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.folders import AgentFilesPage, SeenFile, agent_files_page


async def list_files(database: Database, agent_id: str, page: Page, is_open: bool | None) -> AgentFilesPage:
    async def read(tx: Transaction) -> AgentFilesPage:
        agent = await agent_rows.get(tx, agent_id)
        characters = file_limits(agent).characters
        # One more than asked for tells whether there are more: the last, or before a cursor the first.
        wanted = page.limit or 0
        found = await agent_file_rows.list_files(tx, agent_id, msgspec.structs.replace(page, limit=wanted + 1), is_open)
        has_more = len(found) > wanted
        shown = found[has_more:] if page.before is not None else found[:wanted]
        return agent_files_page([await _seen(tx, file, characters) for file in shown], has_more)

    return await database.read_long(read)


async def _seen(tx: Transaction, file: AgentFile, characters: int) -> SeenFile:
    if not file.is_open:
        return SeenFile(file, None)
    return SeenFile(file, visible_text(await shown_file(tx, file, characters), characters))


async def files_seen(tx: Transaction, agent: Agent) -> list[SeenFile]:
    characters = file_limits(agent).characters
    return [await _seen(tx, file, characters) for file in await agent_file_rows.of_agent(tx, agent.id, MOST_LISTED)]


async def open_file(database: Database, agent_id: str, file_id: str, now_us: int) -> list[str]:
    """The names of those that were closed to make room."""

    async def write(tx: Transaction) -> list[str]:
        agent = await agent_rows.get(tx, agent_id, lock=True)
        await _require(tx, agent_id, file_id)
        if not file_limits(agent).most_open:
            raise Invalid("The agent cannot have open files: its max_files_open is 0.")
        closed = await open_windows(tx, agent_id, [Window(file_id)], now_us)
        return [file.full_name for file in closed]

    return await database.write(write)


async def close_file(database: Database, agent_id: str, file_id: str) -> str:
    """Its name. Closing one that is closed changes nothing."""

    async def write(tx: Transaction) -> str:
        await agent_rows.get(tx, agent_id, lock=True)
        file = await _require(tx, agent_id, file_id)
        await agent_file_rows.close(tx, agent_id, [file_id])
        return file.full_name

    return await database.write(write)


async def close_all(database: Database, agent_id: str) -> list[str]:
    """The names of those that were open."""

    async def write(tx: Transaction) -> list[str]:
        await agent_rows.get(tx, agent_id, lock=True)
        found = await agent_file_rows.open_files(tx, agent_id)
        await agent_file_rows.close(tx, agent_id, [file.file_id for file in found])
        return [file.full_name for file in found]

    return await database.write(write)


async def _require(tx: Transaction, agent_id: str, file_id: str) -> AgentFile:
    file = await agent_file_rows.find(tx, agent_id, file_id)
    if file is None:
        raise NotFound(f"File {file_id} not found in a folder of agent {agent_id}")
    return file

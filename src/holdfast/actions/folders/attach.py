"""Attach folders to agents, and detach them. An agent has the file tools while it has a folder."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.actions.agents.read import whole_state
from holdfast.actions.tools.attach import attach_named, detach_named
from holdfast.engine.attached_files import open_windows
from holdfast.errors import NotFound
from holdfast.store import agents as agent_rows
from holdfast.store import attached_files as agent_file_rows
from holdfast.store import folders as folder_rows
from holdfast.store.attached_files import Window
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.files import NAMES
from holdfast.wire.agents import AgentState


async def attach_folder(
    database: Database, agent_id: str, folder_id: str, now_us: int, *, show: bool
) -> AgentState | None:
    """`show`, here and below: whether the caller wants the agent as it is afterwards."""

    async def write(tx: Transaction) -> AgentState | None:
        await folder_rows.get(tx, folder_id, keep=True)
        await attach(tx, agent_id, [folder_id], now_us)
        return await whole_state(tx, agent_id) if show else None

    return await database.write(write)


async def detach_folder(
    database: Database, agent_id: str, folder_id: str, now_us: int, *, show: bool
) -> AgentState | None:
    """Also when it is not attached."""

    async def write(tx: Transaction) -> AgentState | None:
        await folder_rows.get(tx, folder_id)
        await detach(tx, agent_id, folder_id, now_us)
        return await whole_state(tx, agent_id) if show else None

    return await database.write(write)


async def replace_folders(tx: Transaction, agent_id: str, folder_ids: Sequence[str], now_us: int) -> None:
    """The agent has these folders afterwards, and no others."""
    for folder in await folder_rows.of_agent(tx, agent_id):
        if folder.id not in folder_ids:
            await detach(tx, agent_id, folder.id, now_us)
    await attach_known(tx, agent_id, folder_ids, now_us)


async def attach_known(tx: Transaction, agent_id: str, folder_ids: Sequence[str], now_us: int) -> None:
    """Refuses all if one of them is not there."""
    known = await folder_rows.find_many(tx, folder_ids)
    if missing := [folder_id for folder_id in folder_ids if folder_id not in known]:
        raise NotFound(f"Folders not found: {', '.join(missing)}")
    await attach(tx, agent_id, folder_ids, now_us)


async def attach(tx: Transaction, agent_id: str, folder_ids: Sequence[str], now_us: int) -> None:
    """Attaching twice is attaching once. Files are opened as far as there is room, the newest."""
    agent = await agent_rows.get(tx, agent_id, lock=True)
    for folder_id in folder_ids:
        if await folder_rows.attach(tx, agent_id, folder_id):
            added = await agent_file_rows.add_folder(tx, agent_id, folder_id, now_us)
            await open_windows(tx, agent_id, [Window(file_id) for file_id in added], now_us)
    if folder_ids:
        await attach_named(tx, agent, NAMES, now_us)


async def detach(tx: Transaction, agent_id: str, folder_id: str, now_us: int) -> None:
    agent = await agent_rows.get(tx, agent_id, lock=True)
    if not await folder_rows.detach(tx, agent_id, folder_id):
        return
    await agent_file_rows.remove_folder(tx, agent_id, folder_id)
    if not await folder_rows.of_agent(tx, agent_id):
        await detach_named(tx, agent, NAMES, now_us)

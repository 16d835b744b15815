"""Deletes what belongs to files and folders that are marked as deleted: a short transaction at a time."""

from __future__ import annotations

from holdfast.engine.archival import ArchivalMemory
from holdfast.store import files, folders
from holdfast.store.transaction import Database


async def clear_file(database: Database, archival: ArchivalMemory, folder_id: str, file_id: str) -> None:
    """If it is cut short, retention goes on with it."""
    while not await database.write(lambda tx: files.clear(tx, file_id)):
        pass
    archival.forget(folder_id)


async def clear_folder(database: Database, archival: ArchivalMemory, folder_id: str) -> None:
    while (file_id := await database.read(lambda tx: files.any_of_folder(tx, folder_id))) is not None:
        await clear_file(database, archival, folder_id, file_id)
    await database.write(lambda tx: folders.delete_marked(tx, folder_id))
    archival.forget(folder_id)

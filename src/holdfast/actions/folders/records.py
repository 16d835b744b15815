"""Folders and their files: make, read, change and delete them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.actions.agents.model_choice import chosen_embedding
from holdfast.actions.folders import attach
from holdfast.actions.queries import Page, read_page
from holdfast.core.chunking import DEFAULT_TOKENS, FEWEST_TOKENS, MOST_TOKENS
from holdfast.core.records import Folder
from holdfast.engine.archival import ArchivalMemory, model_in
from holdfast.engine.ingestion import KIND
from holdfast.engine.retention import clear_file, clear_folder
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.llm.base import Catalog
from holdfast.store import agents as agent_rows
from holdfast.store import files as file_rows
from holdfast.store import folders as folder_rows
from holdfast.store import passages as passage_rows
from holdfast.store import tasks as task_rows
from holdfast.store.agents import AgentFilter
from holdfast.store.transaction import Database, IntegrityError, Transaction
from holdfast.wire.archives import PassageView
from holdfast.wire.folders import (
    AllStats,
    FileContent,
    FileView,
    FolderCreate,
    FolderUpdate,
    chunk_view,
    file_view,
)

_CLEARABLE: Final = frozenset({"description", "instructions", "metadata"})


async def list_folders(
    database: Database, page: Page, name: str | None = None, agent_id: str | None = None
) -> list[Folder]:
    async def read(tx: Transaction) -> list[Folder]:
        if agent_id is not None:
            await agent_rows.require(tx, agent_id)
        return await folder_rows.list_folders(tx, page, name, agent_id)

    return await read_page(database, read, page)


async def count_folders(database: Database) -> int:
    return await database.read(folder_rows.count_folders)


async def folder_stats(database: Database, *, detailed: bool) -> AllStats:
    """`detailed`: with every folder and file."""
    found = await database.read_long(folder_rows.sizes)
    return {
        "total_sources": len(found),
        "total_files": sum(len(folder.files) for folder in found),
        "total_size": sum(file.size for folder in found for file in folder.files),
        "sources": [
            {
                "source_id": folder.id,
                "source_name": folder.name,
                "file_count": len(folder.files),
                "total_size": sum(file.size for file in folder.files),
                "files": [
                    {"file_id": file.id, "file_name": file.name, "file_size": file.size} for file in folder.files
                ],
            }
            for folder in found
            if detailed
        ],
    }


async def find_folder(database: Database, name: str) -> str:
    found = await database.read(lambda tx: folder_rows.find_named(tx, ids.DEFAULT_ORG, name))
    if found is None:
        raise NotFound(f"Folder with name {name} not found")
    return found


async def read_folder(database: Database, folder_id: str) -> Folder:
    return await database.read(lambda tx: folder_rows.get(tx, folder_id))


async def create_folder(
    database: Database, catalog: Catalog, default_embedding: str | None, request: FolderCreate, now_us: int
) -> Folder:
    """Without an embedding model its files are found by their words."""
    chosen = await chosen_embedding(catalog, default_embedding, request)
    folder = Folder(
        id=ids.new("source"),
        organization_id=ids.DEFAULT_ORG,
        name=request.name,
        description=request.description,
        instructions=request.instructions,
        metadata=request.metadata,
        embedding=chosen.handle or model_in(chosen.config),
        embedding_config=chosen.config,
        chunk_size=_chunk_size(request),
        created_us=now_us,
        updated_us=now_us,
    )
    try:
        await database.write(lambda tx: folder_rows.insert(tx, folder))
    except IntegrityError as error:
        raise _name_taken(request.name) from error
    return folder


async def update_folder(database: Database, folder_id: str, request: FolderUpdate, now_us: int) -> Folder:
    sent = {name: getattr(request, name) for name in request.model_fields_set - {"embedding_config"}}
    changes: dict[str, Any] = {name: value for name, value in sent.items() if value is not None or name in _CLEARABLE}

    async def write(tx: Transaction) -> Folder:
        folder = await folder_rows.get(tx, folder_id, lock=True)
        if request.embedding_config is not None:
            changes.update(await _changed_model(tx, folder, request.embedding_config.model_dump()))
        changed = msgspec.structs.replace(folder, **changes, updated_us=now_us)
        await folder_rows.update_folder(tx, changed)
        return changed

    try:
        return await database.write(write)
    except IntegrityError as error:
        raise _name_taken(str(request.name)) from error


async def _changed_model(tx: Transaction, folder: Folder, config: dict[str, Any]) -> dict[str, Any]:
    """Vectors of two models cannot be compared with each other."""
    changed = {"embedding": model_in(config), "embedding_config": config}
    if changed["embedding"] != folder.embedding and await file_rows.any_of_folder(tx, folder.id) is not None:
        raise Invalid(
            f"The folder {folder.id} has files, whose vectors are those of {folder.embedding or 'no model'}. Make a "
            "folder with the other embedding model, and upload the files to it."
        )
    return changed


async def delete_folder(database: Database, archival: ArchivalMemory, folder_id: str, now_us: int) -> None:
    """With its files. What is being ingested stops; agents that had the folder lose sight of it."""
    await database.write(lambda tx: _delete_folder(tx, folder_id, now_us))
    await clear_folder(database, archival, folder_id)


async def _delete_folder(tx: Transaction, folder_id: str, now_us: int) -> None:
    users = await folder_rows.agents_of(tx, folder_id)
    for agent_id in users:
        await attach.detach(tx, agent_id, folder_id, now_us)
    await task_rows.withdraw(tx, KIND, await file_rows.being_ingested(tx, folder_id))
    await folder_rows.mark_deleted(tx, folder_id, now_us)


async def delete_file(database: Database, archival: ArchivalMemory, folder_id: str, file_id: str, now_us: int) -> None:
    await database.write(lambda tx: mark_file_deleted(tx, folder_id, file_id, now_us))
    await clear_file(database, archival, folder_id, file_id)


async def mark_file_deleted(tx: Transaction, folder_id: str, file_id: str, now_us: int) -> None:
    await task_rows.withdraw(tx, KIND, [file_id])
    await file_rows.mark_deleted(tx, folder_id, file_id, now_us)


async def list_files(database: Database, folder_id: str, page: Page, *, include_content: bool) -> list[FileView]:
    async def read(tx: Transaction) -> list[FileView]:
        await folder_rows.get(tx, folder_id)
        found = await file_rows.list_of_folder(tx, folder_id, page)
        texts = [await file_rows.whole_text(tx, file.id) for file in found] if include_content else [None] * len(found)
        return [file_view(FileContent(file, text)) for file, text in zip(found, texts, strict=True)]

    return await (database.read_long(read) if include_content else read_page(database, read, page))


async def read_file(database: Database, folder_id: str, file_id: str, *, include_content: bool) -> FileView:
    async def read(tx: Transaction) -> FileView:
        file = await file_rows.get(tx, folder_id, file_id)
        return file_view(FileContent(file, await file_rows.whole_text(tx, file_id) if include_content else None))

    return await (database.read_long(read) if include_content else database.read(read))


async def list_passages(database: Database, folder_id: str, page: Page) -> list[PassageView]:
    async def read(tx: Transaction) -> list[PassageView]:
        folder = await folder_rows.get(tx, folder_id)
        found = await passage_rows.list_of_archive(tx, folder_id, page, None)
        names = await _names(tx, {passage.file_id for passage in found if passage.file_id})
        return [
            chunk_view(passage, folder, names[passage.file_id])
            for passage in found
            if passage.file_id in names  # else its file is being deleted
        ]

    return await read_page(database, read, page)


async def _names(tx: Transaction, file_ids: Collection[str]) -> dict[str, str]:
    found = [await file_rows.find(tx, file_id) for file_id in file_ids]
    return {file.id: file.name for file in found if file is not None}


async def list_agents(database: Database, folder_id: str, page: Page) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        await folder_rows.get(tx, folder_id)
        users = AgentFilter(folder_id=folder_id, show_hidden=True)
        return [agent.id for agent in await agent_rows.list_agents(tx, users, page)]

    return await database.read(read)


def _chunk_size(request: FolderCreate) -> int:
    if request.embedding_chunk_size is not None:
        return request.embedding_chunk_size
    asked = request.embedding_config.embedding_chunk_size if request.embedding_config else None
    return min(max(asked or DEFAULT_TOKENS, FEWEST_TOKENS), MOST_TOKENS)


def _name_taken(name: str) -> Conflict:
    return Conflict(f"There is a folder with the name {name!r} already: choose another name, or use that one.")

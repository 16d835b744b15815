"""Archives and their passages: list, make and change them, attach them to agents, fill them, search them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import ids
from holdfast.actions.agents.model_choice import chosen_embedding
from holdfast.actions.queries import Page, read_page
from holdfast.core.dates import moments
from holdfast.core.records import Archive, Passage
from holdfast.engine.archival import ArchivalMemory, Hit, NewPassage, PassageChange, Search, model_in
from holdfast.errors import Invalid, NotFound, Unprocessable
from holdfast.llm.base import Catalog
from holdfast.store import agents as agent_rows
from holdfast.store import archives as archive_rows
from holdfast.store import passages as passage_rows
from holdfast.store.passage_search import PassageFilter
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.archival import DEFAULT_RESULTS, MOST_RESULTS, search_results
from holdfast.wire.archives import (
    AgentPassageCreate,
    ArchiveCreate,
    ArchiveUpdate,
    FoundPassage,
    PassageCreate,
    PassageSearch,
    PassageUpdate,
    PassageView,
    StorageUnit,
    in_unit,
    moment_us,
    passage_view,
)


async def list_archives(database: Database, page: Page, name: str | None, agent_id: str | None) -> list[Archive]:
    return await database.read(lambda tx: archive_rows.list_archives(tx, page, name, agent_id))


async def read_archive(database: Database, archive_id: str) -> Archive:
    return await database.read(lambda tx: archive_rows.get(tx, archive_id))


async def create_archive(
    database: Database, catalog: Catalog, default_embedding: str | None, request: ArchiveCreate, now_us: int
) -> Archive:
    chosen = await chosen_embedding(catalog, default_embedding, request)
    archive = Archive(
        id=ids.new("archive"),
        name=request.name,
        description=request.description,
        embedding=chosen.handle or model_in(chosen.config),
        embedding_config=chosen.config,
        created_us=now_us,
        updated_us=now_us,
    )
    await database.write(lambda tx: archive_rows.insert(tx, archive))
    return archive


async def update_archive(database: Database, archive_id: str, request: ArchiveUpdate, now_us: int) -> Archive:
    sent = {name: getattr(request, name) for name in request.model_fields_set}
    changes = {name: value for name, value in sent.items() if value is not None or name == "description"}

    async def write(tx: Transaction) -> Archive:
        archive = await archive_rows.get(tx, archive_id)
        changed = msgspec.structs.replace(archive, **changes, updated_us=now_us)
        await archive_rows.update_archive(tx, changed)
        return changed

    return await database.write(write)


async def delete_archive(database: Database, archival: ArchivalMemory, archive_id: str, now_us: int) -> None:
    await database.write(lambda tx: archive_rows.mark_deleted(tx, archive_id, now_us))
    await archival.clear(archive_id)


async def attach_archive(database: Database, agent_id: str, archive_id: str) -> None:
    _check_archive_id(archive_id)

    async def write(tx: Transaction) -> None:
        await agent_rows.get(tx, agent_id, lock=True)
        await archive_rows.get(tx, archive_id, keep=True)
        await archive_rows.attach(tx, agent_id, archive_id)

    await database.write(write)


async def detach_archive(database: Database, agent_id: str, archive_id: str) -> None:
    _check_archive_id(archive_id)

    async def write(tx: Transaction) -> None:
        await agent_rows.get(tx, agent_id, lock=True)
        await archive_rows.detach(tx, agent_id, archive_id)

    await database.write(write)


async def add_passages(
    archival: ArchivalMemory, archive_id: str, requests: Sequence[PassageCreate]
) -> list[PassageView]:
    archive, added = await archival.add(archive_id, [_new(request, request.metadata) for request in requests])
    return [passage_view(passage, archive) for passage in added]


async def list_memory(database: Database, agent_id: str, page: Page, text: str | None) -> list[PassageView]:
    """Passages of the agent's archive; `text`: only those that hold it."""

    async def read(tx: Transaction) -> list[PassageView]:
        await agent_rows.require(tx, agent_id)
        archive = await archive_rows.of_agent(tx, agent_id)
        if archive is None:
            return []
        listed = await passage_rows.list_of_archive(tx, archive.id, page, text)
        return [passage_view(passage, archive) for passage in listed]

    return await (database.read_long(read) if text is not None else read_page(database, read, page))


async def add_memory(archival: ArchivalMemory, agent_id: str, request: AgentPassageCreate) -> list[PassageView]:
    archive, added = await archival.add_for_agent(agent_id, [_new(request, None)])
    return [passage_view(passage, archive) for passage in added]


async def change_memory(
    archival: ArchivalMemory, agent_id: str, passage_id: str, request: PassageUpdate
) -> list[PassageView]:
    tags = None if request.tags is None else tuple(request.tags)
    changes = PassageChange(text=request.text, tags=tags, metadata=request.metadata)
    archive, changed = await archival.change(agent_id, passage_id, changes)
    return [passage_view(changed, archive)]


async def size_of_vectors(database: Database, unit: StorageUnit) -> float:
    return in_unit(await database.read_long(passage_rows.bytes_of_vectors), unit)


async def delete_passage(database: Database, archival: ArchivalMemory, archive_id: str, passage_id: str) -> None:
    async def write(tx: Transaction) -> None:
        await archive_rows.get(tx, archive_id)
        passage = await passage_rows.find(tx, passage_id)
        if passage is None:
            raise NotFound(f"Agent passage with id {passage_id} not found in database.")
        if passage.archive_id != archive_id:
            raise Invalid(f"The passage {passage_id} is not in the archive {archive_id}.")
        await passage_rows.delete_passage(tx, passage_id)

    await database.write(write)
    archival.forget(archive_id)


async def delete_memory(database: Database, archival: ArchivalMemory, agent_id: str, passage_id: str) -> None:
    async def write(tx: Transaction) -> str:
        await agent_rows.require(tx, agent_id)
        archive = await archive_rows.of_agent(tx, agent_id)
        passage = await passage_rows.find(tx, passage_id)
        if archive is None or passage is None or passage.archive_id != archive.id:
            raise NotFound(f"Passage with id {passage_id} not found in database.")
        await passage_rows.delete_passage(tx, passage_id)
        return archive.id

    archival.forget(await database.write(write))


async def search_memory(
    database: Database, archival: ArchivalMemory, agent_id: str, query: str, most: int | None, **filters: Any
) -> dict[str, Any]:
    """What the agent's own tool would find. Naive dates are in the agent's time zone."""
    agent = await database.read(lambda tx: agent_rows.get(tx, agent_id))
    wanted = _filter(agent.timezone, **filters)
    archive = await archival.of_agent(agent_id)
    passages: list[Passage] = []
    if archive is not None and query.strip():
        limit = min(most or DEFAULT_RESULTS, MOST_RESULTS)
        hits = await archival.search(Search(query=query, archives=(archive,), filter=wanted, limit=limit))
        passages = [hit.passage for hit in hits]
    return {"results": search_results(passages, agent.timezone), "count": len(passages)}


async def search_passages(database: Database, archival: ArchivalMemory, request: PassageSearch) -> list[FoundPassage]:
    wanted = _filter("UTC", request.tags or (), request.tag_match_mode == "all", request.start_date, request.end_date)
    among = await database.read(lambda tx: _searched(tx, request))
    hits = await archival.search(Search(query=request.query, archives=among, filter=wanted, limit=request.limit))
    return await database.read(lambda tx: _shown(tx, hits))


async def _searched(tx: Transaction, request: PassageSearch) -> tuple[Archive, ...] | None:
    if request.agent_id is not None:
        await agent_rows.require(tx, request.agent_id)
        archive = await archive_rows.of_agent(tx, request.agent_id)
        return () if archive is None else (archive,)
    return None if request.archive_id is None else (await archive_rows.get(tx, request.archive_id),)


async def _shown(tx: Transaction, hits: Sequence[Hit]) -> list[FoundPassage]:
    known = await archive_rows.find_many(tx, {hit.passage.archive_id for hit in hits})
    owners = {archive.id: archive for archive in known}
    return [
        {"passage": passage_view(hit.passage, owners.get(hit.passage.archive_id)), "score": hit.score, "metadata": {}}
        for hit in hits
    ]


def _filter(
    timezone: str, tags: Sequence[str], match_all_tags: bool, start: str | None, end: str | None
) -> PassageFilter:
    return PassageFilter(
        tags=tuple(tags),
        match_all_tags=match_all_tags,
        start_us=None if not start else _moments(start, timezone)[0],
        end_us=None if not end else _moments(end, timezone)[1],
    )


def _moments(written: str, timezone: str) -> tuple[int, int]:
    try:
        return moments(written, timezone)
    except ValueError as error:
        raise Unprocessable(
            f"{written!r} is not a date. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)."
        ) from error


def _check_archive_id(archive_id: str) -> None:
    if not ids.is_id("archive", archive_id):
        raise Invalid(f"{archive_id!r} is not the id of an archive.")


def _new(request: AgentPassageCreate, metadata: dict[str, Any] | None) -> NewPassage:
    return NewPassage(
        text=request.text,
        tags=tuple(request.tags or ()),
        metadata=metadata or {},
        created_us=moment_us(request.created_at),
    )

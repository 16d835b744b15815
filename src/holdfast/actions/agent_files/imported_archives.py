"""The archives of an agent file, with the vectors of their passages, which files do not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.agent_files.imported_model import Embeddings
from holdfast.core.records import Archive
from holdfast.engine.archival import ArchivalMemory, NewPassage, PassageWrite, model_in
from holdfast.store import archives as archive_rows
from holdfast.store import passages as passage_rows
from holdfast.store.transaction import Transaction
from holdfast.wire.agent_files import AgentFile
from holdfast.wire.times import optional_microseconds


class ArchivePlan(msgspec.Struct, frozen=True):
    archive: Archive
    passages: PassageWrite
    agent_ids: Sequence[str]


async def planned_archives(
    file: AgentFile, agent_ids: Mapping[str, str], embeddings: Embeddings, archival: ArchivalMemory, now_us: int
) -> list[ArchivePlan]:
    """`agent_ids`: the new ones."""
    plans: list[ArchivePlan] = []
    for local, entry in file.sections.archives.items():
        embedding = await embeddings.of(entry.where, entry.archive)
        archive = Archive(
            id=ids.new("archive"),
            name=entry.archive.name,
            description=entry.archive.description,
            embedding=embedding.handle or model_in(embedding.config),
            embedding_config=embedding.config,
            created_us=now_us,
            updated_us=now_us,
        )
        new = [
            NewPassage(
                text=passage.text,
                tags=tuple(passage.tags or ()),
                metadata=passage.metadata or {},
                created_us=optional_microseconds(passage.created_at),
            )
            for passage in entry.archive.passages
        ]
        with named(entry.where):
            write = await archival.prepared(archive, new)
        users = [agent_ids[each] for each, one in file.agents.items() if local in (one.fields.archive_ids or ())]
        plans.append(ArchivePlan(archive, write, users))
    return plans


async def write_archive(tx: Transaction, plan: ArchivePlan) -> None:
    await archive_rows.insert(tx, plan.archive)
    await passage_rows.insert_many(tx, plan.passages.rows)
    for agent_id in plan.agent_ids:
        await archive_rows.attach(tx, agent_id, plan.archive.id, is_owner=len(plan.agent_ids) == 1)

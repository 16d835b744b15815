"""The folders and archives of an agent file, with their texts, and what the agents see of them.

A folder that is here already, under the same name and with the same files, is shared. Any other is made anew, under
another name if its own is taken: a file does not change what other agents see. Texts are stored with the agents; a
task for each file cuts it into chunks and makes their vectors, as after an upload. The vectors of an archive's passages
are made before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.agent_files.errors import named
from holdfast.actions.agent_files.imported_model import Embeddings
from holdfast.core.chunking import DEFAULT_TOKENS, FEWEST_TOKENS, MOST_TOKENS, Chunker
from holdfast.core.file_types import FileType, file_type, numbered
from holdfast.core.records import LONGEST_NAME, Agent, Archive, File, Folder
from holdfast.core.system_prompt import file_limits
from holdfast.engine.archival import ArchivalMemory, NewPassage, PassageWrite, model_in
from holdfast.engine.ingestion import KIND, TextCutter
from holdfast.errors import Invalid
from holdfast.store import archives as archive_rows
from holdfast.store import attached_files as agent_file_rows
from holdfast.store import files as file_rows
from holdfast.store import folders as folder_rows
from holdfast.store import passages as passage_rows
from holdfast.store import tasks as task_rows
from holdfast.store.attached_files import SeenWindow, Window
from holdfast.store.files import TextPart
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.wire.agent_file_sections import FileDocument, FileWindow, FolderEntry
from holdfast.wire.agent_files import AgentFile
from holdfast.wire.times import microseconds, optional_microseconds

_ALL: Final = Page(limit=None, order="asc")
_PLAIN: Final = FileType("text", "text/plain")
_NAMES_TRIED: Final = 1_000
_PARTS_AT_ONCE: Final = 8
_NO_TEXT: Final = "The agent file does not hold its text. Upload the file again."


class DocumentPlan(msgspec.Struct, frozen=True):
    local: str
    file: File
    parts: Sequence[TextPart]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


class FolderPlan(msgspec.Struct, frozen=True):
    local: str
    where: str
    folder: Folder
    documents: Sequence[DocumentPlan]
    same: Folder | None = None  # the one that was found here
    same_files: Mapping[str, str] = {}  # the ids of its files, by those that they have in the agent file


class StoredFolders(msgspec.Struct, frozen=True):
    """By the ids that they have in the agent file."""

    folders: dict[str, str]
    files: dict[str, str]
    in_folder: dict[str, list[str]]  # files of each folder, in their order
    new_files: list[str]  # ids of those that are ingested now


class PlanFolders:
    def __init__(self, database: Database, embeddings: Embeddings, now_us: int) -> None:
        self._database = database
        self._embeddings = embeddings
        self._now_us = now_us

    async def __call__(self, file: AgentFile, warnings: list[str]) -> list[FolderPlan]:
        plans: list[FolderPlan] = []
        for number, (local, entry) in enumerate(file.sections.folders.items()):
            folder = await self._folder(entry, self._now_us + number)
            with named(entry.where):
                documents = await asyncio.to_thread(self._documents, file, local, folder, warnings)
            plan = FolderPlan(local, entry.where, folder, documents)
            plans.append(await self._database.read_long(lambda tx, plan=plan: _with_same(tx, plan)))
        return plans

    async def _folder(self, entry: FolderEntry, now_us: int) -> Folder:
        told = entry.folder
        embedding = await self._embeddings.of(entry.where, told)
        asked = told.embedding_chunk_size or (embedding.config or {}).get("embedding_chunk_size") or DEFAULT_TOKENS
        return Folder(
            id=ids.new("source"),
            organization_id=ids.DEFAULT_ORG,
            name=told.name,
            description=told.description,
            instructions=told.instructions,
            metadata=told.metadata,
            embedding=embedding.handle or model_in(embedding.config),
            embedding_config=embedding.config,
            chunk_size=min(max(asked, FEWEST_TOKENS), MOST_TOKENS),
            created_us=now_us,
            updated_us=now_us,
        )

    def _documents(self, file: AgentFile, local: str, folder: Folder, warnings: list[str]) -> list[DocumentPlan]:
        """Takes long for long texts: use a thread."""
        plans: list[DocumentPlan] = []
        taken: set[str] = set()
        mine = [(key, entry) for key, entry in file.sections.documents.items() if entry.file.source_id == local]
        for number, (key, entry) in enumerate(mine):
            with named(entry.where):
                name = _free(_base_name(entry.file, folder.name), taken)
            taken.add(name)
            described, parts = _described(entry.file, folder, name, self._now_us + number)
            if entry.file.content is None and entry.file.processing_status != "error":
                warnings.append(f"{entry.where}: the file does not hold its text; upload it again")
            plans.append(DocumentPlan(key, described, parts))
        return plans


async def write_folders(tx: Transaction, plans: Sequence[FolderPlan], warnings: list[str]) -> StoredFolders:
    """In the order of their names, so that two imports at once do not wait for each other's rows."""
    stored = StoredFolders({}, {}, {}, [])
    for plan in sorted(plans, key=lambda plan: plan.folder.name):
        stored.in_folder[plan.local] = [each.local for each in plan.documents]
        if plan.same is not None and await _is_unchanged(tx, plan.same, plan.same_files):
            stored.folders[plan.local] = plan.same.id
            stored.files.update(plan.same_files)
            continue
        names = [plan.folder.name, *(f"{plan.folder.name}_({number})" for number in range(1, _NAMES_TRIED))]
        folder = await folder_rows.insert_under(tx, plan.folder, names)
        if folder.name != plan.folder.name:
            warnings.append(
                f"{plan.where}: a folder of this name with other files is here; this one is {folder.name!r}"
            )
        stored.folders[plan.local] = folder.id
        for each in plan.documents:
            await _write_document(tx, each, stored)
    return stored


async def attach_folders(
    tx: Transaction, agent: Agent, locals_: Sequence[str], windows: Sequence[FileWindow], stored: StoredFolders
) -> None:
    """The agent sees their files as it saw them before; if the file does not say how, the newest are open."""
    for local in locals_:
        await folder_rows.attach(tx, agent.id, stored.folders[local])
    seen = {each.file_id: each for each in windows}
    has = [local for folder in locals_ for local in stored.in_folder[folder]]
    order = [*(local for local in seen if local in has), *(local for local in has if local not in seen)]
    opened = _opened(agent, order, seen)
    rows = [_seen(stored.files[local], seen.get(local), is_open=local in opened) for local in order]
    await agent_file_rows.add_seen(tx, agent.id, rows, agent.created_us)


def _opened(agent: Agent, order: Sequence[str], seen: Mapping[str, FileWindow]) -> set[str]:
    """As many as the agent may have open, those that were opened last."""
    wanted = [local for local in order if not seen or (local in seen and seen[local].is_open)]
    if seen:
        wanted.sort(key=lambda local: _accessed_us(seen[local]) or 0)
    most = file_limits(agent).most_open
    return set(wanted[max(0, len(wanted) - most) :]) if most else set()


def _seen(file_id: str, told: FileWindow | None, *, is_open: bool) -> SeenWindow:
    if told is None:
        return SeenWindow(Window(file_id), is_open, None)
    first = told.start_line or None
    last = None if told.end_line is None else max(told.end_line, first or 1)
    window = Window(file_id, first, last) if is_open else Window(file_id)
    return SeenWindow(window, is_open, _accessed_us(told))


def _accessed_us(told: FileWindow) -> int | None:
    return None if told.last_accessed_at is None else microseconds(told.last_accessed_at)


async def _write_document(tx: Transaction, plan: DocumentPlan, stored: StoredFolders) -> None:
    await file_rows.insert(tx, plan.file)
    stored.files[plan.local] = plan.file.id
    for begin in range(0, len(plan.parts), _PARTS_AT_ONCE):
        await file_rows.add_text(tx, plan.file.id, plan.parts[begin : begin + _PARTS_AT_ONCE])
    if plan.file.status == "embedding":
        await task_rows.add(tx, KIND, plan.file.id)
        stored.new_files.append(plan.file.id)


async def _with_same(tx: Transaction, plan: FolderPlan) -> FolderPlan:
    """With the folder that is here already, if there is one."""
    found = await folder_rows.find_named(tx, ids.DEFAULT_ORG, plan.folder.name)
    if found is None:
        return plan
    folder = await folder_rows.get(tx, found)
    known = {file.name: file for file in await file_rows.list_of_folder(tx, found, _ALL)}
    if _told(folder) != _told(plan.folder) or known.keys() != {each.file.name for each in plan.documents}:
        return plan
    for each in plan.documents:
        other = known[each.file.name]
        if other.status in ("pending", "parsing") or _content(other) != _content(each.file):
            return plan
        if await file_rows.whole_text(tx, other.id) != each.text:
            return plan
    return msgspec.structs.replace(
        plan, same=folder, same_files={each.local: known[each.file.name].id for each in plan.documents}
    )


async def _is_unchanged(tx: Transaction, folder: Folder, files: Mapping[str, str]) -> bool:
    """Texts of files never change: it has the same files, or others."""
    known = (await folder_rows.find_many(tx, [folder.id])).get(folder.id)
    if known is None or _told(known) != _told(folder):
        return False
    return {file.id for file in await file_rows.list_of_folder(tx, folder.id, _ALL)} == set(files.values())


def _told(folder: Folder) -> tuple[object, ...]:
    return (
        folder.name,
        folder.description,
        folder.instructions,
        folder.metadata,
        folder.embedding,
        folder.embedding_config,
        folder.chunk_size,
    )


def _content(file: File) -> tuple[object, ...]:
    return file.original_name, file.kind, file.media_type, file.size, file.lines


def _described(told: FileDocument, folder: Folder, name: str, now_us: int) -> tuple[File, list[TextPart]]:
    original = _last_part(told.original_file_name or name)[:LONGEST_NAME] or name
    found = file_type(original, told.file_type) or _PLAIN
    text = (told.content or "").replace("\r\n", "\n").replace("\r", "\n")
    cutter = TextCutter(Chunker(found.kind, folder.chunk_size))
    parts = [*cutter.feed(text), *cutter.finish()]
    has_text = told.content is not None
    file = File(
        id=ids.new("file"),
        folder_id=folder.id,
        name=name,
        original_name=original,
        kind=found.kind,
        media_type=found.media_type,
        size=len(text.encode()) if told.file_size is None else told.file_size,
        status="embedding" if has_text else "error",
        error=None if has_text else told.error_message or _NO_TEXT,
        total_chunks=cutter.chunks if has_text else None,
        lines=cutter.lines,
        created_us=now_us,
        updated_us=now_us,
    )
    return file, parts


def _base_name(told: FileDocument, folder_name: str) -> str:
    """Files are named with their folder."""
    name = _last_part((told.file_name or told.original_file_name or "").removeprefix(f"{folder_name}/"))
    if not name:
        raise Invalid("it has no name")
    if len(name) > LONGEST_NAME:
        raise Invalid(f"its name has {len(name)} characters; at most {LONGEST_NAME} are accepted")
    return name


def _last_part(name: str) -> str:
    return name.replace("\\", "/").rpartition("/")[2].strip()


def _free(name: str, taken: Iterable[str]) -> str:
    number, free = 0, name
    while free in taken:
        number += 1
        free = numbered(name, number)
    return free


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

"""Ingestion: reads the text of an uploaded file, cuts it into chunks, and stores them with their vectors.

It can end anywhere and go on elsewhere: the text is stored whole before the first chunk, chunks follow from the text,
and how many are stored is on record with them. It is a task (`engine/tasks.py`), so each write is fenced by the task's
lease; and it holds the file's row, so that nothing is written for a file that was deleted meanwhile. Vectors are a
help, not a condition: where the embedding model cannot be had, chunks are found by their words, and get their vectors
with the next file of the folder.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from holdfast import ids
from holdfast.core.chunking import Chunker
from holdfast.core.file_types import Kind
from holdfast.core.records import File, Folder
from holdfast.engine.archival import ArchivalMemory, NewPassage, PassageWrite, batch_size, store_passages
from holdfast.engine.attached_files import open_windows
from holdfast.engine.clock import Clock
from holdfast.engine.tasks import HeldTask
from holdfast.errors import HoldfastError
from holdfast.store import attached_files, files, folders
from holdfast.store.attached_files import Window
from holdfast.store.files import TextPart
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.documents.child import ChildLimits
from holdfast.tools.documents.parse import CannotParse, parse

KIND: Final = "ingest_file"  # of the task; its subject is the file
_PART_CHARS: Final = 64 * 1024  # of text
_PARTS_AT_ONCE: Final = 8
_CHUNKS_AT_ONCE: Final = 200  # that get no vectors

log = logging.getLogger(__name__)


class FileGone(HoldfastError):
    """It was deleted, or its folder was: nothing is left to do."""


class IngestionLimits(msgspec.Struct, frozen=True, kw_only=True):
    parser: ChildLimits = ChildLimits()
    most_text_bytes: int = 100 << 20


class Ingestion:
    def __init__(self, database: Database, archival: ArchivalMemory, clock: Clock, limits: IngestionLimits) -> None:
        self._database = database
        self._archival = archival
        self._clock = clock
        self._limits = limits

    async def perform(self, held: HeldTask) -> None:
        """Until the file is completed, or cannot be read, or is gone."""
        work = _FileWork(self._database, self._clock, held)
        try:
            file = await work.change()
            if file.status in ("pending", "parsing"):
                file = await self._parse(work)
            await work.forget_bytes()
            if file.status == "embedding":
                await self._embed(work)
        except FileGone as gone:
            log.info("%s while it was ingested", gone)

    async def give_up(self, held: HeldTask, error: Exception) -> None:
        """What was read stays, and can be opened and searched."""
        reason = error.message if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
        work = _FileWork(self._database, self._clock, held)
        try:
            await work.forget_bytes()
            await work.finish(
                status="error", error=f"Ingestion failed: {reason} Upload the file again to have it tried again."
            )
        except FileGone as gone:
            log.info("%s while it was ingested", gone)

    async def _parse(self, work: _FileWork) -> File:
        file = await work.change(status="parsing")
        await work.forget_text()
        folder = await self._database.read(lambda tx: folders.get(tx, file.folder_id))
        kind = cast("Kind", file.kind)
        cutter = TextCutter(Chunker(kind, folder.chunk_size))
        text = _TextWriter(work, cutter)
        try:
            await parse(kind, work.uploaded(file.size), self._limits.parser, self._limits.most_text_bytes, text.add)
        except CannotParse as error:
            await work.forget_text()
            return await work.change(status="error", error=f"The file cannot be read: {error.message}")
        await text.finish()
        return await work.change(
            _open_for_agents, status="embedding", total_chunks=cutter.chunks, lines=cutter.lines, chunks_stored=0
        )

    async def _embed(self, work: _FileWork) -> None:
        file = await work.change()
        folder = await self._database.read(lambda tx: folders.get(tx, file.folder_id))
        chunker = Chunker(cast("Kind", file.kind), folder.chunk_size)
        at_once = batch_size(folder.archive) if folder.embedding else _CHUNKS_AT_ONCE
        stored, reachable = file.chunks_stored, True
        async for texts in _batches(work, chunker, stored, at_once):
            reachable = await self._store(work, folder, file, stored, texts, embed=reachable)
            stored += len(texts)
        if folder.embedding:
            await self._catch_up(work, folder)
        await self._complete(work, folder)

    async def _store(
        self, work: _FileWork, folder: Folder, file: File, first: int, texts: Sequence[str], *, embed: bool
    ) -> bool:
        """Whether the embedding model could be had. `first`: the number of the first of these chunks."""
        new = [
            NewPassage(
                text=text,
                id=ids.derive("passage", file.id, first + place),
                file_id=file.id,
                created_us=file.created_us + first + place,  # they are listed in the order of the text
            )
            for place, text in enumerate(texts)
        ]
        write = await self._archival.prepared(folder.archive, new, embed=embed)
        embedded = len(new) - write.awaiting if folder.embedding else 0
        await work.change(_storing(write, {file.id: embedded}), chunks_stored=first + len(new))
        return not write.awaiting

    async def _catch_up(self, work: _FileWork, folder: Folder) -> None:
        """Chunks of the folder that wait for their vectors, if the model can be had again."""
        while (late := await self._archival.prepared(folder.archive, ())).late:
            await work.change(_storing(late))

    async def _complete(self, work: _FileWork, folder: Folder) -> None:
        file = await work.change()
        without = (file.total_chunks or 0) - file.chunks_embedded
        note = None
        if folder.embedding and without:
            note = (
                f"{without} of {file.total_chunks} chunks have no vector, because the embedding model "
                f"{folder.embedding} could not be reached: they are found by their words, and get their vectors with "
                "the next file of this folder."
            )
        await work.finish(status="completed", error=note)


class _FileWork:
    """What is written of one file: fenced, and only while the file is there."""

    def __init__(self, database: Database, clock: Clock, held: HeldTask) -> None:
        self._database = database
        self._clock = clock
        self._held = held
        self._file_id = held.task.subject_id

    async def change(self, *more: _Write, **fields: Any) -> File:
        """The file as it is afterwards."""
        return await self._held.write(lambda tx: self._change(tx, more, fields))

    async def finish(self, **fields: Any) -> None:
        await self._held.finish(lambda tx: self._change(tx, (), fields))

    async def _change(self, tx: Transaction, more: Sequence[_Write], fields: Mapping[str, Any]) -> File:
        file = await files.find(tx, self._file_id, lock=True)
        if file is None:
            raise FileGone(f"the file {self._file_id} was deleted")
        for write in more:
            await write(tx, file, self._clock.now_us())
        if fields:
            if more:  # chunks of this very file may have been counted
                file = await files.find(tx, self._file_id) or file
            file = msgspec.structs.replace(file, **fields, updated_us=self._clock.now_us())
            await files.save_progress(tx, file)
        return file

    async def uploaded(self, size: int) -> AsyncIterator[bytes]:
        number = found = 0
        while (part := await self._read_bytes(number)) is not None:
            yield part
            number += 1
            found += len(part)
        if found != size:
            raise CannotParse("parts of it are missing; upload it again.")

    async def _read_bytes(self, number: int) -> bytes | None:
        return await self._database.read(lambda tx: files.bytes_part(tx, self._file_id, number))

    async def text(self) -> AsyncIterator[str]:
        number = 0
        while (part := await self._read_text(number)) is not None:
            yield part
            number += 1

    async def _read_text(self, number: int) -> str | None:
        return await self._database.read(lambda tx: files.text_part(tx, self._file_id, number))

    async def forget_text(self) -> None:
        await self._in_parts(files.forget_text)

    async def forget_bytes(self) -> None:
        await self._in_parts(files.forget_bytes)

    async def _in_parts(self, forget: Callable[[Transaction, str], Coroutine[Any, Any, bool]]) -> None:
        while not await self._held.write(lambda tx: forget(tx, self._file_id)):
            pass


_Write = Callable[[Transaction, File, int], Awaitable[None]]


class TextCutter:
    """Cuts a text into the parts that it is stored in, which end with a line where that is possible, and counts."""

    def __init__(self, chunker: Chunker) -> None:
        self._chunker = chunker
        self._rest = ""
        self._number = 0
        self._line = 1  # in which the next part begins
        self._ends_line = True
        self.chunks = 0

    @property
    def lines(self) -> int:
        return self._line - 1 + (not self._ends_line)

    def feed(self, text: str) -> list[TextPart]:
        """The parts that are complete by now."""
        self.chunks += len(self._chunker.feed(text))
        self._rest += text
        found: list[TextPart] = []
        start = 0
        while len(self._rest) - start >= _PART_CHARS:
            end = self._rest.rfind("\n", start + _PART_CHARS // 2, start + _PART_CHARS) + 1 or start + _PART_CHARS
            found.append(self._part(self._rest[start:end]))
            start = end
        self._rest = self._rest[start:]
        return found

    def finish(self) -> list[TextPart]:
        self.chunks += len(self._chunker.finish())
        return [self._part(self._rest)] if self._rest else []

    def _part(self, text: str) -> TextPart:
        part = TextPart(self._number, self._line, text)
        self._number += 1
        self._line += text.count("\n")
        self._ends_line = text.endswith("\n")
        return part


class _TextWriter:
    """Stores a text while it is read."""

    def __init__(self, work: _FileWork, cutter: TextCutter) -> None:
        self._work = work
        self._cutter = cutter
        self._ready: list[TextPart] = []

    async def add(self, text: str) -> None:
        self._ready += await asyncio.to_thread(self._cutter.feed, text)
        if len(self._ready) >= _PARTS_AT_ONCE:
            await self._store()

    async def finish(self) -> None:
        self._ready += self._cutter.finish()
        await self._store()

    async def _store(self) -> None:
        ready, self._ready = self._ready, []

        async def write(tx: Transaction, file: File, _: int) -> None:
            await files.add_text(tx, file.id, ready)

        await self._work.change(write)


async def _batches(work: _FileWork, chunker: Chunker, stored: int, at_once: int) -> AsyncIterator[list[str]]:
    """The chunks of the text, without those that are stored."""
    waiting: list[str] = []
    async for part in work.text():
        waiting += await asyncio.to_thread(chunker.feed, part)
        if stored:
            waiting, stored = waiting[stored:], max(0, stored - len(waiting))
        while len(waiting) >= at_once:
            yield waiting[:at_once]
            waiting = waiting[at_once:]
    waiting = (waiting + chunker.finish())[stored:]
    if waiting:
        yield waiting


def _storing(write: PassageWrite, embedded: Mapping[str, int] = {}) -> _Write:
    """Late vectors may be those of other files of the folder."""
    late = Counter(passage.file_id for passage in write.late if passage.file_id)

    async def store(tx: Transaction, _: File, __: int) -> None:
        await store_passages(tx, write)
        await files.count_embedded(tx, late + Counter(embedded))

    return store


async def _open_for_agents(tx: Transaction, file: File, now_us: int) -> None:
    """Agents that have its folder see it at once."""
    for agent_id in await folders.agents_of(tx, file.folder_id):
        if await attached_files.find(tx, agent_id, file.id) is not None:
            await open_windows(tx, agent_id, [Window(file.id)], now_us)

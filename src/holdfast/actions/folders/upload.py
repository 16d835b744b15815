"""Upload a file: its bytes are stored as they come in, and then, in one transaction, the file and its ingestion."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from holdfast import ids
from holdfast.actions.folders.records import mark_file_deleted
from holdfast.core.file_types import FileType, file_type, numbered
from holdfast.core.records import LONGEST_NAME, File
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.clock import Clock
from holdfast.engine.ingestion import KIND
from holdfast.engine.retention import clear_file
from holdfast.engine.tasks import TaskWorker
from holdfast.errors import Conflict, Invalid, RequestError, TooLarge, UnsupportedFile
from holdfast.store import attached_files as agent_file_rows
from holdfast.store import files as file_rows
from holdfast.store import folders as folder_rows
from holdfast.store import tasks as task_rows
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.documents.parse import missing_parser
from holdfast.wire.folders import DuplicateHandling, FileContent, FileView, file_view

_PART_BYTES: Final = 1 << 20
_MOST_NUMBERED: Final = 10_000


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is coming in."""

    name: str
    content_type: str | None
    content: AsyncIterator[bytes]


class Uploaded(msgspec.Struct, frozen=True):
    view: FileView
    skipped: bool = False


class _Stored(msgspec.Struct, frozen=True):
    file: File
    replaced: str | None = None
    is_new: bool = True


class UploadFile:
    def __init__(
        self, database: Database, archival: ArchivalMemory, tasks: TaskWorker, clock: Clock, most_bytes: int
    ) -> None:
        self._database = database
        self._archival = archival
        self._tasks = tasks
        self._clock = clock
        self._most_bytes = most_bytes

    async def __call__(self, folder_id: str, upload: Upload, handling: DuplicateHandling, name: str | None) -> Uploaded:
        known_as = _checked(_path(name) if name else _path(upload.name)[-1:])
        found = _type_of(known_as, upload)
        known = await self._database.read(lambda tx: _known(tx, folder_id, known_as, handling))
        if known is not None:  # nobody reads what is not kept
            return Uploaded(file_view(FileContent(known)), skipped=True)
        file_id = ids.new("file")
        size = await self._take(file_id, upload.content)
        now_us = self._clock.now_us()
        file = File(
            id=file_id,
            folder_id=folder_id,
            name=known_as,
            original_name=known_as,
            kind=found.kind,
            media_type=found.media_type,
            size=size,
            created_us=now_us,
            updated_us=now_us,
        )
        stored = await self._stored(file, handling, now_us)
        if not stored.is_new:
            await self._discard(file_id)
            return Uploaded(file_view(FileContent(stored.file)), skipped=True)
        self._tasks.wake()
        if stored.replaced is not None:
            await clear_file(self._database, self._archival, folder_id, stored.replaced)
        return Uploaded(file_view(FileContent(stored.file)))

    async def _stored(self, file: File, handling: DuplicateHandling, now_us: int) -> _Stored:
        """Where it is not known whether it was stored, its parts are left alone: if it was not, retention finds them by
        their age."""
        try:
            return await self._database.write(lambda tx: _store(tx, file, handling, now_us))
        except RequestError:
            await self._discard(file.id)
            raise

    async def _take(self, file_id: str, content: AsyncIterator[bytes]) -> int:
        """Stores what comes in, in parts. How much it was. If it ends early, or is too much, nothing stays."""
        complete = False
        try:
            size = await self._take_parts(file_id, content)
            complete = True
            return size
        finally:
            if not complete:
                await self._discard(file_id)

    async def _take_parts(self, file_id: str, content: AsyncIterator[bytes]) -> int:
        size, number, waiting = 0, 0, bytearray()
        async for piece in content:
            size += len(piece)
            if size > self._most_bytes:
                raise TooLarge(
                    f"The file is larger than {self._most_bytes} bytes, the most this server accepts "
                    "(HOLDFAST_MAX_FILE_BYTES). Split it."
                )
            waiting += piece
            if len(waiting) >= _PART_BYTES:
                await self._add_part(file_id, number, bytes(waiting))
                number += 1
                waiting.clear()
        if waiting:
            await self._add_part(file_id, number, bytes(waiting))
        return size

    async def _add_part(self, file_id: str, number: int, part: bytes) -> None:
        now_us = self._clock.now_us()
        await self._database.write(lambda tx: file_rows.add_bytes(tx, file_id, number, part, now_us))

    async def _discard(self, file_id: str) -> None:
        while not await self._database.write(lambda tx: file_rows.forget_bytes(tx, file_id)):
            pass


def _path(name: str) -> list[str]:
    return [part for part in (part.strip() for part in name.replace("\\", "/").split("/")) if part]


def _checked(path: list[str]) -> str:
    """A name that the caller chose may have folders in it; what a program calls its file ends with the file's own."""
    name = "/".join(path)
    if not name or "\x00" in name:
        raise Invalid("The file has no name: send one with it, or as the parameter name.")
    if {".", ".."} & set(path):
        raise Invalid(f"The name {name!r} leads elsewhere: leave out '.' and '..'.")
    if len(name) > LONGEST_NAME:
        raise Invalid(f"The name of the file has {len(name)} characters; at most {LONGEST_NAME} are accepted.")
    return name


def _type_of(name: str, upload: Upload) -> FileType:
    found = file_type(name, upload.content_type) or file_type(upload.name, None)
    if found is None:
        raise UnsupportedFile(
            f"Files such as {name!r} ({upload.content_type or 'without a content type'}) cannot be read. Upload text, "
            "Markdown, HTML, JSON, CSV, source code, PDF or DOCX."
        )
    if (missing := missing_parser(found.kind)) is not None:
        raise UnsupportedFile(missing)
    return found


async def _known(tx: Transaction, folder_id: str, name: str, handling: DuplicateHandling) -> File | None:
    """The file that makes this one superfluous."""
    await folder_rows.get(tx, folder_id)
    known = await file_rows.find_original(tx, folder_id, name) if handling in ("skip", "error") else None
    if known is not None and handling == "error":
        raise Invalid(f"A file with the name {name!r} already exists there: rename it, or choose duplicate_handling.")
    return known


async def _store(tx: Transaction, file: File, handling: DuplicateHandling, now_us: int) -> _Stored:
    await folder_rows.get(tx, file.folder_id, lock=True)  # whoever attaches it now sees the file, or is seen here
    known = await _known(tx, file.folder_id, file.original_name, handling)
    if known is not None:
        return _Stored(known, is_new=False)
    replaced: str | None = None
    if handling == "replace":
        old = await file_rows.find_original(tx, file.folder_id, file.original_name)
        if old is not None:
            replaced = old.id
            await mark_file_deleted(tx, file.folder_id, old.id, now_us)
            file = msgspec.structs.replace(file, name=old.name)
    file = await _insert(tx, file)
    await agent_file_rows.add_file(tx, await folder_rows.agents_of(tx, file.folder_id), file.id, now_us)
    await task_rows.add(tx, KIND, file.id)
    return _Stored(file, replaced)


async def _insert(tx: Transaction, file: File) -> File:
    """Under its name, or with a number if another file has it."""
    number = 0
    named = file
    while not await file_rows.insert(tx, named):
        number += 1
        if number > _MOST_NUMBERED:
            raise Conflict(f"There are too many files with the name {file.name!r} in this folder: choose another name.")
        named = msgspec.structs.replace(file, name=numbered(file.name, number))
    return named

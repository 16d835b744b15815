"""Files: their rows, the bytes that were uploaded, the text that was read from them.

Nothing here reads or writes a whole file at once, and a deletion goes in parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import BigInteger, Delete, Integer, Table, bindparam, delete, select, update

from holdfast.core.changes import Change
from holdfast.core.records import File
from holdfast.errors import NotFound
from holdfast.store import attached_files
from holdfast.store.archive_tables import file_bytes, file_texts, files, folders, passages
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Parameters, Row, Transaction

_FIELDS = File.__struct_fields__
_COLUMNS = tuple(files.columns[name] for name in _FIELDS)
_PROGRESS = ("status", "error", "total_chunks", "chunks_stored", "chunks_embedded", "lines", "updated_us")
PASSAGES_AT_ONCE: Final = 500
PARTS_AT_ONCE: Final = 20  # of bytes or of text
_LIVE = files.c.deleted_us.is_(None)
_IN_LIVE_FOLDER = files.c.folder_id.in_(select(folders.c.id).where(folders.c.deleted_us.is_(None)))
_INSERT = insert_or_ignore(files)
_ONE = select(*_COLUMNS).where(files.c.id == bindparam("id"), _LIVE, _IN_LIVE_FOLDER)
_ONE_LOCKED = _ONE.with_for_update()
_OF_ORIGINAL_NAME = (
    select(*_COLUMNS)
    .where(files.c.folder_id == bindparam("folder_id"), files.c.original_name == bindparam("original_name"), _LIVE)
    .order_by(files.c.created_us, files.c.id)
    .limit(1)
)
_NAMED = select(files.c.id).where(files.c.folder_id == bindparam("folder_id"), files.c.name == bindparam("name"), _LIVE)
_UPDATE = (
    update(files)
    .where(files.c.id == bindparam("of_file"))
    .values({files.columns[name]: bindparam(f"new_{name}") for name in _PROGRESS})
)
_EMBEDDED = (
    update(files)
    .where(files.c.id == bindparam("of_file"))
    .values(chunks_embedded=files.c.chunks_embedded + bindparam("more", type_=Integer()))
)
_MARK = update(files).where(files.c.id == bindparam("of_file")).values(deleted_us=bindparam("now_us"))
_MARKED = select(files.c.id).where(files.c.deleted_us.is_not(None))
_OF_FOLDER = select(files.c.id).where(files.c.folder_id == bindparam("folder_id")).limit(1)
_UNFINISHED = select(files.c.id).where(
    files.c.folder_id == bindparam("folder_id"), in_array(files.c.status, ("pending", "parsing", "embedding"))
)
_DELETE = delete(files).where(files.c.id == bindparam("id"))
_ADD_BYTES = insert_into(file_bytes)
_BYTES = select(file_bytes.c.bytes).where(
    file_bytes.c.file_id == bindparam("file_id"), file_bytes.c.number == bindparam("number")
)
_CUT_OFF = (
    select(file_bytes.c.file_id)
    .distinct()
    .where(file_bytes.c.created_us < bindparam("before_us"), file_bytes.c.file_id.not_in(select(files.c.id)))
)
_ADD_TEXT = insert_into(file_texts)
_TEXT = select(file_texts.c.text).where(
    file_texts.c.file_id == bindparam("file_id"), file_texts.c.number == bindparam("number")
)
_TEXT_FROM = (
    select(file_texts.c.number, file_texts.c.first_line)
    .where(file_texts.c.file_id == bindparam("file_id"), file_texts.c.first_line <= bindparam("line"))
    .order_by(file_texts.c.first_line.desc(), file_texts.c.number)
    .limit(1)
)


def _some(table: Table, column: str) -> Delete:
    """Deletes at most `at_most` rows of a file."""
    keys = [key for key in table.primary_key.columns if key.name != "file_id"]
    [key] = keys
    chosen = (
        select(key)
        .where(table.columns[column] == bindparam("file_id"))
        .order_by(key)
        .limit(bindparam("at_most", type_=BigInteger()))
    )
    return delete(table).where(table.columns[column] == bindparam("file_id"), key.in_(chosen))


_DELETE_PASSAGES = _some(passages, "file_id")
_DELETE_BYTES = _some(file_bytes, "file_id")
_DELETE_TEXT = _some(file_texts, "file_id")


class TextPart(msgspec.Struct, frozen=True):
    number: int
    first_line: int
    text: str


async def insert(tx: Transaction, file: File) -> bool:
    """False when its folder has a file of that name."""
    inserted = await tx.execute(_INSERT, msgspec.structs.asdict(file))
    if inserted:
        tx.changes.append(Change("file", file.id, file.status, folder_id=file.folder_id))
    return inserted == 1


async def find(tx: Transaction, file_id: str, *, lock: bool = False) -> File | None:
    """`lock` holds off its deletion until the transaction ends. One that is being deleted, or whose folder is, is not
    found."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": file_id})
    return None if row is None else _record(row)


async def get(tx: Transaction, folder_id: str, file_id: str, *, lock: bool = False) -> File:
    file = await find(tx, file_id, lock=lock)
    if file is None or file.folder_id != folder_id:
        raise NotFound(f"File {file_id} not found in folder {folder_id}")
    return file


async def find_original(tx: Transaction, folder_id: str, original_name: str) -> File | None:
    """The first that was uploaded under this name."""
    row = await tx.fetch_one(_OF_ORIGINAL_NAME, {"folder_id": folder_id, "original_name": original_name})
    return None if row is None else _record(row)


async def list_of_folder(tx: Transaction, folder_id: str, page: Page) -> list[File]:
    query = select(*_COLUMNS).where(files.c.folder_id == folder_id, _LIVE)
    return [_record(row) for row in await fetch_page(tx, query, _by_age(folder_id), page)]


async def save_progress(tx: Transaction, file: File) -> None:
    changed = {f"new_{name}": getattr(file, name) for name in _PROGRESS}
    await tx.execute(_UPDATE, {"of_file": file.id, **changed})
    tx.changes.append(Change("file", file.id, file.status, folder_id=file.folder_id))


async def count_embedded(tx: Transaction, more: Mapping[str, int]) -> None:
    """So many chunks of these files have got their vectors late."""
    if more:
        await tx.execute_many(_EMBEDDED, [{"of_file": file_id, "more": found} for file_id, found in more.items()])


async def add_bytes(tx: Transaction, file_id: str, number: int, content: bytes, now_us: int) -> None:
    await tx.execute(_ADD_BYTES, {"file_id": file_id, "number": number, "bytes": content, "created_us": now_us})


async def bytes_part(tx: Transaction, file_id: str, number: int) -> bytes | None:
    """None after the last."""
    row = await tx.fetch_one(_BYTES, {"file_id": file_id, "number": number})
    return None if row is None else bytes(row["bytes"])


async def forget_bytes(tx: Transaction, file_id: str) -> bool:
    """Some of them: False while there are more."""
    return await tx.execute(_DELETE_BYTES, {"file_id": file_id, "at_most": PARTS_AT_ONCE}) < PARTS_AT_ONCE


async def find_cut_off(tx: Transaction, before_us: int) -> list[str]:
    """Uploads of which parts were stored, and never the file."""
    return [row["file_id"] for row in await tx.fetch_all(_CUT_OFF, {"before_us": before_us})]


async def add_text(tx: Transaction, file_id: str, parts: Sequence[TextPart]) -> None:
    rows: list[Parameters] = [{"file_id": file_id, **msgspec.structs.asdict(part)} for part in parts]
    if rows:
        await tx.execute_many(_ADD_TEXT, rows)


async def forget_text(tx: Transaction, file_id: str) -> bool:
    """Some of it: False while there is more."""
    return await tx.execute(_DELETE_TEXT, {"file_id": file_id, "at_most": PARTS_AT_ONCE}) < PARTS_AT_ONCE


async def text_part(tx: Transaction, file_id: str, number: int) -> str | None:
    """None after the last."""
    row = await tx.fetch_one(_TEXT, {"file_id": file_id, "number": number})
    return None if row is None else row["text"]


async def whole_text(tx: Transaction, file_id: str) -> str:
    """For whoever asked for all of it: use `read_long`."""
    parts: list[str] = []
    while (part := await text_part(tx, file_id, len(parts))) is not None:
        parts.append(part)
    return "".join(parts)


async def text_from(tx: Transaction, file_id: str, line: int, characters: int) -> str:
    """From the beginning of this line, counted from 1, at least so many characters, or as many as there are."""
    row = await tx.fetch_one(_TEXT_FROM, {"file_id": file_id, "line": line})
    if row is None:
        return ""
    number, before = row["number"], line - row["first_line"]  # so many lines are to be left out
    if not before and number and not (previous := await text_part(tx, file_id, number - 1) or "").endswith("\n"):
        number, before = number - 1, previous.count("\n")  # this part begins in the middle of the line
    found = ""
    while len(found) <= characters and (part := await text_part(tx, file_id, number)) is not None:
        number += 1
        *left_out, part = part.split("\n", before)
        before -= len(left_out)
        found += "" if before else part
    return found


async def mark_deleted(tx: Transaction, folder_id: str, file_id: str, now_us: int) -> None:
    """No agent sees it from then on. To be followed by `clear`."""
    file = await get(tx, folder_id, file_id, lock=True)
    row: Any = {"id": file.id, "created_us": file.created_us}
    await save_tombstone(tx, row, (_by_age(folder_id),))
    await tx.execute(_MARK, {"of_file": file_id, "now_us": now_us})
    tx.changes.append(Change("file", file_id, "deleted", folder_id=folder_id))
    await attached_files.remove_file(tx, file_id)


async def marked_deleted(tx: Transaction) -> list[str]:
    return [row["id"] for row in await tx.fetch_all(_MARKED)]


async def clear(tx: Transaction, file_id: str) -> bool:
    """Deletes some of what belongs to a file, or the file once it has nothing: then it says True."""
    deleted = await tx.execute(_DELETE_PASSAGES, {"file_id": file_id, "at_most": PASSAGES_AT_ONCE})
    if deleted == PASSAGES_AT_ONCE or not await forget_text(tx, file_id) or not await forget_bytes(tx, file_id):
        return False
    await tx.execute(_DELETE, {"id": file_id})
    return True


async def being_ingested(tx: Transaction, folder_id: str) -> list[str]:
    return [row["id"] for row in await tx.fetch_all(_UNFINISHED, {"folder_id": folder_id})]


async def any_of_folder(tx: Transaction, folder_id: str) -> str | None:
    """The id of a file, also of one that is being deleted."""
    row = await tx.fetch_one(_OF_FOLDER, {"folder_id": folder_id})
    return None if row is None else row["id"]


def _by_age(folder_id: str) -> Ordering:
    return Ordering(
        sort=files.c.created_us,
        id=files.c.id,
        what="File",
        scope=(files.c.folder_id == folder_id,),
        within=folder_id,
    )


def _record(row: Row) -> File:
    return File(**{name: row[name] for name in _FIELDS})

"""Passages: the texts of archives, with their tags and vectors."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from sqlalchemy import bindparam, delete, func, select, update

from holdfast.core.records import Passage
from holdfast.core.search_words import words_of
from holdfast.errors import NotFound
from holdfast.store.archive_tables import agent_archives, passage_tags, passage_vectors, passages
from holdfast.store.blocks import contains_text
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import Statement, in_array, insert_into, insert_or_ignore
from holdfast.store.transaction import Parameters, Row, Transaction
from holdfast.store.vector_distance import code_of

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode

COLUMNS = tuple(passages.columns[name] for name in Passage.__struct_fields__)
_MARKS: Final = ("tags", "metadata", "updated_us")
_ROWS_AT_ONCE: Final = 50  # the driver encodes them in one go, and nothing else runs meanwhile
_BYTES_OF_NUMBER: Final = 4
_INSERT = insert_into(passages)
_INSERT_TAG = insert_into(passage_tags)
_INSERT_VECTOR = insert_or_ignore(passage_vectors)
_ONE = select(*COLUMNS).where(passages.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_MANY = select(*COLUMNS).where(in_array(passages.c.id, "ids"))
_DELETE = (
    delete(passages)
    .where(passages.c.id == bindparam("id"))
    .returning(passages.c.id, passages.c.archive_id, passages.c.created_us)
)
_COUNT_OF_AGENT = (
    select(func.count().label("found"))
    .select_from(passages)
    .join(agent_archives, agent_archives.c.archive_id == passages.c.archive_id)
    .where(agent_archives.c.agent_id == bindparam("agent_id"))
)
_AWAITING = (
    select(*COLUMNS)
    .where(passages.c.archive_id == bindparam("archive_id"), passages.c.awaits_vector)
    .order_by(passages.c.seq)
    .limit(bindparam("most"))
)
_TAKE_OUT = delete(passages).where(passages.c.id == bindparam("id")).returning(*COLUMNS)
_MARK = (
    update(passages)
    .where(passages.c.id == bindparam("passage"))
    .values({name: bindparam(f"new_{name}", type_=passages.c[name].type) for name in _MARKS})
)
_REMOVE_TAGS = delete(passage_tags).where(passage_tags.c.passage_id == bindparam("passage"))
_BYTES = select((func.coalesce(func.sum(passage_vectors.c.dimension), 0) * _BYTES_OF_NUMBER).label("bytes"))
_HAS_VECTOR = update(passages).where(in_array(passages.c.id, "ids")).values(awaits_vector=False)


class PassageRows(msgspec.Struct, frozen=True):
    """Passages with all that is computed from them, ready for a transaction."""

    passages: Sequence[Parameters]
    tags: Sequence[Parameters]
    vectors: Sequence[Parameters]


def rows_of(new: Sequence[Passage], vectors: Mapping[str, bytes], awaiting: Collection[str] = ()) -> PassageRows:
    """`vectors` by passage id; `awaiting` are those whose vector is to be made later. Many long texts take seconds: use
    a thread."""
    return PassageRows(
        [_columns(passage, passage.id in awaiting) for passage in new],
        _tag_rows(new),
        vector_rows(new, vectors),
    )


def _tag_rows(owners: Sequence[Passage]) -> list[Parameters]:
    return [{"passage_id": passage.id, "tag": tag} for passage in owners for tag in dict.fromkeys(passage.tags)]


def vector_rows(owners: Sequence[Passage], vectors: Mapping[str, bytes]) -> list[Parameters]:
    return [_vector(passage, vectors[passage.id]) for passage in owners if passage.id in vectors]


async def insert_many(tx: Transaction, rows: PassageRows) -> None:
    await _insert_in_parts(tx, _INSERT, rows.passages)
    await _insert_in_parts(tx, _INSERT_TAG, rows.tags)
    await _add_vectors(tx, rows.vectors)


async def add_late_vectors(tx: Transaction, late: Sequence[Passage], rows: Sequence[Parameters]) -> None:
    """Of those that have waited, with their `vector_rows`. A passage that was deleted or changed meanwhile gets
    none."""
    stored = await find_many(tx, [passage.id for passage in late])
    same = {passage.id for passage in late if passage.id in stored and stored[passage.id].text == passage.text}
    await _add_vectors(tx, [row for row in rows if row["passage_id"] in same])
    await tx.execute(_HAS_VECTOR, {"ids": sorted(same)})


async def _add_vectors(tx: Transaction, rows: Sequence[Parameters]) -> None:
    """For passages that are stored. One that has a vector keeps it."""
    for part in _parts(rows):
        await tx.execute_many(_INSERT_VECTOR, [{**row, "vector": _stored_vector(tx, row["vector"])} for row in part])


async def _insert_in_parts(tx: Transaction, statement: Statement, rows: Sequence[Parameters]) -> None:
    for part in _parts(rows):
        await tx.execute_many(statement, part)


def _parts(rows: Sequence[Parameters]) -> Iterator[Sequence[Parameters]]:
    return (rows[first : first + _ROWS_AT_ONCE] for first in range(0, len(rows), _ROWS_AT_ONCE))


async def awaiting_vectors(tx: Transaction, archive_id: str, most: int) -> list[Passage]:
    rows = await tx.fetch_all(_AWAITING, {"archive_id": archive_id, "most": most})
    return [_record(row) for row in rows]


async def find(tx: Transaction, passage_id: str, *, lock: bool = False) -> Passage | None:
    """`lock` keeps it as it is until the transaction ends."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": passage_id})
    return None if row is None else _record(row)


async def find_many(tx: Transaction, passage_ids: Collection[str]) -> dict[str, Passage]:
    rows = await tx.fetch_all(_MANY, {"ids": list(passage_ids)})
    return {row["id"]: _record(row) for row in rows}


async def delete_passage(tx: Transaction, passage_id: str) -> None:
    row = await tx.fetch_one(_DELETE, {"id": passage_id})
    if row is None:
        raise NotFound(f"Passage with id {passage_id} not found in database.")
    await save_tombstone(tx, row, (_by_age(row["archive_id"]),))


async def take_out(tx: Transaction, passage_id: str) -> Passage | None:
    """As it was stored, with its tags and its vector gone too. For whoever puts it back with another text: lists keep
    its place, because its id and its age stay."""
    row = await tx.fetch_one(_TAKE_OUT, {"id": passage_id})
    return None if row is None else _record(row)


async def mark(tx: Transaction, passage: Passage) -> None:
    """Store its tags and metadata as they are now. Its text has not changed, nor what finds it by that."""
    new = {name: value for name, value in _columns(passage, awaits_vector=False).items() if name in _MARKS}
    await tx.execute(_MARK, {"passage": passage.id, **{f"new_{name}": value for name, value in new.items()}})
    await tx.execute(_REMOVE_TAGS, {"passage": passage.id})
    await _insert_in_parts(tx, _INSERT_TAG, _tag_rows((passage,)))


async def bytes_of_vectors(tx: Transaction) -> int:
    """Of all that are stored. Takes long when there are many: use `read_long`."""
    row = await tx.fetch_one(_BYTES)
    return 0 if row is None else int(row["bytes"])


async def list_of_archive(tx: Transaction, archive_id: str, page: Page, text: str | None) -> list[Passage]:
    """`text` is found anywhere in a passage, whatever its case."""
    query = select(*COLUMNS).where(passages.c.archive_id == archive_id)
    if text:
        query = query.where(contains_text(passages.c.text, text))
    return [_record(row) for row in await fetch_page(tx, query, _by_age(archive_id), page)]


def _by_age(archive_id: str) -> Ordering:
    return Ordering(
        sort=passages.c.created_us,
        id=passages.c.id,
        what="Passage",
        scope=(passages.c.archive_id == archive_id,),
        within=archive_id,
    )


async def count_of_agent(tx: Transaction, agent_id: str) -> int:
    row = await tx.fetch_one(_COUNT_OF_AGENT, {"agent_id": agent_id})
    return row["found"] if row else 0


def vector_of(stored: Any) -> bytes:
    """PostgreSQL keeps an array, SQLite its bytes."""
    return array("f", cast("list[float]", stored)).tobytes() if isinstance(stored, list) else bytes(stored)


def _stored_vector(tx: Transaction, vector: bytes) -> bytes | list[float]:
    return vector if tx.dialect == "sqlite" else array("f", vector).tolist()


def _vector(passage: Passage, vector: bytes) -> dict[str, Any]:
    return {
        "passage_id": passage.id,
        "archive_id": passage.archive_id,
        "dimension": len(array("f", vector)),
        "code": code_of(vector),
        "vector": vector,
    }


def _columns(passage: Passage, awaits_vector: bool) -> dict[str, Any]:
    return {
        "id": passage.id,
        "archive_id": passage.archive_id,
        "text": passage.text,
        "words": " ".join(words_of(passage.text)),
        "tags": _encode(passage.tags).decode(),
        "metadata": _encode(passage.metadata).decode(),
        "awaits_vector": awaits_vector,
        "created_us": passage.created_us,
        "updated_us": passage.updated_us,
        "file_id": passage.file_id,
    }


def _record(row: Row) -> Passage:
    passage_id, archive_id, text, tags, metadata, created_us, updated_us, file_id, *_ = row
    return Passage(
        id=passage_id,
        archive_id=archive_id,
        text=text,
        tags=_decode_tags(tags),
        metadata=_decode(metadata),
        created_us=created_us,
        updated_us=updated_us,
        file_id=file_id,
    )

"""Finds passages: by their words, by their vectors, by a piece of their text. Filters come before limits.

All of it may take long: use `read_long`.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Text, column, func, literal, literal_column, select, table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from holdfast.core.records import Passage
from holdfast.store import passages as passage_rows
from holdfast.store.archive_tables import VECTOR, archives, folders, passage_tags, passage_vectors, passages
from holdfast.store.blocks import contains_text, tagged
from holdfast.store.statements import in_array
from holdfast.store.transaction import Transaction
from holdfast.store.vector_distance import code_of, similarities
from holdfast.store.vector_index import VectorIndex

# How many of those with the nearest codes are compared exactly, at least and for each result that is asked for.
_FEWEST_COMPARED: Final = 200
_COMPARED_PER_RESULT: Final = 4
_MOST_RANKED: Final = 10_000  # texts; a word that is in nearly all of them does not narrow the search, and costs most
_TOO_FEW: Final = 5
_WORDS = table("passage_words", column("rowid"), column("rank"))
_KNOWN = table("passage_words_known", column("term"), column("doc"))
_COUNTS = select(_KNOWN.c.term, _KNOWN.c.doc).where(in_array(_KNOWN.c.term, "words"))
_LEXEMES: ColumnElement[Any] = literal_column("passages.lexemes")  # which only PostgreSQL has
_SHORT_FIRST: Final = 1  # of two texts that have a word equally often: PostgreSQL's normalisation by length
_EXTENSIONS = table("pg_extension", column("extname"))
_UNSEEN = select(archives.c.id).where(archives.c.deleted_us.is_not(None)).union_all(select(folders.c.id))
_GONE = select(passages.c.seq).where(passages.c.archive_id.in_(_UNSEEN))
_PGVECTOR = select(_EXTENSIONS.c.extname).where(_EXTENSIONS.c.extname == "vector")


class PassageFilter(msgspec.Struct, frozen=True, kw_only=True):
    archive_ids: tuple[str, ...] | None = None  # None: all archives that are not being deleted, and no folder
    tags: tuple[str, ...] = ()
    match_all_tags: bool = False
    start_us: int | None = None
    end_us: int | None = None

    @property
    def narrows(self) -> bool:
        """Beyond the archives."""
        return bool(self.tags) or self.start_us is not None or self.end_us is not None


class cosine_distance(FunctionElement[float]):
    """pgvector's, between a column of numbers and a list given as one parameter."""

    inherit_cache = True


@compiles(cosine_distance, "postgresql")
def _cosine_distance(element: cosine_distance, compiler: SQLCompiler, **options: Any) -> str:
    stored, given = element.clauses
    return (
        f"CAST({compiler.process(stored, **options)} AS vector) <=> "
        f"CAST(CAST({compiler.process(given, **options)} AS REAL[]) AS vector)"
    )


class any_of_words(FunctionElement[Any]):
    """A text of PostgreSQL's query language, read as it stands: the words in it are final."""

    inherit_cache = True


@compiles(any_of_words, "postgresql")
def _any_of_words(element: any_of_words, compiler: SQLCompiler, **options: Any) -> str:
    (given,) = element.clauses
    return f"CAST(CAST({compiler.process(given, **options)} AS TEXT) AS tsquery)"


async def by_words(tx: Transaction, words: Sequence[str], filters: PassageFilter, limit: int) -> list[str]:
    """The ids of passages that have any of the words, best first."""
    if not words:
        return []
    if tx.dialect == "sqlite":
        return await _by_words_sqlite(tx, words, filters, limit)
    query = any_of_words(literal(" | ".join(f"'{word}'" for word in words), Text()))
    rank = func.ts_rank(_LEXEMES, query, _SHORT_FIRST)
    found = (
        select(passages.c.id)
        .where(_LEXEMES.op("@@")(query), *_conditions(filters))
        .order_by(rank.desc(), passages.c.seq.desc())
        .limit(limit)
    )
    return [row["id"] for row in await tx.fetch_all(found)]


async def _by_words_sqlite(tx: Transaction, words: Sequence[str], filters: PassageFilter, limit: int) -> list[str]:
    """By the rarest words first. The others would change little, unless these find too little in the archives."""
    counts = {row["term"]: row["doc"] for row in await tx.fetch_all(_COUNTS, {"words": list(words)})}
    known = sorted(counts, key=lambda word: counts[word])
    telling = _rankable(known, counts)
    found = await _matching(tx, telling, filters, limit)
    if len(found) < min(limit, _TOO_FEW) and len(telling) < len(known):
        return await _matching(tx, known, filters, limit)
    return found


def _rankable(known: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """As many as can be ranked quickly, and one at least."""
    kept: list[str] = []
    ranked = 0
    for word in known:
        ranked += counts[word]
        if kept and ranked > _MOST_RANKED:
            break
        kept.append(word)
    return kept


async def _matching(tx: Transaction, words: Sequence[str], filters: PassageFilter, limit: int) -> list[str]:
    if not words:
        return []
    match = "words : (" + " OR ".join(f'"{word}"' for word in words) + ")"
    if filters.archive_ids is not None:
        match = "archive_id : (" + " OR ".join(f'"{one}"' for one in filters.archive_ids) + f") AND {match}"
    hits = select(_WORDS.c.rowid.label("seq"), _WORDS.c.rank.label("rank")).where(
        literal_column("passage_words").op("MATCH")(match),
        _WORDS.c.rank.op("MATCH")(literal_column("'bm25(0.0, 1.0)'")),  # being in an archive says nothing of the text
    )
    if filters.archive_ids is None:
        hits = hits.where(_WORDS.c.rowid.not_in(_GONE))
    if filters.narrows:
        hits = hits.join(passages, passages.c.seq == _WORDS.c.rowid).where(*_narrowed(filters))
    best = hits.order_by(_WORDS.c.rank).limit(limit).subquery()
    found = select(passages.c.id).join(best, best.c.seq == passages.c.seq).order_by(best.c.rank, passages.c.seq.desc())
    return [row["id"] for row in await tx.fetch_all(found)]


async def by_text(tx: Transaction, text: str, filters: PassageFilter, limit: int) -> list[str]:
    """The ids of passages that hold the text anywhere, whatever its case; newest first."""
    found = (
        select(passages.c.id)
        .where(contains_text(passages.c.text, text), *_conditions(filters))
        .order_by(passages.c.created_us.desc(), passages.c.id)
        .limit(limit)
    )
    return [row["id"] for row in await tx.fetch_all(found)]


async def oldest(tx: Transaction, filters: PassageFilter, limit: int) -> list[str]:
    found = select(passages.c.id).where(*_conditions(filters)).order_by(passages.c.created_us, passages.c.id)
    return [row["id"] for row in await tx.fetch_all(found.limit(limit))]


async def by_vector(
    tx: Transaction, index: VectorIndex, vector: bytes, filters: PassageFilter, limit: int
) -> list[str]:
    """The ids of passages whose vectors are nearest, best first. `filters` must name its archives: vectors of different
    models say nothing to each other."""
    if not filters.archive_ids:
        return []
    if tx.dialect == "postgresql" and await tx.fetch_one(_PGVECTOR) is not None:
        return await _by_pgvector(tx, array("f", vector), filters, limit)
    dimension, most = len(vector) // 4, max(_FEWEST_COMPARED, limit * _COMPARED_PER_RESULT)
    allowed = await _allowed(tx, dimension, filters) if filters.narrows else None
    code, near = code_of(vector), list[tuple[int, int]]()
    for archive_id in filters.archive_ids:
        known = await index.of_archive(tx, archive_id, dimension)
        if known is not None:
            among = None if allowed is None else known.places(allowed)
            places = known.table.nearest(code, most, among)
            near += zip(known.table.differences(code, places), (known.seqs[at] for at in places), strict=True)
    return await _compared(tx, [seq for _, seq in heapq.nsmallest(most, near)], vector, limit)


async def records(tx: Transaction, ids: Sequence[str]) -> list[Passage]:
    """In the order asked for, without those that are gone."""
    found = await passage_rows.find_many(tx, ids)
    return [found[each] for each in ids if each in found]


async def _by_pgvector(tx: Transaction, vector: array[float], filters: PassageFilter, limit: int) -> list[str]:
    distance = cosine_distance(passage_vectors.c.vector, literal(vector.tolist(), VECTOR))
    found = (
        select(passage_vectors.c.passage_id)
        .where(
            in_array(passage_vectors.c.archive_id, filters.archive_ids or ()),
            passage_vectors.c.dimension == len(vector),
        )
        .order_by(distance, passage_vectors.c.seq.desc())
        .limit(limit)
    )
    if filters.narrows:
        found = found.join(passages, passages.c.id == passage_vectors.c.passage_id).where(*_narrowed(filters))
    return [row["passage_id"] for row in await tx.fetch_all(found)]


async def _allowed(tx: Transaction, dimension: int, filters: PassageFilter) -> list[int]:
    found = (
        select(passage_vectors.c.seq)
        .join(passages, passages.c.id == passage_vectors.c.passage_id)
        .where(passage_vectors.c.dimension == dimension, *_conditions(filters))
    )
    return [row["seq"] for row in await tx.fetch_all(found)]


async def _compared(tx: Transaction, seqs: Sequence[int], vector: bytes, limit: int) -> list[str]:
    query = select(passage_vectors.c.passage_id, passage_vectors.c.vector).where(in_array(passage_vectors.c.seq, seqs))
    rows = await tx.fetch_all(query)
    near = similarities([passage_rows.vector_of(row["vector"]) for row in rows], vector)
    ranked = sorted(zip(near, rows, strict=True), key=lambda pair: -pair[0])
    return [row["passage_id"] for _, row in ranked[:limit]]


def _conditions(filters: PassageFilter) -> list[ColumnElement[bool]]:
    named = filters.archive_ids
    here = passages.c.archive_id.not_in(_UNSEEN) if named is None else in_array(passages.c.archive_id, named)
    return [here, *_narrowed(filters)]


def _narrowed(filters: PassageFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.tags:
        found.append(
            tagged(passage_tags.c.tag, passage_tags.c.passage_id, passages.c.id, filters.tags, filters.match_all_tags)
        )
    if filters.start_us is not None:
        found.append(passages.c.created_us >= filters.start_us)
    if filters.end_us is not None:
        found.append(passages.c.created_us <= filters.end_us)
    return found

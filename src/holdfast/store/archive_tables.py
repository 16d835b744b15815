"""The tables of archival memory: archives, who uses them, their passages, and what finds a passage again.

A passage is found by its words and by its vector. `words` holds what the text is searched by, as `core.words` writes
it, so that both databases find the same; the index over it is each database's own: see `ONLY_SQLITE` here and revision
0008. A vector is 32-bit floats of length one; its code, a bit for the sign of each number, is compared first.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from holdfast.store.tables import SERIAL, metadata

_REAL: TypeEngine[float] = REAL()
VECTOR: Final = ARRAY(_REAL).with_variant(LargeBinary(), "sqlite")


def _archive_key() -> Column[str]:
    return Column("archive_id", Text, ForeignKey("archives.id", ondelete="CASCADE"), nullable=False)


archives = Table(
    "archives",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("embedding", Text),  # the handle of the model that makes its vectors; null: it has none
    Column("embedding_config", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),  # from then on nobody sees it; it goes once its passages are gone
    Index("archives_by_age", "created_us", "id"),
    Index("archives_by_name", "name"),
    Index("deleted_archives", "id", sqlite_where=text("deleted_us IS NOT NULL")),
)

# An agent has at most one archive; an archive may serve many agents.
agent_archives = Table(
    "agent_archives",
    metadata,
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    _archive_key(),
    Column("is_owner", Boolean, nullable=False),  # it was made for this agent, and is deleted with it
    Index("agent_archives_by_archive", "archive_id"),
)

passages = Table(
    "passages",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False, unique=True),
    _archive_key(),
    Column("text", Text, nullable=False),
    Column("words", Text, nullable=False),
    Column("tags", Text, nullable=False),  # as they were given; `passage_tags` is for finding them
    Column("metadata", Text, nullable=False),
    Column("awaits_vector", Boolean, nullable=False),  # its archive has a model, which could not be reached
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("file_id", Text),  # of a chunk of a file
    Index("passages_by_age", "archive_id", "created_us", "id"),
    Index("passages_awaiting_vectors", "archive_id", "seq", sqlite_where=text("awaits_vector")),
    Index("passages_of_file", "file_id", "seq", sqlite_where=text("file_id IS NOT NULL")),
)

passage_tags = Table(
    "passage_tags",
    metadata,
    Column("passage_id", Text, ForeignKey("passages.id", ondelete="CASCADE"), nullable=False),
    Column("tag", Text, nullable=False),
    PrimaryKeyConstraint("passage_id", "tag"),
    Index("passage_tags_by_tag", "tag"),
)

passage_vectors = Table(
    "passage_vectors",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("passage_id", Text, ForeignKey("passages.id", ondelete="CASCADE"), nullable=False, unique=True),
    _archive_key(),
    Column("dimension", Integer, nullable=False),
    Column("code", LargeBinary, nullable=False),
    Column("vector", VECTOR, nullable=False),
    Index("passage_vectors_of_archive", "archive_id", "dimension", "seq"),
    sqlite_autoincrement=True,  # a number is never given twice: what is cached under it stays true
)

# FTS5 splits `words` only at its spaces, and takes an archive's id for one word.
ONLY_SQLITE: Final = (
    "CREATE VIRTUAL TABLE passage_words USING fts5("
    "archive_id, words, content='passages', content_rowid='seq', tokenize=\"unicode61 tokenchars '-'\")",
    "CREATE VIRTUAL TABLE passage_words_known USING fts5vocab(passage_words, row)",  # in how many texts a word is
    "CREATE TRIGGER passage_words_insert AFTER INSERT ON passages BEGIN "
    "INSERT INTO passage_words (rowid, archive_id, words) VALUES (new.seq, new.archive_id, new.words); END",
    "CREATE TRIGGER passage_words_delete AFTER DELETE ON passages BEGIN "
    "INSERT INTO passage_words (passage_words, rowid, archive_id, words) "
    "VALUES ('delete', old.seq, old.archive_id, old.words); END",
)

"""The tables of archival memory and of folders: passages and files, who uses them, and what finds them again.

A passage is found by its words and by its vector. `words` holds what the text is searched by, as `core.words` writes
it, so that both databases find the same; the index over it is each database's own: see `ONLY_SQLITE` here and revision
0008. A vector is 32-bit floats of length one; its code, a bit for the sign of each number, is compared first.

The chunks of a file are rows of `passages`, and a folder is an archive to them: a row of `archives` with the folder's
id, which no list of archives shows (decision 30). So they are found by what finds passages.
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
    UniqueConstraint,
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
folders = Table(
    "folders",
    metadata,
    Column("id", Text, ForeignKey("archives.id"), primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("instructions", Text),
    Column("metadata", Text),
    Column("embedding", Text),
    Column("embedding_config", Text),
    Column("chunk_size", Integer, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),  # from then on nobody sees it; it goes once its files are gone
    Index("folders_by_age", "created_us", "id"),
    Index(
        "one_folder_per_name",
        "organization_id",
        "name",
        unique=True,
        sqlite_where=text("deleted_us IS NULL"),
    ),
    Index("deleted_folders", "id", sqlite_where=text("deleted_us IS NOT NULL")),
)
files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("folder_id", Text, ForeignKey("folders.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("original_name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("total_chunks", Integer),
    Column("chunks_stored", Integer, nullable=False),
    Column("chunks_embedded", Integer, nullable=False),
    Column("lines", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),
    Index("files_by_age", "folder_id", "created_us", "id"),
    Index(
        "one_file_per_name",
        "folder_id",
        "name",
        unique=True,
        sqlite_where=text("deleted_us IS NULL"),
    ),
    Index("deleted_files", "id", sqlite_where=text("deleted_us IS NOT NULL")),
)
# What was uploaded, in parts, until it is read. The parts are stored before the file is, so that no transaction holds
# a whole file: they refer to nothing, and those of an upload that was cut off are found by their age.
file_bytes = Table(
    "file_bytes",
    metadata,
    Column("file_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("bytes", LargeBinary, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    PrimaryKeyConstraint("file_id", "number"),
    Index("file_bytes_by_age", "created_us"),
)
# What was read, in parts, which may end in the middle of a line. Together they are the text.
file_texts = Table(
    "file_texts",
    metadata,
    Column("file_id", Text, ForeignKey("files.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("first_line", BigInteger, nullable=False),  # from 1: the line in which the part begins
    Column("text", Text, nullable=False),
    PrimaryKeyConstraint("file_id", "number"),
    Index("file_texts_by_line", "file_id", "first_line"),
)
agent_folders = Table(
    "agent_folders",
    metadata,
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("folder_id", Text, ForeignKey("folders.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("agent_id", "folder_id"),
    Index("agent_folders_by_folder", "folder_id"),
)
# One for each file in a folder of the agent. An open one is shown from its first line to its last; null: all of it.
agent_files = Table(
    "agent_files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("file_id", Text, ForeignKey("files.id", ondelete="CASCADE"), nullable=False),
    Column("is_open", Boolean, nullable=False),
    Column("first_line", BigInteger),
    Column("last_line", BigInteger),
    Column("accessed_us", BigInteger),  # when it was last opened; those that were not for longest are closed first
    Column("created_us", BigInteger, nullable=False),
    UniqueConstraint("agent_id", "file_id", name="a_file_once_per_agent"),
    Index("agent_files_by_age", "agent_id", "created_us", "id"),
    Index("agent_files_by_file", "file_id"),
    Index("open_files", "agent_id", "accessed_us", sqlite_where=text("is_open")),
)

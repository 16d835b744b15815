"""The tables of folders: their files, what was uploaded, what was read from it, and which agent sees what of them.

The chunks of a file are rows of `passages`, and a folder is an archive to them: a row of `archives` with the folder's
id, which no list of archives shows (decision 30). So they are found by what finds passages.
"""

from __future__ import annotations

from sqlalchemy import (
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

from holdfast.store.tables import metadata

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

"""Folders and files: what was uploaded, what was read from it, which chunks it has, and who sees what of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("passages", sa.Column("file_id", sa.Text(), nullable=True))
    _partial_index("passages_of_file", "passages", ["file_id", "seq"], "file_id IS NOT NULL")
    _create_folders()
    _create_files()
    _create_views()


def _create_folders() -> None:
    op.create_table(
        "folders",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("embedding", sa.Text(), nullable=True),
        sa.Column("embedding_config", sa.Text(), nullable=True),
        sa.Column("chunk_size", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["id"], ["archives.id"]),
    )
    op.create_index("folders_by_age", "folders", ["created_us", "id"])
    _partial_index("one_folder_per_name", "folders", ["organization_id", "name"], "deleted_us IS NULL", unique=True)
    _partial_index("deleted_folders", "folders", ["id"], "deleted_us IS NOT NULL")


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("folder_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("original_name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("total_chunks", sa.Integer(), nullable=True),
        sa.Column("chunks_stored", sa.Integer(), nullable=False),
        sa.Column("chunks_embedded", sa.Integer(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["folder_id"], ["folders.id"]),
    )
    op.create_index("files_by_age", "files", ["folder_id", "created_us", "id"])
    _partial_index("one_file_per_name", "files", ["folder_id", "name"], "deleted_us IS NULL", unique=True)
    _partial_index("deleted_files", "files", ["id"], "deleted_us IS NOT NULL")
    op.create_table(
        "file_bytes",
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.LargeBinary(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("file_id", "number"),
    )
    op.create_index("file_bytes_by_age", "file_bytes", ["created_us"])
    op.create_table(
        "file_texts",
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("file_id", "number"),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"]),
    )
    op.create_index("file_texts_by_line", "file_texts", ["file_id", "first_line"])


def _create_views() -> None:
    op.create_table(
        "agent_folders",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("folder_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "folder_id"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["folder_id"], ["folders.id"], ondelete="CASCADE"),
    )
    op.create_index("agent_folders_by_folder", "agent_folders", ["folder_id"])
    op.create_table(
        "agent_files",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("first_line", sa.BigInteger(), nullable=True),
        sa.Column("last_line", sa.BigInteger(), nullable=True),
        sa.Column("accessed_us", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], ondelete="CASCADE"),
        sa.UniqueConstraint("agent_id", "file_id", name="a_file_once_per_agent"),
    )
    op.create_index("agent_files_by_age", "agent_files", ["agent_id", "created_us", "id"])
    op.create_index("agent_files_by_file", "agent_files", ["file_id"])
    _partial_index("open_files", "agent_files", ["agent_id", "accessed_us"], "is_open")


def _partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def downgrade() -> None:
    for table in ("agent_files", "agent_folders", "file_texts", "file_bytes", "files", "folders"):
        op.drop_table(table)
    op.drop_index("passages_of_file", table_name="passages")
    op.drop_column("passages", "file_id")

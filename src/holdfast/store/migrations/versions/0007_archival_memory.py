"""Archival memory: archives, their passages, and the indexes by words and by vectors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_REAL: sa.types.TypeEngine[float] = sa.REAL()
_VECTOR = sa.ARRAY(_REAL).with_variant(sa.LargeBinary(), "sqlite")
_SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SQLITE = (
    "CREATE VIRTUAL TABLE passage_words USING fts5("
    "archive_id, words, content='passages', content_rowid='seq', tokenize=\"unicode61 tokenchars '-'\")",
    "CREATE VIRTUAL TABLE passage_words_known USING fts5vocab(passage_words, row)",
    "CREATE TRIGGER passage_words_insert AFTER INSERT ON passages BEGIN "
    "INSERT INTO passage_words (rowid, archive_id, words) VALUES (new.seq, new.archive_id, new.words); END",
    "CREATE TRIGGER passage_words_delete AFTER DELETE ON passages BEGIN "
    "INSERT INTO passage_words (passage_words, rowid, archive_id, words) "
    "VALUES ('delete', old.seq, old.archive_id, old.words); END",
)
# pgvector is used where it is installed. Where it is not, or may not be created, vectors are compared in the server.
_POSTGRESQL = (
    "ALTER TABLE passages ADD COLUMN lexemes tsvector GENERATED ALWAYS AS (to_tsvector('simple', words)) STORED",
    "CREATE INDEX passages_by_words ON passages USING gin (lexemes)",
    # In the row itself as long as it fits a page: a search reads every vector of an archive.
    "ALTER TABLE passage_vectors ALTER COLUMN vector SET STORAGE MAIN",
    "DO $$ BEGIN CREATE EXTENSION IF NOT EXISTS vector; "
    "EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported THEN NULL; END $$",
)


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("embedding", sa.Text(), nullable=True),
        sa.Column("embedding_config", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("archives_by_age", "archives", ["created_us", "id"])
    op.create_index("archives_by_name", "archives", ["name"])
    op.create_table(
        "agent_archives",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("is_owner", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id"),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["archive_id"], ["archives.id"], ondelete="CASCADE"),
    )
    op.create_index("agent_archives_by_archive", "agent_archives", ["archive_id"])
    _create_passages()
    dialect = op.get_context().dialect.name
    for statement in _SQLITE if dialect == "sqlite" else _POSTGRESQL:
        op.execute(sa.text(statement.replace(":", r"\:")))


def _create_passages() -> None:
    op.create_table(
        "passages",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("awaits_vector", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.ForeignKeyConstraint(["archive_id"], ["archives.id"], ondelete="CASCADE"),
    )
    op.create_index("passages_by_age", "passages", ["archive_id", "created_us", "id"])
    waiting = sa.text("awaits_vector")
    op.create_index(
        "passages_awaiting_vectors", "passages", ["archive_id", "seq"], sqlite_where=waiting, postgresql_where=waiting
    )
    op.create_table(
        "passage_tags",
        sa.Column("passage_id", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("passage_id", "tag"),
        sa.ForeignKeyConstraint(["passage_id"], ["passages.id"], ondelete="CASCADE"),
    )
    op.create_index("passage_tags_by_tag", "passage_tags", ["tag"])
    op.create_table(
        "passage_vectors",
        sa.Column("seq", _SERIAL, autoincrement=True, nullable=False),
        sa.Column("passage_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("code", sa.LargeBinary(), nullable=False),
        sa.Column("vector", _VECTOR, nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("passage_id"),
        sa.ForeignKeyConstraint(["passage_id"], ["passages.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["archive_id"], ["archives.id"], ondelete="CASCADE"),
        sqlite_autoincrement=True,
    )
    op.create_index("passage_vectors_of_archive", "passage_vectors", ["archive_id", "dimension", "seq"])


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TABLE passage_words_known")
        op.execute("DROP TABLE passage_words")
    for table in ("passage_vectors", "passage_tags", "passages", "agent_archives", "archives"):
        op.drop_table(table)

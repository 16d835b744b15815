"""Archives that are being deleted, and PostgreSQL's index of exactly the words that passages are stored with.

Its parser took some of them apart (`03e2d` was a number and a rest), and no search for them found anything.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# A place is kept up to 16,383, where PostgreSQL ends counting.
_POSTGRESQL = (
    "DROP INDEX passages_by_words",
    "ALTER TABLE passages DROP COLUMN lexemes",
    "UPDATE passages SET words = replace(words, '\u03c2', '\u03c3') WHERE words LIKE '%\u03c2%'",
    "CREATE FUNCTION passage_lexemes(words text) RETURNS tsvector LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ "
    "SELECT coalesce(string_agg(word || ':' || least(place, 16383), ' '), '')::tsvector "
    "FROM unnest(string_to_array(words, ' ')) WITH ORDINALITY AS each (word, place) $$",
    "ALTER TABLE passages ADD COLUMN lexemes tsvector GENERATED ALWAYS AS (passage_lexemes(words)) STORED",
    "CREATE INDEX passages_by_words ON passages USING gin (lexemes)",
)
_POSTGRESQL_BACK = (
    "DROP INDEX passages_by_words",
    "ALTER TABLE passages DROP COLUMN lexemes",
    "DROP FUNCTION passage_lexemes(text)",
    "ALTER TABLE passages ADD COLUMN lexemes tsvector GENERATED ALWAYS AS (to_tsvector('simple', words)) STORED",
    "CREATE INDEX passages_by_words ON passages USING gin (lexemes)",
)


def upgrade() -> None:
    op.add_column("archives", sa.Column("deleted_us", sa.BigInteger(), nullable=True))
    deleted = sa.text("deleted_us IS NOT NULL")
    op.create_index("deleted_archives", "archives", ["id"], sqlite_where=deleted, postgresql_where=deleted)
    if op.get_context().dialect.name == "postgresql":
        _run(_POSTGRESQL)


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        _run(_POSTGRESQL_BACK)
    op.drop_index("deleted_archives", table_name="archives")
    op.drop_column("archives", "deleted_us")


def _run(statements: tuple[str, ...]) -> None:
    for statement in statements:
        op.execute(sa.text(statement.replace(":", r"\:")))

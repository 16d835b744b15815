"""What the specs of runs have in common is stored once. Journals that hold a whole spec stay as they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "specs",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("hash"),
    )
    # In SQL, because Alembic would copy the whole table to add a foreign key on SQLite.
    op.execute("ALTER TABLE run_events ADD COLUMN spec_hash TEXT REFERENCES specs (hash)")
    shared = sa.text("spec_hash IS NOT NULL")
    op.create_index("run_events_by_spec", "run_events", ["spec_hash"], sqlite_where=shared, postgresql_where=shared)


def downgrade() -> None:
    raise NotImplementedError("Journals refer to stored specs: restore a backup that was made before the upgrade.")

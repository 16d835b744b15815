"""Where deleted items stood in their lists, so that a list can be walked while its items are deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "tombstones",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("within", sa.Text(), nullable=False),
        sa.Column("sort_values", sa.Text(), nullable=False),
        sa.Column("deleted_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("tombstones_by_age", "tombstones", ["deleted_us"])


def downgrade() -> None:
    op.drop_table("tombstones")

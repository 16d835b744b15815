"""Finds the runs that ended before a given time without reading all of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    ended = sa.text("completed_us IS NOT NULL")
    op.create_index("runs_by_end", "runs", ["completed_us", "id"], sqlite_where=ended, postgresql_where=ended)


def downgrade() -> None:
    op.drop_index("runs_by_end", table_name="runs")

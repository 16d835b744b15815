"""Two indexes held the active runs, and every turn wrote both twice. The unique one finds them as well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.drop_index("active_runs", table_name="runs")


def downgrade() -> None:
    active = sa.text("status IN ('created', 'running')")
    op.create_index("active_runs", "runs", ["lease_expires_us"], sqlite_where=active, postgresql_where=active)

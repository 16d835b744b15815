"""Lists of agents by when they were changed are read from an index, and names are searched in one."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_index("agents_by_change", "agents", ["updated_us", "id"])
    op.drop_index("agents_by_name", table_name="agents")
    op.create_index("agents_by_name", "agents", ["name", "id"])


def downgrade() -> None:
    op.drop_index("agents_by_name", table_name="agents")
    op.create_index("agents_by_name", "agents", ["name"])
    op.drop_index("agents_by_change", table_name="agents")

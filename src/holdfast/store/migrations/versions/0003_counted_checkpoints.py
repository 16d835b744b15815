"""How many checkpoints a run has written, so that one whose commit was cut off can be repeated safely."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("checkpoints", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index("run_otids_of_run", "run_otids", ["run_id"])


def downgrade() -> None:
    op.drop_index("run_otids_of_run", table_name="run_otids")
    op.drop_column("runs", "checkpoints")

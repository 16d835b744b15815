"""How many checkpoints a run has written, so that one whose commit was cut off can be repeated safely."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("checkpoints", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "checkpoints")

"""Forks know the conversation that they were made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("threads", sa.Column("forked_from", sa.Text()))


def downgrade() -> None:
    op.drop_column("threads", "forked_from")

"""Rate limits of providers: what all processes together have used, and which runs wait."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "rate_limits",
        sa.Column("key", sa.Text(), primary_key=True),
        sa.Column("full_at_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "rate_waits",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("rate_waits_by_end", "rate_waits", ["until_us"])


def downgrade() -> None:
    op.drop_table("rate_waits")
    op.drop_table("rate_limits")

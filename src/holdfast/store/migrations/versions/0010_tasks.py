"""Work that outlives the request that asked for it, as rows with leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("due_us", sa.BigInteger(), nullable=False),
        sa.Column("lease", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("lease_owner", sa.Text()),
        sa.Column("lease_expires_us", sa.BigInteger()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("kind", "subject_id", name="one_task_per_subject"),
    )
    op.create_index("tasks_by_due", "tasks", ["due_us", "id"])


def downgrade() -> None:
    op.drop_table("tasks")

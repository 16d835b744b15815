"""Identities with their agents and blocks; groups with their agents, blocks and turns."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_identities()
    _create_groups()
    _create_discussions()
    in_group = sa.text("group_id IS NOT NULL")
    op.create_index(
        "messages_of_group", "messages", ["group_id", "run_id"], sqlite_where=in_group, postgresql_where=in_group
    )


def downgrade() -> None:
    op.drop_index("messages_of_group", table_name="messages")
    for name in ("discussions", "group_turns", "group_blocks", "group_agents", "groups"):
        op.drop_table(name)
    for name in ("identity_blocks", "identity_agents", "identities"):
        op.drop_table(name)


def _refers(name: str, target: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), sa.ForeignKey(f"{target}.id", ondelete="CASCADE"), nullable=False)


def _create_identities() -> None:
    op.create_table(
        "identities",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("identifier_key", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("identity_type", sa.Text(), nullable=False),
        sa.Column("properties", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("identities_by_age", "identities", ["created_us", "id"])
    op.create_index(
        "one_identity_per_key", "identities", ["organization_id", "project_id", "identifier_key"], unique=True
    )
    for kind in ("agent", "block"):
        op.create_table(
            f"identity_{kind}s",
            _refers("identity_id", "identities"),
            _refers(f"{kind}_id", f"{kind}s"),
            sa.PrimaryKeyConstraint("identity_id", f"{kind}_id"),
        )
        op.create_index(f"identity_{kind}s_by_{kind}", f"identity_{kind}s", [f"{kind}_id"])


def _create_groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("manager_type", sa.Text(), nullable=False),
        sa.Column("manager_agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE")),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text()),
        sa.Column("max_turns", sa.BigInteger()),
        sa.Column("termination_token", sa.Text()),
        sa.Column("sleeptime_agent_frequency", sa.BigInteger()),
        sa.Column("turns_counter", sa.BigInteger()),
        sa.Column("last_processed_message_id", sa.Text()),
        sa.Column("hidden", sa.Boolean()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
    )
    op.create_index("groups_by_age", "groups", ["created_us", "id"])
    op.create_index("groups_by_manager", "groups", ["manager_agent_id"])
    sleeptime = sa.text("manager_type = 'sleeptime'")
    op.create_index(
        "one_sleeptime_group_per_agent",
        "groups",
        ["manager_agent_id"],
        unique=True,
        sqlite_where=sleeptime,
        postgresql_where=sleeptime,
    )
    op.create_table(
        "group_agents",
        _refers("group_id", "groups"),
        _refers("agent_id", "agents"),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "agent_id"),
    )
    op.create_index("group_agents_by_agent", "group_agents", ["agent_id"])
    op.create_table(
        "group_blocks",
        _refers("group_id", "groups"),
        _refers("block_id", "blocks"),
        sa.PrimaryKeyConstraint("group_id", "block_id"),
    )
    op.create_index("group_blocks_by_block", "group_blocks", ["block_id"])
    op.create_table(
        "group_turns",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=True),
        _refers("group_id", "groups"),
        _refers("agent_id", "agents"),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("shown_by_run_id", sa.Text()),
    )
    op.create_index("group_turns_of_agent", "group_turns", ["agent_id", "seq"])
    op.create_index("group_turns_of_group", "group_turns", ["group_id"])


def _create_discussions() -> None:
    op.create_table(
        "discussions",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("organization_id", sa.Text(), nullable=False),
        _refers("group_id", "groups"),
        sa.Column("members", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("request_key", sa.Text()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_us", sa.BigInteger()),
        sa.Column("stop_reason", sa.Text()),
        sa.Column("error", sa.Text()),
    )
    for name, columns, condition in (
        ("one_open_discussion_per_group", ["group_id"], sa.text("ended_us IS NULL")),
        ("one_discussion_per_request", ["group_id", "request_key"], sa.text("request_key IS NOT NULL")),
    ):
        op.create_index(name, "discussions", columns, unique=True, sqlite_where=condition, postgresql_where=condition)

"""MCP servers, logins at them, and the tools that they offer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("url", sa.Text()),
        sa.Column("auth_header", sa.Text()),
        sa.Column("command", sa.Text()),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("secrets", sa.Text()),
        sa.Column("synced_us", sa.BigInteger()),
        sa.Column("sync_error", sa.Text()),
        sa.Column("left_out", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("organization_id", "name", name="mcp_servers_by_name"),
    )
    op.create_table(
        "mcp_logins",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column(
            "server_id", sa.Text(), sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), nullable=False, unique=True
        ),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), unique=True),
        sa.Column("secrets", sa.Text()),
        sa.Column("error", sa.Text()),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
    )
    # As text, because Alembic cannot add a foreign key to a table of SQLite without writing it anew.
    op.execute("ALTER TABLE tools ADD COLUMN mcp_server_id TEXT REFERENCES mcp_servers (id)")
    op.add_column("tools", sa.Column("mcp_name", sa.Text()))
    op.create_index("tools_of_mcp_server", "tools", ["mcp_server_id", "mcp_name"], unique=True)


def downgrade() -> None:
    op.drop_index("tools_of_mcp_server", "tools")
    with op.batch_alter_table("tools") as tools:
        tools.drop_column("mcp_name")
        tools.drop_column("mcp_server_id")
    op.drop_table("mcp_logins")
    op.drop_table("mcp_servers")

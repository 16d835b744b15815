"""The tables of MCP servers. Their tools are rows of `tools`, which name the server."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text, UniqueConstraint

from holdfast.store.tables import metadata

mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("url", Text),
    Column("auth_header", Text),
    Column("command", Text),
    Column("args", Text, nullable=False),
    Column("secrets", Text),  # sealed
    Column("synced_us", BigInteger),
    Column("sync_error", Text),
    Column("left_out", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    UniqueConstraint("organization_id", "name", name="mcp_servers_by_name"),
)

mcp_logins = Table(
    "mcp_logins",
    metadata,
    Column("id", Text, primary_key=True),
    Column("server_id", Text, ForeignKey("mcp_servers.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("state", Text, unique=True),
    Column("secrets", Text),  # sealed
    Column("error", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

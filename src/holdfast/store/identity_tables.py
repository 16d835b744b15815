"""The tables of identities: whom agents and blocks belong to, as programs outside know them.

`identifier_key` is the key that such a program has for the person or the organisation. It is taken once in a project;
an identity without a project has the empty text there, because a database takes two nulls for different.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text

from holdfast.store.tables import metadata


def _identity_key() -> Column[str]:
    return Column("identity_id", Text, ForeignKey("identities.id", ondelete="CASCADE"), nullable=False)


identities = Table(
    "identities",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("project_id", Text, nullable=False),
    Column("identifier_key", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("identity_type", Text, nullable=False),
    Column("properties", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("identities_by_age", "created_us", "id"),
    Index("one_identity_per_key", "organization_id", "project_id", "identifier_key", unique=True),
)

identity_agents = Table(
    "identity_agents",
    metadata,
    _identity_key(),
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("identity_id", "agent_id"),
    Index("identity_agents_by_agent", "agent_id"),
)

identity_blocks = Table(
    "identity_blocks",
    metadata,
    _identity_key(),
    Column("block_id", Text, ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("identity_id", "block_id"),
    Index("identity_blocks_by_block", "block_id"),
)

"""The tables of groups, agents that work together, and of identities, whom agents and blocks belong to.

`identifier_key` is the key that a program outside has for the person or the organisation. It is taken once in a
project; an identity without a project has the empty text there, because a database takes two nulls for different.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, PrimaryKeyConstraint, Table, Text, text

from holdfast.store.tables import SERIAL, metadata


def _group_key() -> Column[str]:
    return Column("group_id", Text, ForeignKey("groups.id", ondelete="CASCADE"), nullable=False)


groups = Table(
    "groups",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("manager_type", Text, nullable=False),
    Column("manager_agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE")),
    Column("description", Text, nullable=False),
    Column("project_id", Text),
    Column("max_turns", BigInteger),
    Column("termination_token", Text),
    Column("sleeptime_agent_frequency", BigInteger),
    Column("turns_counter", BigInteger),
    Column("last_processed_message_id", Text),
    Column("hidden", Boolean),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("groups_by_age", "created_us", "id"),
    Index("groups_by_manager", "manager_agent_id"),
    # An agent's turns are counted once.
    Index(
        "one_sleeptime_group_per_agent",
        "manager_agent_id",
        unique=True,
        sqlite_where=text("manager_type = 'sleeptime'"),
    ),
)

group_agents = Table(
    "group_agents",
    metadata,
    _group_key(),
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("position", BigInteger, nullable=False),
    PrimaryKeyConstraint("group_id", "agent_id"),
    Index("group_agents_by_agent", "agent_id"),
)

group_blocks = Table(
    "group_blocks",
    metadata,
    _group_key(),
    Column("block_id", Text, ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("group_id", "block_id"),
    Index("group_blocks_by_block", "block_id"),
)

# Messages to groups. Which agents speak, and what they are told, follows from the runs that are stored: the id of each
# follows from the discussion's and from its place in it.
discussions = Table(
    "discussions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    _group_key(),
    Column("members", Text, nullable=False),  # the group as it was then
    Column("request", Text, nullable=False),
    Column("request_key", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    Column("stop_reason", Text),
    Column("error", Text),
    Index("one_open_discussion_per_group", "group_id", unique=True, sqlite_where=text("ended_us IS NULL")),
    Index(
        "one_discussion_per_request",
        "group_id",
        "request_key",
        unique=True,
        sqlite_where=text("request_key IS NOT NULL"),
    ),
)

# Runs of a sleeptime group's manager that have ended, and that one of its agents has not been shown yet. The turn that
# sets the agent to work has the id of the run that will be shown it, and what came before it. Of a turn that was
# captured, which has no run, there is a row for each message, with its id in the place of the run's.
group_turns = Table(
    "group_turns",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    _group_key(),
    Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    Column("run_id", Text, nullable=False),
    Column("shown_by_run_id", Text),
    Index("group_turns_of_agent", "agent_id", "seq"),
    Index("group_turns_of_group", "group_id"),
)


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

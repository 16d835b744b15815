"""Tables of rate limits: what providers have been asked for, and who waits."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Table, Text

from holdfast.store.tables import metadata

# The bucket of each limit of a provider that is configured (`core/rate_limits.py`), shared by all processes.
rate_limits = Table(
    "rate_limits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("full_at_us", BigInteger, nullable=False),  # when it holds all that it can hold again
)

# Which run waits for the rate limit of a provider, and until when, so that any process can say it.
rate_waits = Table(
    "rate_waits",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("provider", Text, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Index("rate_waits_by_end", "until_us"),
)

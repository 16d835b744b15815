"""Whether the server can do its work now."""

from __future__ import annotations

from holdfast.engine.clock import Clock
from holdfast.engine.worker import skew_of
from holdfast.store.transaction import Database


async def check_database(database: Database, clock: Clock) -> float | None:
    """How far our clock is off the database's, in seconds, if it is far off. Raises DatabaseError when the database
    cannot be read or written now."""
    return skew_of(clock, await database.check())

"""Runs that were accepted or ended lately, with their status: what a feed of changes must have told of by now."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, bindparam, select

from holdfast.store.tables import runs
from holdfast.store.transaction import Transaction

MOST: Final = 500  # of either kind, the newest: whoever looks does so often
_since = bindparam("since_us", type_=BigInteger())
_ACCEPTED = (
    select(runs.c.id, runs.c.status).where(runs.c.created_us >= _since).order_by(runs.c.created_us.desc()).limit(MOST)
)
_ENDED = (
    select(runs.c.id, runs.c.status)
    .where(runs.c.completed_us >= _since, runs.c.completed_us.is_not(None))
    .order_by(runs.c.completed_us.desc())
    .limit(MOST)
)


async def read(tx: Transaction, since_us: int) -> set[tuple[str, str]]:
    given = {"since_us": since_us}
    rows = [*await tx.fetch_all(_ACCEPTED, given), *await tx.fetch_all(_ENDED, given)]
    return {(row["id"], row["status"]) for row in rows}

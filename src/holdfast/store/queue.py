"""Which runs wait, and for how long: the figures of the whole database that metrics show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import bindparam, func, or_, select

from holdfast.store.run_filters import IS_ACTIVE
from holdfast.store.statements import Statement, database_now_us
from holdfast.store.tables import holds, runs
from holdfast.store.transaction import Transaction

MOST_AGES: Final = 10_000  # that are read: the oldest
_DRIVEN = select(func.count().label("count")).where(IS_ACTIVE, runs.c.lease_expires_us > bindparam("now_us"))
_is_waiting = or_(runs.c.lease_expires_us.is_(None), runs.c.lease_expires_us <= bindparam("now_us"))
_WAITING = select(func.count().label("count")).where(IS_ACTIVE, _is_waiting)
_SINCE = (
    select(runs.c.created_us, runs.c.lease_expires_us)
    .where(IS_ACTIVE, _is_waiting)
    .order_by(runs.c.created_us)
    .limit(MOST_AGES)
)
_waits_now = or_(runs.c.lease_expires_us.is_(None), runs.c.lease_expires_us <= database_now_us())
_some_waiting = select(runs.c.id).where(IS_ACTIVE, _waits_now).limit(bindparam("at_most")).subquery()
_WAITING_AT_MOST = select(func.count().label("count")).select_from(_some_waiting)
_HELD = select(func.count().label("count")).select_from(holds).where(holds.c.decided_us.is_(None))


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    driven: int
    held: int
    waiting: int
    ages_s: Sequence[float]  # of waiting runs, the shortest first

    def age_s(self, quantile: float) -> float:
        """Zero when nothing waits."""
        return self.ages_s[min(int(quantile * len(self.ages_s)), len(self.ages_s) - 1)] if self.ages_s else 0.0


async def read(tx: Transaction, now_us: int) -> Queue:
    """A run whose worker died waits since its lease ran out; any other, since it was accepted."""
    given = {"now_us": now_us}
    rows = await tx.fetch_all(_SINCE, given)
    since = (max(row["created_us"], row["lease_expires_us"] or 0) for row in rows)
    return Queue(
        driven=await _count(tx, _DRIVEN, given),
        held=await _count(tx, _HELD, {}),
        waiting=await _count(tx, _WAITING, given) if len(rows) == MOST_AGES else len(rows),
        ages_s=sorted(max(0, now_us - moment) / 1_000_000 for moment in since),
    )


async def count_waiting(tx: Transaction, at_most: int) -> int:
    """Counted no further than that."""
    return await _count(tx, _WAITING_AT_MOST, {"at_most": at_most})


async def _count(tx: Transaction, statement: Statement, given: dict[str, int]) -> int:
    row = await tx.fetch_one(statement, given)
    assert row is not None
    return row["count"]

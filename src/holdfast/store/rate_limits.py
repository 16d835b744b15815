"""The buckets that all processes take from, and which runs wait for them. What is taken, `core/rate_limits.py` says."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, bindparam, delete, select, update

from holdfast.core import rate_limits
from holdfast.core.rate_limits import Limit, Taken
from holdfast.store.statements import database_now_us, insert_or_ignore, insert_or_update
from holdfast.store.tables import rate_limits as buckets
from holdfast.store.tables import rate_waits
from holdfast.store.transaction import Transaction

ROWS_AT_ONCE: Final = 1_000

_this_bucket = buckets.c.key == bindparam("bucket")
_LOCK = select(buckets.c.full_at_us, database_now_us().label("now_us")).where(_this_bucket).with_for_update()
_ADD = insert_or_ignore(buckets)
_SET = update(buckets).where(_this_bucket).values(full_at_us=bindparam("full_at", type_=BigInteger()))
_WAIT = insert_or_update(rate_waits, ["run_id"], ["provider", "until_us"])
_WAIT_OF = select(rate_waits.c.provider, rate_waits.c.until_us).where(rate_waits.c.run_id == bindparam("run"))
_some = rate_waits.alias("some")
_DELETE_OVER = delete(rate_waits).where(
    rate_waits.c.run_id.in_(
        select(_some.c.run_id)
        .where(_some.c.until_us < bindparam("before_us"))
        .order_by(_some.c.until_us)
        .limit(bindparam("at_most", type_=BigInteger()))
    )
)


async def take(tx: Transaction, limit: Limit, wanted: int, longest_wait_s: float) -> Taken:
    """By the database's clock. Nobody else takes from the bucket until the transaction ends, so keep it short."""
    row = await tx.fetch_one(_LOCK, {"bucket": limit.key})
    if row is None:
        await tx.execute(_ADD, {"key": limit.key, "full_at_us": 0})
        row = await tx.fetch_one(_LOCK, {"bucket": limit.key})
        assert row is not None
    taken = rate_limits.take(limit, row["full_at_us"], row["now_us"], wanted, longest_wait_s)
    await tx.execute(_SET, {"bucket": limit.key, "full_at": taken.full_at_us})
    return taken


async def record_wait(tx: Transaction, run_id: str, provider: str, until_us: int) -> None:
    await tx.execute(_WAIT, {"run_id": run_id, "provider": provider, "until_us": until_us})


async def wait_of(tx: Transaction, run_id: str) -> tuple[str, int] | None:
    """The provider that the run waits or has waited for, and until when."""
    row = await tx.fetch_one(_WAIT_OF, {"run": run_id})
    return None if row is None else (row["provider"], row["until_us"])


async def delete_waits(tx: Transaction, before_us: int) -> int:
    """Those that ended before. At most `ROWS_AT_ONCE`: repeat it until it deletes fewer."""
    return await tx.execute(_DELETE_OVER, {"before_us": before_us, "at_most": ROWS_AT_ONCE})

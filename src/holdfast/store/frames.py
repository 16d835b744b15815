"""What listeners of a background run were shown, in numbered batches. A batch is bytes here.

Frames of other runs are not stored: nobody can attach to them, and their messages are stored anyway (decision 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, func, select

from holdfast.store.statements import insert_or_update
from holdfast.store.tables import frames
from holdfast.store.transaction import Transaction

_APPEND = insert_or_update(frames, ["run_id", "first_seq"], ["last_seq", "frames"], if_greater="last_seq")
_LOAD = (
    select(frames.c.first_seq, frames.c.last_seq, frames.c.frames)
    .where(frames.c.run_id == bindparam("run"), frames.c.last_seq > bindparam("after"))
    .order_by(frames.c.first_seq)
)
_LOAD_SOME = _LOAD.limit(bindparam("at_most"))
_LAST = select(func.max(frames.c.last_seq).label("last")).where(frames.c.run_id == bindparam("run"))


class FrameBatch(NamedTuple):
    run_id: str
    first_seq: int
    last_seq: int
    frames: bytes


async def append(tx: Transaction, run_id: str, first_seq: int, last_seq: int, blob: bytes) -> None:
    """A batch with the `first_seq` of a stored one replaces it if it is longer: its owner writes it again because the
    first commit was not confirmed, and it holds the same frames and those that came since. A shorter one is a part of
    what is stored."""
    await append_many(tx, [FrameBatch(run_id, first_seq, last_seq, blob)])


async def append_many(tx: Transaction, batches: Sequence[FrameBatch]) -> None:
    """As `append`; of each run one."""
    await tx.execute_many(_APPEND, [batch._asdict() for batch in batches])


async def load(tx: Transaction, run_id: str, after_seq: int, limit: int | None = None) -> list[tuple[int, int, bytes]]:
    """The batches that hold anything after `after_seq`, or the first of them; the first may begin at or before it."""
    given = {"run": run_id, "after": after_seq}
    rows = await (tx.fetch_all(_LOAD, given) if limit is None else tx.fetch_all(_LOAD_SOME, given | {"at_most": limit}))
    return [(row["first_seq"], row["last_seq"], row["frames"]) for row in rows]


async def last_seq(tx: Transaction, run_id: str) -> int:
    """0 when nothing is stored."""
    row = await tx.fetch_one(_LAST, {"run": run_id})
    return (row["last"] if row else None) or 0

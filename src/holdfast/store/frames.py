"""What listeners of a run were shown, in numbered batches. A batch is bytes here."""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from holdfast.store.statements import insert_or_update
from holdfast.store.tables import frames
from holdfast.store.transaction import Transaction

_APPEND = insert_or_update(frames, ["run_id", "first_seq"], ["last_seq", "frames"])
_LOAD = (
    select(frames.c.first_seq, frames.c.last_seq, frames.c.frames)
    .where(frames.c.run_id == bindparam("run"), frames.c.last_seq > bindparam("after"))
    .order_by(frames.c.first_seq)
)
_LAST = select(func.max(frames.c.last_seq).label("last")).where(frames.c.run_id == bindparam("run"))


async def append(tx: Transaction, run_id: str, first_seq: int, last_seq: int, blob: bytes) -> None:
    """A batch that begins where another did takes its place: it is the same one and what has come since, written again
    by an owner that did not hear of its commit."""
    await tx.execute(_APPEND, {"run_id": run_id, "first_seq": first_seq, "last_seq": last_seq, "frames": blob})


async def load(tx: Transaction, run_id: str, after_seq: int) -> list[tuple[int, int, bytes]]:
    """The batches that hold anything after `after_seq`; the first may begin at or before it."""
    rows = await tx.fetch_all(_LOAD, {"run": run_id, "after": after_seq})
    return [(row["first_seq"], row["last_seq"], row["frames"]) for row in rows]


async def last_seq(tx: Transaction, run_id: str) -> int:
    """0 when nothing is stored."""
    row = await tx.fetch_one(_LAST, {"run": run_id})
    return (row["last"] if row else None) or 0

"""Holds: calls that wait for a human or for the client. A thread has at most one open hold, by a unique index (I4)."""

from __future__ import annotations

import msgspec
from sqlalchemy import bindparam, select, update

from holdfast.core.changes import Change
from holdfast.core.hold import Hold
from holdfast.core.records import Run
from holdfast.store.paging import Ordering, Page, fetch_page
from holdfast.store.statements import insert_or_ignore
from holdfast.store.tables import holds
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Hold).decode

_INSERT = insert_or_ignore(holds)
_ONE = select(holds).where(holds.c.run_id == bindparam("run"))
_OPEN_OF_THREAD = select(holds).where(holds.c.thread_id == bindparam("thread"), holds.c.decided_us.is_(None))
_DECIDE = (
    update(holds)
    .where(holds.c.run_id == bindparam("run"), holds.c.decided_us.is_(None))
    .values(decided_us=bindparam("at_us"), decided_by_run=bindparam("by_run"))
    .returning(holds.c.agent_id, holds.c.thread_id)
)
_RECENTLY_DECIDED = (
    select(holds)
    .where(holds.c.thread_id == bindparam("thread"), holds.c.decided_by_run.is_not(None))
    .order_by(holds.c.decided_us.desc())
    .limit(5)
)
_BY_AGE = Ordering(sort=holds.c.asked_us, id=holds.c.run_id, what="Run")


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    thread_id: str
    agent_id: str
    request_id: str
    hold: Hold
    asked_us: int
    decided_us: int | None
    decided_by_run: str | None


async def insert(tx: Transaction, run: Run, hold: Hold, asked_us: int) -> bool:
    """False when the thread waits for a decision already, or this run has asked before."""
    inserted = await tx.execute(
        _INSERT,
        {
            "run_id": run.id,
            "thread_id": run.thread_id,
            "agent_id": run.agent_id,
            "request_id": hold.request_id,
            "hold": _encode(hold).decode(),
            "asked_us": asked_us,
        },
    )
    if inserted:
        tx.changes.append(Change("approval", run.id, "open", run.agent_id, run.thread_id))
    return inserted == 1


async def get(tx: Transaction, run_id: str) -> HoldRow | None:
    """Decided or not."""
    row = await tx.fetch_one(_ONE, {"run": run_id})
    return _hold(row) if row else None


async def open_of_thread(tx: Transaction, thread_id: str) -> HoldRow | None:
    row = await tx.fetch_one(_OPEN_OF_THREAD, {"thread": thread_id})
    return _hold(row) if row else None


async def recently_decided(tx: Transaction, thread_id: str) -> list[HoldRow]:
    """The last few that somebody answered, newest first: an answer that is sent again must not be refused as wrong."""
    return [_hold(row) for row in await tx.fetch_all(_RECENTLY_DECIDED, {"thread": thread_id})]


async def decide(tx: Transaction, run_id: str, decided_us: int, by_run: str | None) -> bool:
    """True for exactly one caller, by a conditional update (I4). `by_run` is the successor run, or None when the hold
    was cancelled."""
    row = await tx.fetch_one(_DECIDE, {"run": run_id, "at_us": decided_us, "by_run": by_run})
    if row is not None:
        tx.changes.append(Change("approval", run_id, "decided", row["agent_id"], row["thread_id"]))
    return row is not None


async def list_open(tx: Transaction, agent_id: str | None = None, page: Page | None = None) -> list[HoldRow]:
    """Undecided ones; cursors are run ids."""
    query = select(holds).where(holds.c.decided_us.is_(None))
    if agent_id is not None:
        query = query.where(holds.c.agent_id == agent_id)
    return [_hold(row) for row in await fetch_page(tx, query, _BY_AGE, page or Page())]


def _hold(row: Row) -> HoldRow:
    return HoldRow(
        run_id=row["run_id"],
        thread_id=row["thread_id"],
        agent_id=row["agent_id"],
        request_id=row["request_id"],
        hold=_decode(row["hold"]),
        asked_us=row["asked_us"],
        decided_us=row["decided_us"],
        decided_by_run=row["decided_by_run"],
    )

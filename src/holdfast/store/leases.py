"""Leases: who may drive a run, and until when, by the database's clock. The number of a lease is the fencing token: it
grows with every claim, and whoever writes for the run must hold the newest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, and_, bindparam, func, or_, select, update

from holdfast.core.changes import Change
from holdfast.core.records import Run
from holdfast.store.runs import COLUMNS, IS_ACTIVE, THIS_LEASE, THIS_RUN, run_from
from holdfast.store.statements import database_now_us, in_array
from holdfast.store.tables import agents, runs
from holdfast.store.transaction import Row, Transaction

# Whoever claims a run drives it, so it runs from then on; no other statement need say so.
_CLAIMED: dict[Any, Any] = {
    runs.c.lease: runs.c.lease + 1,
    runs.c.lease_owner: bindparam("owner"),
    runs.c.lease_expires_us: bindparam("until_us"),
    runs.c.status: "running",
    runs.c.started_us: func.coalesce(runs.c.started_us, bindparam("now_us", type_=BigInteger())),
}
_CLAIM = (
    update(runs)
    .where(
        THIS_RUN,
        IS_ACTIVE,
        or_(
            runs.c.lease_owner.is_(None),
            runs.c.lease_owner == bindparam("owner"),
            runs.c.lease_expires_us <= bindparam("now_us"),
        ),
    )
    .values(_CLAIMED)
    .returning(*COLUMNS)
)
_is_waiting = and_(IS_ACTIVE, or_(runs.c.lease_expires_us.is_(None), runs.c.lease_expires_us <= bindparam("now_us")))
# Read once, by the index of active runs: both databases keep a query that is used twice.
_active = (
    select(runs.c.id, runs.c.agent_id, runs.c.background, runs.c.created_us, runs.c.lease_expires_us)
    .where(IS_ACTIVE)
    .cte("active")
)
_waiting = (
    select(
        _active.c.id,
        _active.c.agent_id,
        _active.c.background,
        _active.c.created_us,
        func.row_number()
        .over(partition_by=_active.c.agent_id, order_by=(_active.c.created_us, _active.c.id))
        .label("place"),
    )
    .where(or_(_active.c.lease_expires_us.is_(None), _active.c.lease_expires_us <= bindparam("now_us")))
    .cte("waiting")
)
_driven = (
    select(_active.c.agent_id, func.count().label("count"))
    .where(_active.c.lease_expires_us > bindparam("now_us"))
    .group_by(_active.c.agent_id)
    .cte("driven")
)
_turn = func.coalesce(_driven.c.count, 0) + _waiting.c.place
_NEXT = (
    select(_waiting.c.id)
    .select_from(_waiting.outerjoin(_driven, _driven.c.agent_id == _waiting.c.agent_id))
    .order_by(_turn, _waiting.c.created_us, _waiting.c.id)
    .limit(bindparam("at_most"))
)
_NEXT_WITHIN_LIMIT = _NEXT.where(or_(_waiting.c.background.is_(False), _turn <= bindparam("most_per_agent")))
# Whoever accepts a run of the agent need not wait for it (FOR NO KEY UPDATE). In one order: two who claim do not lock
# each other out.
_LOCK_AGENTS = (
    select(agents.c.id)
    .where(agents.c.id.in_(select(runs.c.agent_id).where(in_array(runs.c.id, "ids"))))
    .order_by(agents.c.id)
    .with_for_update(key_share=True)
)
_DRIVEN_OF_AGENTS = (
    select(runs.c.agent_id, func.count().label("count"))
    .where(IS_ACTIVE, runs.c.lease_expires_us > bindparam("now_us"), in_array(runs.c.agent_id, "agents"))
    .group_by(runs.c.agent_id)
)
_LOCK = (
    select(runs.c.id, runs.c.lease_owner, runs.c.agent_id, runs.c.background)
    .where(in_array(runs.c.id, "ids"), _is_waiting)
    .with_for_update(skip_locked=True)
)
_CLAIM_LOCKED = update(runs).where(in_array(runs.c.id, "ids")).values(_CLAIMED).returning(*COLUMNS)
_EXPIRE_OTHERS = (
    update(runs)
    .where(IS_ACTIVE, runs.c.lease_owner.is_not(None), runs.c.lease_owner != bindparam("owner"))
    .values(lease_expires_us=0)
)
_RENEW = (
    update(runs)
    .where(runs.c.lease_owner == bindparam("owner"), runs.c.lease_expires_us > 0, IS_ACTIVE)  # 0: see `expire`
    .values(lease_expires_us=database_now_us() + bindparam("ttl_us", type_=BigInteger()))
    .returning(runs.c.id, runs.c.lease, runs.c.cancel_asked_us)
)
_RENEW_THESE = _RENEW.where(in_array(runs.c.id, "ids"))
_held = select(runs.c.id, runs.c.lease).where(in_array(runs.c.id, "ids"), IS_ACTIVE)
_HELD = _held.with_for_update(read=True)
_HELD_UNLOCKED = _held.with_for_update(read=True, skip_locked=True)
_RELEASE = update(runs).where(THIS_RUN, THIS_LEASE).values(lease_owner=None, lease_expires_us=None)
_EXPIRE = update(runs).where(THIS_RUN, THIS_LEASE).values(lease_expires_us=0)


class Claimed(msgspec.Struct, frozen=True):
    run: Run
    owner_died: bool  # the earlier owner did not let go of it


async def claim(tx: Transaction, run_id: str, owner: str, now_us: int, ttl_us: int) -> Run | None:
    """Take an active run that nobody else holds (I9). The lease number grows, so that the former owner is fenced."""
    row = await tx.fetch_one(_CLAIM, {"run": run_id, "owner": owner, "now_us": now_us, "until_us": now_us + ttl_us})
    return _claimed(tx, row) if row else None


async def waiting(tx: Transaction, now_us: int, at_most: int, most_per_agent: int = 0) -> list[str]:
    """Runs that no live owner drives. First those of agents of which the fewest runs are driven or waiting before them,
    then the oldest: an agent with a thousand waiting runs does not keep another's one waiting.

    With `most_per_agent`, without background runs of agents of which so many are driven."""
    given = {"now_us": now_us, "at_most": at_most}
    if most_per_agent:
        rows = await tx.fetch_all(_NEXT_WITHIN_LIMIT, {**given, "most_per_agent": most_per_agent})
    else:
        rows = await tx.fetch_all(_NEXT, given)
    return [row["id"] for row in rows]


async def claim_many(
    tx: Transaction, run_ids: Sequence[str], owner: str, now_us: int, ttl_us: int, most_per_agent: int = 0
) -> list[Claimed]:
    """Takes those that no live owner drives, and that nobody else is just taking; with `most_per_agent` not more than
    that, whoever else claims runs of the same agents at the same time."""
    if most_per_agent:
        await tx.fetch_all(_LOCK_AGENTS, {"ids": list(run_ids)})
    locked = await tx.fetch_all(_LOCK, {"ids": list(run_ids), "now_us": now_us})
    if most_per_agent:
        locked = await _within_limit(tx, run_ids, locked, now_us, most_per_agent)
    owners: dict[str, str | None] = {row["id"]: row["lease_owner"] for row in locked}
    if not owners:
        return []
    given = {"ids": list(owners), "owner": owner, "now_us": now_us, "until_us": now_us + ttl_us}
    taken = {row["id"]: _claimed(tx, row) for row in await tx.fetch_all(_CLAIM_LOCKED, given)}
    return [Claimed(taken[run_id], owners[run_id] is not None) for run_id in run_ids if run_id in taken]


def _claimed(tx: Transaction, row: Row) -> Run:
    run = run_from(row)
    tx.changes.append(Change("run", run.id, run.status, run.agent_id, run.thread_id))
    return run


async def _within_limit(
    tx: Transaction, order: Sequence[str], locked: Sequence[Row], now_us: int, most_per_agent: int
) -> list[Row]:
    """Counted anew, now that nobody else can claim runs of these agents. Runs that somebody waits for count too, but
    the limit does not hold them up."""
    given = {"now_us": now_us, "agents": list({row["agent_id"] for row in locked})}
    driven = Counter({row["agent_id"]: row["count"] for row in await tx.fetch_all(_DRIVEN_OF_AGENTS, given)})
    found = {row["id"]: row for row in locked}
    kept: list[Row] = []
    for row in (found[run_id] for run_id in order if run_id in found):
        if row["background"] and driven[row["agent_id"]] >= most_per_agent:
            continue
        driven[row["agent_id"]] += 1
        kept.append(row)
    return kept


async def expire_other_leases(tx: Transaction, owner: str) -> None:
    """Their owner stays on record. It did not release the run, so it may have shown frames that are not stored, and
    whoever claims the run must skip their numbers (decision 13)."""
    await tx.execute(_EXPIRE_OTHERS, {"owner": owner})


async def renew(
    tx: Transaction, owner: str, ttl_us: int, run_ids: Sequence[str] | None = None
) -> list[tuple[str, int, int | None]]:
    """Extend the leases of one owner at once; of these runs only, when they are given, so that one it has lost track
    of can expire. Gives (run id, lease, when a cancel was asked) for each."""
    given: dict[str, Any] = {"owner": owner, "ttl_us": ttl_us}
    if run_ids is None:
        rows = await tx.fetch_all(_RENEW, given)
    else:
        rows = await tx.fetch_all(_RENEW_THESE, {**given, "ids": list(run_ids)})
    return [(row["id"], row["lease"], row["cancel_asked_us"]) for row in rows]


async def still_held(tx: Transaction, held: Mapping[str, int], *, wait: bool = True) -> set[str]:
    """Those of these runs whose current lease is the given one; nobody can take them over before the transaction ends.

    Without `wait` one is left out also while another transaction, which may be stuck, changes it: ask again later.
    """
    rows = await tx.fetch_all(_HELD if wait else _HELD_UNLOCKED, {"ids": list(held)})
    return {row["id"] for row in rows if row["lease"] == held[row["id"]]}


async def release(tx: Transaction, run_id: str, lease: int) -> bool:
    """Give the lease up, so that another worker can claim the run at once. No owner stays on record."""
    return await tx.execute(_RELEASE, {"run": run_id, "held_lease": lease}) == 1


async def expire(tx: Transaction, run_id: str, lease: int) -> bool:
    """As `release`, but the owner stays on record, as if it had died: see `expire_other_leases`. It cannot renew the
    lease any more."""
    return await tx.execute(_EXPIRE, {"run": run_id, "held_lease": lease}) == 1

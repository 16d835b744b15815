"""Tasks: work that outlives the request that asked for it, as rows.

A task is added in the transaction that makes it due, so it cannot be lost. Whoever performs it holds a lease, by the
database's clock; the number of the lease is the fencing token, and every write for the task compares it first. The row
is deleted in the transaction that stores the result, so the work cannot be done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, and_, bindparam, delete, or_, select, update

from holdfast import ids
from holdfast.core.records import Task
from holdfast.store.statements import database_now_us, in_array, insert_or_ignore
from holdfast.store.tables import tasks
from holdfast.store.transaction import Row, Transaction

_TTL_US = bindparam("ttl_us", type_=BigInteger())
_ADD = insert_or_ignore(tasks)
_NOW = select(database_now_us().label("now_us"))
_is_free = and_(
    tasks.c.due_us <= database_now_us(),
    or_(tasks.c.lease_expires_us.is_(None), tasks.c.lease_expires_us <= database_now_us()),
)
_free = select(tasks.c.id).where(_is_free, in_array(tasks.c.kind, "kinds"))
_ANY_FREE = _free.limit(1)
_FREE = (
    _free.order_by(tasks.c.due_us, tasks.c.id)
    .limit(bindparam("at_most", type_=BigInteger()))
    .with_for_update(skip_locked=True)
)
_COLUMNS = tuple(tasks.c[name] for name in Task.__struct_fields__)
_CLAIM = (
    update(tasks)
    .where(in_array(tasks.c.id, "ids"))
    .values(
        lease=tasks.c.lease + 1,
        attempts=tasks.c.attempts + 1,
        lease_owner=bindparam("owner"),
        lease_expires_us=database_now_us() + _TTL_US,
    )
    .returning(*_COLUMNS)
)
_RENEW = (
    update(tasks)
    .where(in_array(tasks.c.id, "ids"), tasks.c.lease_owner == bindparam("owner"))
    .values(lease_expires_us=database_now_us() + _TTL_US)
    .returning(tasks.c.id, tasks.c.lease)
)
_this_lease = and_(tasks.c.id == bindparam("task"), tasks.c.lease == bindparam("held_lease"))
_HELD = select(tasks.c.id).where(_this_lease).with_for_update()
_FINISH = delete(tasks).where(_this_lease)
_free_again = {"lease_owner": None, "lease_expires_us": None}
_POSTPONE = (
    update(tasks)
    .where(_this_lease)
    .values(
        due_us=database_now_us() + bindparam("after_us", type_=BigInteger()),
        attempts=tasks.c.attempts - bindparam("uncounted", type_=BigInteger()),
        **_free_again,
    )
)
_RELEASE = update(tasks).where(_this_lease).values(attempts=tasks.c.attempts - 1, **_free_again)
_WITHDRAW = delete(tasks).where(tasks.c.kind == bindparam("of_kind"), in_array(tasks.c.subject_id, "subjects"))
_EXPIRE_OTHERS = (
    update(tasks)
    .where(tasks.c.lease_owner.is_not(None), tasks.c.lease_owner != bindparam("owner"))
    .values(lease_expires_us=0)
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def add(
    tx: Transaction,
    kind: str,
    subject_id: str,
    payload: dict[str, Any] | None = None,
    organization_id: str = ids.DEFAULT_ORG,
) -> bool:
    """Whether it is new: a subject has at most one task of a kind, so adding it again changes nothing."""
    now = await tx.fetch_one(_NOW)
    assert now is not None
    row = {
        "id": ids.new("task"),
        "organization_id": organization_id,
        "kind": kind,
        "subject_id": subject_id,
        "payload": _encode(payload or {}).decode(),
        "due_us": now["now_us"],
        "created_us": now["now_us"],
    }
    return await tx.execute(_ADD, row) == 1


async def any_free(tx: Transaction, kinds: Sequence[str]) -> bool:
    """Whether there is a task to claim. Most looks find none, and this one locks and writes nothing."""
    return await tx.fetch_one(_ANY_FREE, {"kinds": list(kinds)}) is not None


async def claim(tx: Transaction, kinds: Sequence[str], owner: str, ttl_us: int, at_most: int) -> list[Task]:
    """Takes tasks that are due and that no live owner holds, the longest due first."""
    free = await tx.fetch_all(_FREE, {"kinds": list(kinds), "at_most": at_most})
    if not free:
        return []
    claimed = await tx.fetch_all(_CLAIM, {"ids": [row["id"] for row in free], "owner": owner, "ttl_us": ttl_us})
    return [_task(row) for row in claimed]


async def renew(tx: Transaction, task_ids: Sequence[str], owner: str, ttl_us: int) -> dict[str, int]:
    """The leases that this owner still holds, by the task's id. One that is missing was taken over or withdrawn."""
    rows = await tx.fetch_all(_RENEW, {"ids": list(task_ids), "owner": owner, "ttl_us": ttl_us})
    return {row["id"]: row["lease"] for row in rows}


async def is_held(tx: Transaction, task: Task) -> bool:
    """Whether its lease is the current one; then nobody can take it over before this transaction ends."""
    return await tx.fetch_one(_HELD, {"task": task.id, "held_lease": task.lease}) is not None


async def finish(tx: Transaction, task: Task) -> bool:
    return await tx.execute(_FINISH, {"task": task.id, "held_lease": task.lease}) == 1


async def postpone(tx: Transaction, task: Task, after_us: int, *, counts: bool = True) -> bool:
    """`counts`: as an attempt."""
    held = {"task": task.id, "held_lease": task.lease}
    return await tx.execute(_POSTPONE, {**held, "after_us": after_us, "uncounted": 0 if counts else 1}) == 1


async def release(tx: Transaction, task: Task) -> bool:
    """Somebody else may go on with it at once. What was begun does not count as an attempt."""
    return await tx.execute(_RELEASE, {"task": task.id, "held_lease": task.lease}) == 1


async def withdraw(tx: Transaction, kind: str, subject_ids: Sequence[str]) -> int:
    """Their work is no longer wanted. Whoever performs it can write nothing for it any more."""
    return await tx.execute(_WITHDRAW, {"of_kind": kind, "subjects": list(subject_ids)})


async def expire_other_leases(tx: Transaction, owner: str) -> None:
    """For a server that shares its database with nobody: whoever else holds a lease is dead."""
    await tx.execute(_EXPIRE_OTHERS, {"owner": owner})


def _task(row: Row) -> Task:
    return Task(
        id=row["id"],
        organization_id=row["organization_id"],
        kind=row["kind"],
        subject_id=row["subject_id"],
        payload=_decode(row["payload"]),
        attempts=row["attempts"],
        lease=row["lease"],
    )

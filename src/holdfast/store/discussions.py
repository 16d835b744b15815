"""Discussions: messages to groups, and how each of them ended."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, select, update

from holdfast import ids
from holdfast.core.records import Discussion, Run, StopReason
from holdfast.store import runs
from holdfast.store.group_tables import discussions
from holdfast.store.statements import insert_or_ignore
from holdfast.store.tables import runs as run_table
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_MEMBERS = ("manager_type", "agent_ids", "manager_agent_id", "termination_token", "max_turns")
_INSERT = insert_or_ignore(discussions)
_ONE = select(discussions).where(discussions.c.id == bindparam("id"))
_BY_KEY = select(discussions).where(
    discussions.c.group_id == bindparam("group"), discussions.c.request_key == bindparam("key")
)
_END = (
    update(discussions)
    .where(discussions.c.id == bindparam("of_discussion"), discussions.c.ended_us.is_(None))
    .values(
        ended_us=bindparam("now_us", type_=BigInteger()),
        stop_reason=bindparam("reason"),
        error=bindparam("what"),
    )
)
_LOCK_RUN = select(run_table.c.status).where(run_table.c.id == bindparam("run")).with_for_update()


async def insert(tx: Transaction, discussion: Discussion) -> bool:
    """False when the group has an open one, or this request has been made already."""
    row = {
        "id": discussion.id,
        "organization_id": ids.DEFAULT_ORG,
        "group_id": discussion.group_id,
        "members": _encode({name: getattr(discussion, name) for name in _MEMBERS}).decode(),
        "request": _encode(discussion.request).decode(),
        "request_key": discussion.request_key,
        "created_us": discussion.created_us,
    }
    return await tx.execute(_INSERT, row) == 1


async def find(tx: Transaction, discussion_id: str) -> Discussion | None:
    row = await tx.fetch_one(_ONE, {"id": discussion_id})
    return None if row is None else _record(row)


async def by_request_key(tx: Transaction, group_id: str, key: str) -> Discussion | None:
    row = await tx.fetch_one(_BY_KEY, {"group": group_id, "key": key})
    return None if row is None else _record(row)


async def end(
    tx: Transaction, discussion_id: str, now_us: int, stop_reason: StopReason, error: dict[str, Any] | None
) -> None:
    """Once: a second end changes nothing."""
    what = None if error is None else _encode(error).decode()
    await tx.execute(_END, {"of_discussion": discussion_id, "now_us": now_us, "reason": stop_reason, "what": what})


async def locked_run(tx: Transaction, run_id: str) -> Run:
    """As it is when whoever is ending it has done so: nobody ends it before this transaction does."""
    await tx.fetch_one(_LOCK_RUN, {"run": run_id})
    return await runs.get(tx, run_id)


def _record(row: Row) -> Discussion:
    members = _decode(row["members"])
    return Discussion(
        id=row["id"],
        group_id=row["group_id"],
        manager_type=members["manager_type"],
        agent_ids=tuple(members["agent_ids"]),
        manager_agent_id=members["manager_agent_id"],
        termination_token=members["termination_token"],
        max_turns=members["max_turns"],
        request=_decode(row["request"]),
        request_key=row["request_key"],
        created_us=row["created_us"],
        ended_us=row["ended_us"],
        stop_reason=row["stop_reason"],
        error=None if row["error"] is None else _decode(row["error"]),
    )

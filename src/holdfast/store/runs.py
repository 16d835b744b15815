"""Runs: admission, the conditional transitions of a run's row, what is counted from its parts, lists of runs, the
queue.

A run ends once (I1), and a cancel that is on record wins (I5). Every transition is one conditional update, so that the
database orders a checkpoint, a cancel and a take-over, whichever process they come from. A write that
carries an older lease than the run's changes nothing (`leases.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Text,
    Update,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy import delete as delete_from

from holdfast.core.changes import Change
from holdfast.core.messages import Parts, ToolCall
from holdfast.core.records import PARENT, Run, RunStatus, StopReason
from holdfast.core.usage import Usage
from holdfast.errors import BugError, HoldfastError, NotFound
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import PerDialect, Statement, database_now_us, in_array, insert_or_ignore
from holdfast.store.tables import holds, messages, run_otids, runs, steps
from holdfast.store.transaction import Row, Transaction

_encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_parts = msgspec.json.Decoder(Parts).decode

_JSON = ("metadata", "request_config")
_PLAIN = tuple(name for name in Run.__struct_fields__ if name not in (*_JSON, "background"))
_plain_values = attrgetter(*_PLAIN)  # one call for all of them
COLUMNS = [runs.columns[name] for name in Run.__struct_fields__]

THIS_RUN = runs.c.id == bindparam("run", type_=Text())
THIS_LEASE = runs.c.lease == bindparam("held_lease", type_=BigInteger())
# Spelt out, not as a parameter: only so can either database see that the indexes of active runs apply.
IS_ACTIVE = runs.c.status.in_([literal_column(f"'{status}'", Text()) for status in ("created", "running")])

_INSERT = insert_or_ignore(runs)
_INSERT_LEASED = PerDialect(
    lambda insert: (
        insert(runs)
        .inline()
        .values(lease_expires_us=database_now_us() + bindparam("lease_ttl_us", type_=BigInteger()))
        .on_conflict_do_nothing()
    )
)
_ONE = select(*COLUMNS).where(THIS_RUN)
_DELETE = (
    delete_from(runs)
    .where(THIS_RUN)
    .returning(runs.c.id, runs.c.created_us, runs.c.total_duration_ns, runs.c.agent_id, runs.c.thread_id)
)
_ACTIVE_OF_THREAD = select(*COLUMNS).where(runs.c.thread_id == bindparam("thread"), IS_ACTIVE)
_BY_REQUEST_KEY = select(*COLUMNS).where(
    runs.c.thread_id == bindparam("thread"), runs.c.request_key == bindparam("key")
)
_ACTIVE_WITH_PARENT = select(*COLUMNS).where(IS_ACTIVE, runs.c.metadata.contains(f'"{PARENT}":"', autoescape=True))
_BY_OTID = (
    select(*COLUMNS)
    .join(run_otids, run_otids.c.run_id == runs.c.id)
    .where(run_otids.c.thread_id == bindparam("thread"), run_otids.c.otid == bindparam("otid"))
    .order_by(runs.c.created_us.desc(), runs.c.id.desc())
    .limit(1)
)
_ADD_OTIDS = insert_or_ignore(run_otids)
_PROGRESS = ("ttft_ns",)
_STATUS_AND_END = ("status", "stop_reason", "completed_us", "total_duration_ns", "callback_due_us")


def _checkpoint(names: tuple[str, ...]) -> Update:
    return (
        update(runs)
        .where(THIS_RUN, THIS_LEASE, IS_ACTIVE, runs.c.checkpoints < bindparam("number", type_=BigInteger()))
        .values(
            {
                name: func.coalesce(bindparam(f"new_{name}", type_=runs.columns[name].type), runs.columns[name])
                for name in names
            }
            | {
                "started_us": func.coalesce(runs.c.started_us, bindparam("new_started_us", type_=BigInteger())),
                "checkpoints": bindparam("number", type_=BigInteger()),
            }
        )
    )


_NOT_CANCELLING = runs.c.cancel_asked_us.is_(None)
_CHECKPOINT = _checkpoint(_PROGRESS + _STATUS_AND_END)
_CHECKPOINT_UNLESS_CANCELLING = _CHECKPOINT.where(_NOT_CANCELLING)
# SQLite writes an index anew when a statement names its columns, changed or not.
_WITHIN_STATUS = _checkpoint(_PROGRESS)
_WITHIN_STATUS_UNLESS_CANCELLING = _WITHIN_STATUS.where(_NOT_CANCELLING)
_ASK_CANCEL = (
    update(runs)
    .where(THIS_RUN, IS_ACTIVE)
    .values(cancel_asked_us=func.coalesce(runs.c.cancel_asked_us, bindparam("now_us", type_=BigInteger())))
    .returning(*COLUMNS)
)
_END_PARKED = (
    update(runs)
    .where(THIS_RUN, runs.c.status == "completed", runs.c.stop_reason == "requires_approval")
    .values(status="cancelled", stop_reason="cancelled")
    .returning(runs.c.agent_id, runs.c.thread_id)
)
_TAKE_CALLBACKS = (
    update(runs)
    .where(
        runs.c.id.in_(
            select(runs.c.id)
            .where(runs.c.callback_due_us <= bindparam("now_us"))
            .order_by(runs.c.callback_due_us)
            .limit(bindparam("at_most"))
            .with_for_update(skip_locked=True)
        )
    )
    .values(callback_due_us=bindparam("hold_until_us"), callback_attempts=runs.c.callback_attempts + 1)
    .returning(*COLUMNS, runs.c.callback_attempts)
)
_NEXT_CALLBACK = select(func.min(runs.c.callback_due_us).label("due_us")).where(runs.c.callback_due_us.is_not(None))
_RECORD_CALLBACK_ATTEMPT = (
    update(runs)
    .where(THIS_RUN)
    .values(
        callback_sent_us=bindparam("sent_us", type_=BigInteger()),
        callback_status_code=bindparam("status_code"),
        callback_error=bindparam("error"),
        callback_due_us=bindparam("again_us", type_=BigInteger()),
    )
)
_TOTALS = select(
    func.count().label("steps"),
    func.sum(steps.c.cost_usd).label("cost_usd"),
    *(
        cast(func.sum(steps.columns[name]), BigInteger).label(name)
        for name in (
            "prompt_tokens",
            "completion_tokens",
            "cached_input_tokens",
            "cache_write_tokens",
            "reasoning_tokens",
        )
    ),
    func.max(case((steps.c.usage_estimated, 1), else_=0)).label("estimated"),
).where(steps.c.run_id == bindparam("run"))
_STEP_COUNT = select(func.count().label("steps")).where(steps.c.run_id == bindparam("run"))
_CALLING = (
    select(messages.c.parts)
    .where(messages.c.run_id == bindparam("run"), in_array(messages.c.role, ("assistant", "approval")))
    .order_by(messages.c.seq)
)
_SET_METADATA = update(runs).where(THIS_RUN).values(metadata=bindparam("merged"))
_BY_AGE = Ordering(sort=runs.c.created_us, id=runs.c.id, what="Run")
_BY_DURATION = Ordering(sort=runs.c.total_duration_ns, id=runs.c.id, what="Run")
MOST_CHANGED: Final = 500  # of either kind, the newest: whoever looks does so often
_since = bindparam("since_us", type_=BigInteger())
_ACCEPTED_SINCE = (
    select(runs.c.id, runs.c.status)
    .where(runs.c.created_us >= _since)
    .order_by(runs.c.created_us.desc())
    .limit(MOST_CHANGED)
)
_ENDED_SINCE = (
    select(runs.c.id, runs.c.status)
    .where(runs.c.completed_us >= _since, runs.c.completed_us.is_not(None))
    .order_by(runs.c.completed_us.desc())
    .limit(MOST_CHANGED)
)
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


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a list is to show: by what they are, and by what was measured of them."""

    agent_ids: tuple[str, ...] | None = None
    thread_id: str | None = None
    statuses: tuple[str, ...] | None = None
    active: bool = False  # means created and running; does nothing when statuses are given
    background: bool | None = None
    stop_reason: str | None = None
    start_us: int | None = None
    end_us: int | None = None
    step_count: int | None = None
    step_count_is: Literal["eq", "gte", "lte"] = "eq"
    tool_names: tuple[str, ...] | None = None  # called any of these
    duration_ns: int | None = None
    duration_is: Literal["gt", "lt", "eq"] = "gt"
    duration_percentile: int | None = None  # at least as long as so many in a hundred of the runs that match the rest


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs of the whole database wait, and for how long."""

    driven: int
    held: int
    waiting: int
    ages_s: Sequence[float]  # of waiting runs, the shortest first

    def age_s(self, quantile: float) -> float:
        """Zero when nothing waits."""
        return self.ages_s[min(int(quantile * len(self.ages_s)), len(self.ages_s) - 1)] if self.ages_s else 0.0


class RunTotals(msgspec.Struct, frozen=True):
    usage: Usage = Usage()
    steps: int = 0
    cost_usd: float | None = None


async def insert(
    tx: Transaction, run: Run, lease_ttl_us: int | None = None, *, otherwise: HoldfastError | None = None
) -> None:
    """Raises `otherwise` when the thread has an active run (I8, by a unique index), its request key is taken, or the
    run is stored already; without it, this is a bug.

    With `lease_ttl_us` its lease begins now, by the database's clock.
    """
    columns = dict(zip(_PLAIN, _plain_values(run), strict=True)) | {"background": run.background}
    columns |= {name: _encode(getattr(run, name)).decode() for name in _JSON}
    refused = otherwise or BugError(f"run {run.id} cannot be stored beside those that are")
    if lease_ttl_us is None:
        stored = await tx.execute_one(_INSERT, columns)
    else:
        del columns["lease_expires_us"]
        stored = await tx.execute_one(_INSERT_LEASED, columns | {"lease_ttl_us": lease_ttl_us})
    if not stored:
        raise refused
    tx.changes.append(Change("run", run.id, run.status, run.agent_id, run.thread_id))


async def find(tx: Transaction, run_id: str) -> Run | None:
    return _maybe(await tx.fetch_one(_ONE, {"run": run_id}))


async def get(tx: Transaction, run_id: str) -> Run:
    run = await find(tx, run_id)
    if run is None:
        raise NotFound("Run not found")
    return run


async def delete(tx: Transaction, run_id: str) -> None:
    """With its journal, frames, steps and hold; its messages are history and stay."""
    row = await tx.fetch_one(_DELETE, {"run": run_id})
    if row is None:
        raise NotFound("Run not found")
    await save_tombstone(tx, row, (_BY_AGE, _BY_DURATION))
    tx.changes.append(Change("run", run_id, "deleted", row["agent_id"], row["thread_id"]))


async def active_of_thread(tx: Transaction, thread_id: str) -> Run | None:
    return _maybe(await tx.fetch_one(_ACTIVE_OF_THREAD, {"thread": thread_id}))


async def by_request_key(tx: Transaction, thread_id: str, key: str) -> Run | None:
    return _maybe(await tx.fetch_one(_BY_REQUEST_KEY, {"thread": thread_id, "key": key}))


async def active_descendants(tx: Transaction, run_id: str) -> list[str]:
    """Runs that have not ended, and that a tool of this one has started, or a tool of a run that it has started."""
    active = [run_from(row) for row in await tx.fetch_all(_ACTIVE_WITH_PARENT)]
    parents: dict[str, str | None] = {run.id: run.metadata.get(PARENT) for run in active}
    found: list[str] = []
    for run in active:
        above = parents[run.id]
        while above is not None and above != run_id:
            if above not in parents:
                ancestor = await find(tx, above)
                parents[above] = ancestor.metadata.get(PARENT) if ancestor is not None else None
            above = parents[above]
        if above == run_id:
            found.append(run.id)
    return found


async def by_otid(tx: Transaction, thread_id: str, otid: str) -> Run | None:
    """The newest run that was sent this otid."""
    return _maybe(await tx.fetch_one(_BY_OTID, {"thread": thread_id, "otid": otid}))


async def add_otids(tx: Transaction, thread_id: str, run_id: str, otids: Sequence[str]) -> None:
    await tx.execute_many(
        _ADD_OTIDS, [{"thread_id": thread_id, "otid": otid, "run_id": run_id} for otid in dict.fromkeys(otids)]
    )


async def list_runs(
    tx: Transaction, filters: RunFilter, page: Page, order_by: Literal["created_at", "duration"] = "created_at"
) -> list[Run]:
    """By duration, a run that has none yet is not listed."""
    query = select(*COLUMNS).where(*_conditions(filters))
    if order_by == "duration":
        query = query.where(runs.c.total_duration_ns.is_not(None))
    if filters.duration_percentile is not None:
        query = query.where(runs.c.total_duration_ns >= await _percentile(tx, filters, filters.duration_percentile))
    ordering = _BY_AGE if order_by == "created_at" else _BY_DURATION
    return [run_from(row) for row in await fetch_page(tx, query, ordering, page)]


async def _percentile(tx: Transaction, filters: RunFilter, percentile: int) -> int:
    measured = select(runs.c.total_duration_ns).where(*_conditions(filters), runs.c.total_duration_ns.is_not(None))
    counted = await tx.fetch_one(select(func.count().label("runs")).select_from(measured.subquery()))
    rank = ((counted["runs"] if counted else 0) - 1) * percentile // 100
    row = await tx.fetch_one(measured.order_by(runs.c.total_duration_ns).limit(1).offset(max(0, rank)))
    return row["total_duration_ns"] if row else 0


async def checkpoint(
    tx: Transaction,
    run: Run,
    number: int,
    *,
    status: RunStatus | None = None,
    stop_reason: StopReason | None = None,
    started_us: int | None = None,
    completed_us: int | None = None,
    ttft_ns: int | None = None,
    total_duration_ns: int | None = None,
    callback_due_us: int | None = None,
    metadata_merge: Mapping[str, Any] | None = None,
    unless_cancelling: bool,
) -> Literal["ok", "repeated", "fenced", "cancelling"]:
    """The update locks the run's row, so nothing else about the run can commit in between. The caller writes the rest
    of the checkpoint (events, rows, frames) in the same transaction, so a fenced worker writes nothing at all (I2).

    What is None stays as it is; when a run began is written once. Without a status nothing of an end is written.
    `repeated`: this owner has written the checkpoint of that `number` already, in a commit that it did not hear of.
    `fenced`: another owner has it, or it has ended. `cancelling`: a cancel is on record, and the caller did not come to
    carry it out. In none of these cases was anything changed.
    """
    new: dict[str, Any] = {"new_started_us": started_us, "new_ttft_ns": ttft_ns}
    if status is None:
        statement = _WITHIN_STATUS_UNLESS_CANCELLING if unless_cancelling else _WITHIN_STATUS
    else:
        statement = _CHECKPOINT_UNLESS_CANCELLING if unless_cancelling else _CHECKPOINT
        new |= {
            "new_status": status,
            "new_stop_reason": stop_reason,
            "new_completed_us": completed_us,
            "new_total_duration_ns": total_duration_ns,
            "new_callback_due_us": callback_due_us,
        }
    if not await tx.execute_one(statement, {"run": run.id, "held_lease": run.lease, "number": number, **new}):
        stored = await find(tx, run.id)
        if stored is None or stored.lease != run.lease:
            return "fenced"
        if stored.checkpoints >= number:
            tx.changes.append(Change("run", run.id, stored.status, run.agent_id, run.thread_id, stored.stop_reason))
            return "repeated"
        return "cancelling" if stored.is_active else "fenced"
    if metadata_merge:
        await _merge_metadata(tx, run.id, metadata_merge)
    tx.changes.append(Change("run", run.id, status or "running", run.agent_id, run.thread_id, stop_reason))
    return "ok"


async def ask_cancel(tx: Transaction, run_id: str, now_us: int) -> Run | None:
    """Put a cancel on record; the run if it was active, else None. Asking again keeps the first time."""
    return _maybe(await tx.fetch_one(_ASK_CANCEL, {"run": run_id, "now_us": now_us}))


async def end_parked(tx: Transaction, run_id: str) -> bool:
    """The one way out of `completed`: an approval withdrawn. True for exactly one caller."""
    row = await tx.fetch_one(_END_PARKED, {"run": run_id})
    if row is not None:
        tx.changes.append(Change("run", run_id, "cancelled", row["agent_id"], row["thread_id"], "cancelled"))
    return row is not None


async def callbacks_due(tx: Transaction, now_us: int, limit: int, hold_us: int) -> list[tuple[Run, int]]:
    """Take the deliveries that are due, with the number of the attempt now to be made.

    Each is put off by `hold_us`: nobody else takes it meanwhile, and it comes back if this process dies.
    """
    rows = await tx.fetch_all(_TAKE_CALLBACKS, {"now_us": now_us, "at_most": limit, "hold_until_us": now_us + hold_us})
    return [(run_from(row), row["callback_attempts"]) for row in rows]


async def next_callback_us(tx: Transaction) -> int | None:
    """When the next delivery is to be tried."""
    row = await tx.fetch_one(_NEXT_CALLBACK)
    return row["due_us"] if row else None


async def record_callback_attempt(
    tx: Transaction, run_id: str, *, sent_us: int, status_code: int | None, error: str | None, again_us: int | None
) -> None:
    """Record an attempt. `again_us` None: it was the last."""
    outcome = {"sent_us": sent_us, "status_code": status_code, "error": error, "again_us": again_us}
    await tx.execute(_RECORD_CALLBACK_ATTEMPT, {"run": run_id, **outcome})


async def totals(tx: Transaction, run_id: str) -> RunTotals:
    """Summed over all steps. What no step reported, or nobody knows the price of, stays None."""
    row = await tx.fetch_one(_TOTALS, {"run": run_id})
    if row is None or not row["steps"]:
        return RunTotals()
    usage = Usage(
        row["prompt_tokens"],
        row["completion_tokens"],
        row["cached_input_tokens"],
        row["cache_write_tokens"],
        row["reasoning_tokens"],
        bool(row["estimated"]),
    )
    return RunTotals(usage, row["steps"], row["cost_usd"])


async def usage(tx: Transaction, run_id: str) -> tuple[Usage, int]:
    """As `totals`: the tokens, and how many steps there were."""
    total = await totals(tx, run_id)
    return total.usage, total.steps


async def metrics(tx: Transaction, run_id: str) -> tuple[int, list[str]]:
    """How many steps, and the names of the tools called, in the order of their first call."""
    counted = await tx.fetch_one(_STEP_COUNT, {"run": run_id})
    called: dict[str, None] = {}
    for row in await tx.fetch_all(_CALLING, {"run": run_id}):
        called.update((part.name, None) for part in _decode_parts(row["parts"]) if isinstance(part, ToolCall))
    return (counted["steps"] if counted else 0), list(called)


async def changed_since(tx: Transaction, since_us: int) -> set[tuple[str, str]]:
    """Runs that were accepted or ended since then, with their status."""
    given = {"since_us": since_us}
    rows = [*await tx.fetch_all(_ACCEPTED_SINCE, given), *await tx.fetch_all(_ENDED_SINCE, given)]
    return {(row["id"], row["status"]) for row in rows}


async def read_queue(tx: Transaction, now_us: int) -> Queue:
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


async def _merge_metadata(tx: Transaction, run_id: str, changes: Mapping[str, Any]) -> None:
    merged = _encode((await get(tx, run_id)).metadata | dict(changes)).decode()
    await tx.execute(_SET_METADATA, {"run": run_id, "merged": merged})


def _maybe(row: Row | None) -> Run | None:
    return None if row is None else run_from(row)


def run_from(row: Row) -> Run:
    return Run(
        **{name: row[name] for name in _PLAIN},
        background=bool(row["background"]),
        metadata=_decode_object(row["metadata"]),
        request_config=_decode_object(row["request_config"]),
    )


def _conditions(filters: RunFilter) -> list[ColumnElement[bool]]:
    """All but the percentile, which is computed from the runs that these conditions select."""
    found: list[ColumnElement[bool]] = []
    if filters.agent_ids is not None and len(filters.agent_ids) == 1:
        found.append(runs.c.agent_id == filters.agent_ids[0])  # so that the index gives the order too
    elif filters.agent_ids is not None:
        found.append(in_array(runs.c.agent_id, filters.agent_ids))
    if filters.thread_id is not None:
        found.append(runs.c.thread_id == filters.thread_id)
    if filters.statuses is not None:
        found.append(in_array(runs.c.status, filters.statuses))
    elif filters.active:
        found.append(IS_ACTIVE)
    if filters.background is not None:
        found.append(runs.c.background.is_(filters.background))
    if filters.stop_reason is not None:
        found.append(runs.c.stop_reason == filters.stop_reason)
    return found + _measured(filters)


def _measured(filters: RunFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if filters.start_us is not None:
        found.append(runs.c.created_us >= filters.start_us)
    if filters.end_us is not None:
        found.append(runs.c.created_us <= filters.end_us)
    if filters.step_count is not None:
        count = select(func.count()).where(steps.c.run_id == runs.c.id).scalar_subquery()
        number = filters.step_count
        found.append({"eq": count == number, "gte": count >= number, "lte": count <= number}[filters.step_count_is])
    if filters.tool_names is not None:
        found.append(_called_any(filters.tool_names))
    if filters.duration_ns is not None:
        took, limit = runs.c.total_duration_ns, filters.duration_ns
        found.append({"gt": took > limit, "lt": took < limit, "eq": took == limit}[filters.duration_is])
    return found


def _called_any(names: tuple[str, ...]) -> ColumnElement[bool]:
    """A quotation mark inside a text is stored escaped, so that only a call's own name can look like this."""
    named = [messages.c.parts.contains(f'"name":"{name}"', autoescape=True) for name in names]
    calling = messages.c.role.in_([literal_column(f"'{role}'", Text()) for role in ("assistant", "approval")])
    return select(messages.c.id).where(messages.c.run_id == runs.c.id, calling, or_(false(), *named)).exists()


async def _count(tx: Transaction, statement: Statement, given: dict[str, int]) -> int:
    row = await tx.fetch_one(statement, given)
    assert row is not None
    return row["count"]

"""One checkpoint: everything a draft holds, in one transaction, fenced by the lease.

The lease number is a fencing token: a checkpoint whose lease is not the current one writes nothing, and raises
LeaseLost. One that finds a cancel on record, and does not itself carry it out, writes nothing and raises CancelPending
(I5): the database orders the two, not timing.

What the end of a run makes due is written in the transaction that ends it, and there only: a turn is counted once, and
nothing is lost. What is looked at is part of the run, and of the agent that it was accepted with.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import discussions, sleeptime
from holdfast.core.failures import Failure
from holdfast.core.frames import Frame, closing_frames, with_due_runs
from holdfast.core.messages import Message
from holdfast.core.records import STATUS_OF_STOP, Agent, Run, RunStatus, StopReason
from holdfast.core.run import Phase, RunState, Settle, plan
from holdfast.engine.archival import ArchiveChanged, PassageWrite, commit
from holdfast.engine.cancel_scope import CancelScope
from holdfast.engine.clock import Clock
from holdfast.engine.database_retries import until_database_answers
from holdfast.engine.model_call import store_ratio
from holdfast.engine.run_loading import load_run, numbers_begin_after
from holdfast.engine.run_session import Session
from holdfast.engine.streams import RunStream, store_frames
from holdfast.errors import BugError, LeaseLost, RunInterrupted
from holdfast.store import agents, groups, holds, journal, memory_edits, messages, runs, steps, tasks, threads, traces
from holdfast.store import frames as frame_rows
from holdfast.store.transaction import Database, DatabaseError, Transaction

_encoder = msgspec.json.Encoder()
_DUE_AT_ONCE: Final = 0  # by everybody's clock: this process's own may be ahead, and another may deliver it


class CancelPending(RunInterrupted):
    """A cancel was recorded before this checkpoint could be."""


class BlockChanged(RunInterrupted):
    """What a memory tool's drafted effect was computed from, a block or the agent's archive, is no longer so."""


async def checkpoint(
    database: Database, session: Session, scope: CancelScope | None = None, listeners_wait_s: float = 0.0
) -> None:
    """Writes the draft; the run's end too when its state says so. Frames reach listeners after the commit.

    With a scope, it is tried until the database has done it, the lease is lost or the server stops; the run keeps what
    it has, a reply that was paid for above all. Those who listen are let go after `listeners_wait_s`.
    """
    frames = [*session.draft.frames, *frames_at_stop(session.state)]

    def write() -> Awaitable[_Written]:
        return database.write(lambda tx: _write(tx, session, frames))

    def waiting(for_s: float) -> None:
        if for_s >= listeners_wait_s:
            session.stream.finish()

    # Locked over all tries: were the frames stored by one that only seemed to fail, nobody else may store them.
    async with session.stream.storing:
        try:
            written = await write()
        except DatabaseError:
            if scope is None:
                raise
            written = await until_database_answers(write, f"run {session.run.id}", scope.pause, waiting)
        session.next_position, session.has_due_tasks = written.next_position, written.due.has_tasks
        # Published only now: what a listener has seen, a replay can show.
        session.stream.publish(*with_due_runs(frames, written.due.run_ids))
        session.stream.mark_stored(session.stream.last - session.stream.stored)
    session.committed()


def frames_at_stop(state: RunState) -> list[Frame]:
    stop = stop_reason_now(state)
    if stop is None:
        return []
    return closing_frames(stop, state.error, state.usage, state.model_calls, state.context_tokens)


def stop_reason_now(state: RunState) -> StopReason | None:
    """A parked run has stopped too, as far as clients are concerned."""
    match state.phase:
        case Phase.DONE:
            return state.stop_reason
        case Phase.PARKED:
            return "requires_approval"
        case _:
            return None


async def cancel_parked(tx: Transaction, clock: Clock, run_id: str) -> bool:
    """Cancels a run that waits for a decision: its calls are denied, and its end is changed. False when it is decided
    already."""
    run = await runs.get(tx, run_id)
    if not await holds.decide(tx, run_id, clock.now_us(), None):
        return False
    loaded = msgspec.structs.replace(await load_run(tx, run), step=None)  # its step ended when it was parked
    session = Session(loaded, RunStream(run_id), clock)
    session.cancel(None)
    intent = plan(session.state)
    if not isinstance(intent, Settle):
        raise BugError(f"run {run_id} has an open hold but is not parked")
    session.settle(intent.calls)
    await _write(tx, session, [])
    return True


async def end_unreadable(tx: Transaction, run: Run, failure: Failure, now_us: int, *, owner_died: bool) -> None:
    """Ends a run whose journal cannot be folded: as failed, with the reason, its stream closed and its thread free."""
    end = _End(failure.stop_reason, failure.error, now_us, max(0, now_us - run.created_us) * 1_000)
    if await _advance(tx, run, run.checkpoints + 1, end, unless_cancelling=False):
        await threads.reserve(tx, run.thread_id, 0, end.now_us)
        await agents.record_last_run(tx, run.agent_id, end.stop_reason, end.now_us, end.duration_ns)
    await _continue_discussion(tx, run)
    ended = {"status": "failed", "stop_reason": failure.stop_reason, "error_type": failure.kind}
    for step in await steps.list_of_run(tx, run.id):
        if step.status == "pending":
            took_ns = max(0, now_us * 1_000 - (step.step_start_ns or now_us * 1_000))
            await steps.save(tx, msgspec.structs.replace(step, error_data=failure.data(), step_ns=took_ns, **ended))
    if run.background:
        last_seq = await frame_rows.last_seq(tx, run.id)
        stream = RunStream(run.id, numbers_begin_after(last_seq, run.lease, owner_died=owner_died))
        usage, step_count = await runs.usage(tx, run.id)
        await store_frames(tx, stream, closing_frames(failure.stop_reason, failure.error, usage, step_count))


async def turn_captured(tx: Transaction, agent_id: str, message_ids: Sequence[str]) -> tuple[str, ...]:
    """A turn that no run of ours has made, in the transaction that stores it. The ids of the runs that will be shown
    it, if it makes any due."""
    return await _count_turn(tx, agent_id, message_ids, finished=True)


class _Due(msgspec.Struct, frozen=True):
    """What the end of a run makes due: the work of sleeptime agents that look after its agent, the next speech of a
    discussion that it was part of."""

    has_tasks: bool = False
    run_ids: tuple[str, ...] = ()  # of sleeptime agents; these runs do not exist yet


class _Written(msgspec.Struct, frozen=True):
    next_position: int | None = None  # where the thread's history ends now; None when it is not known without asking
    due: _Due = _Due()


async def _write(tx: Transaction, session: Session, frames: list[Frame]) -> _Written:
    run, draft = session.run, session.draft
    end = _end_now(session)
    if not await _move(tx, session, end):
        return _Written()
    next_position = await _write_rows(tx, session, end)
    events = [_encoder.encode(event).decode() for event in draft.events]
    await journal.append(tx, run.id, session.journalled + 1, events, session.clock.now_us())
    await steps.save(tx, *draft.steps.values())
    if end is not None:
        await agents.record_last_run(tx, run.agent_id, end.stop_reason, end.now_us, end.duration_ns)
    for step_id, took_ns in session.late_tool_ns.items():
        await steps.add_tool_time(tx, step_id, took_ns)
    if (trace := session.storable_trace) is not None:
        await traces.save(tx, trace)
    for write in draft.memory:
        if isinstance(write, PassageWrite):
            await _write_passages(tx, write)
        elif not await memory_edits.apply(tx, run.agent_id, write.change, write.versions, session.clock.now_us()):
            raise BlockChanged("a block changed under a memory tool")
    if draft.ratio is not None:
        await store_ratio(tx, *draft.ratio)
    if draft.hold is not None and not await holds.insert(tx, run, draft.hold, session.clock.now_us()):
        raise BugError(f"thread {run.thread_id} waits for a decision already")
    due = _Due()
    if end is not None and _leads_on(session.agent, run):
        due = await _make_due(tx, session.agent, run, end.stop_reason)
    if run.background:
        await store_frames(tx, session.stream, with_due_runs(frames, due.run_ids))
    return _Written(next_position, due)


class _End(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    error: dict[str, Any] | None
    now_us: int
    duration_ns: int


def _end_now(session: Session) -> _End | None:
    stop, clock = stop_reason_now(session.state), session.clock
    if stop is None:
        return None
    return _End(stop, session.state.error, clock.now_us(), clock.now_ns() - session.received_ns)


async def _move(tx: Transaction, session: Session, end: _End | None) -> bool:
    """Moves the run's row to where the state says. False when an earlier try has written this very checkpoint, though
    its commit was not confirmed."""
    state = session.state
    return await _advance(
        tx,
        session.run,
        session.checkpoints + 1,
        end,
        started_us=session.run.started_us or session.clock.now_us(),
        ttft_ns=session.ttft_ns,
        unless_cancelling="cancelled" not in (state.ending, state.stop_reason),
    )


async def _advance(
    tx: Transaction,
    run: Run,
    number: int,
    end: _End | None,
    *,
    unless_cancelling: bool,
    started_us: int | None = None,
    ttft_ns: int | None = None,
) -> bool:
    """The only writer of a run's row after its acceptance, and of every end. The lease is the fencing token: unless it
    is the current one, nothing of the transaction is written."""
    if run.stop_reason == "requires_approval":  # nobody drives it, so it has no lease: the open hold is its fence
        outcome = "ok" if await runs.end_parked(tx, run.id) else "fenced"
    else:
        status: RunStatus | None = "running" if run.status == "created" else None
        if end is not None:
            status = STATUS_OF_STOP.get(end.stop_reason, "failed")
        outcome = await runs.checkpoint(
            tx,
            run,
            number,
            status=status,
            stop_reason=end.stop_reason if end else None,
            started_us=started_us,
            completed_us=end.now_us if end else None,
            ttft_ns=ttft_ns,
            total_duration_ns=end.duration_ns if end else None,
            callback_due_us=_DUE_AT_ONCE if end and run.callback_url else None,
            metadata_merge={"error": {"run_id": run.id, **end.error}} if end and end.error else None,
            unless_cancelling=unless_cancelling,
        )
    if outcome == "fenced":
        raise LeaseLost(f"run {run.id} is driven by another worker")
    if outcome == "cancelling":
        raise CancelPending(f"run {run.id} was asked to stop")
    return outcome == "ok"


async def _write_rows(tx: Transaction, session: Session, end: _End | None) -> int | None:
    """As `_write`. If somebody else has moved the end of the thread, they may have changed the window: then it is not
    known any more.

    Positions are set aside before anything is inserted, so that PostgreSQL is sent all of it together.
    """
    draft, agent_id, thread_id = session.draft, session.run.agent_id, session.run.thread_id
    rows: Sequence[Message] = draft.rows
    appended = [row.id for row in rows if row.id not in draft.positions]
    known_end = session.next_position
    if draft.cut is not None:
        appended.remove(draft.cut.summary_id)
        await messages.insert_many(tx, agent_id, rows)  # the summary is there before it takes its place
        await threads.replace_window(tx, thread_id, draft.cut.evicted_ids, draft.cut.summary_id)
        rows, known_end = (), _moved(known_end, 1)
    first = 0
    if appended or end is not None:
        first = await threads.reserve(tx, thread_id, len(appended), end.now_us if end else None, end=known_end)
        known_end = _moved(known_end, len(appended)) if first == known_end else None
    await messages.insert_many(tx, agent_id, rows)
    await threads.place(tx, thread_id, list(enumerate(appended, first)))
    if draft.positions:
        await threads.place_reserved(
            tx, thread_id, [(position, row_id) for row_id, position in draft.positions.items()]
        )
        known_end = _moved(known_end, 1)
    for row in draft.changed.values():
        await messages.replace_parts(tx, row.id, row.parts)
    if draft.system_digest is not None:
        await threads.set_system_digest(tx, thread_id, draft.system_digest)
    return _moved(known_end, len(draft.changed))


def _moved(end: int | None, by: int) -> int | None:
    return None if end is None else end + by


async def _write_passages(tx: Transaction, write: PassageWrite) -> None:
    try:
        await commit(tx, write)
    except ArchiveChanged as error:
        raise BlockChanged("the agent's archive changed under a memory tool") from error


def _leads_on(agent: Agent, run: Run) -> bool:
    """Whether its end may make something due. One that waited for a decision was looked at when it was parked."""
    return run.stop_reason is None and (_is_counted(agent, run) or discussions.ID in run.metadata)


async def _make_due(tx: Transaction, agent: Agent, run: Run, stop_reason: StopReason) -> _Due:
    in_discussion = await _continue_discussion(tx, run)
    run_ids: tuple[str, ...] = ()
    if _is_counted(agent, run):
        # A turn that failed, was cancelled or waits for a decision is not counted, but is shown with the next one.
        finished = STATUS_OF_STOP.get(stop_reason) == "completed" and stop_reason != "requires_approval"
        run_ids = await _count_turn(tx, run.agent_id, (run.id,), finished=finished)
    return _Due(in_discussion or bool(run_ids), run_ids)


async def _continue_discussion(tx: Transaction, run: Run) -> bool:
    """Whether the run was part of one."""
    discussion = run.metadata.get(discussions.ID)
    if discussion is not None:
        await tasks.add(tx, discussions.TASK, discussion)
    return discussion is not None


def _is_counted(agent: Agent, run: Run) -> bool:
    """What a sleeptime agent is set to do sets nobody to work, whoever looks after it."""
    return bool(agent.enable_sleeptime) and run.metadata.get("run_type") != sleeptime.RUN_TYPE


async def _count_turn(tx: Transaction, agent_id: str, said_ids: Sequence[str], *, finished: bool) -> tuple[str, ...]:
    """The ids of the runs that will be shown this turn, if it makes any due. `said_ids`: of its run, or of the messages
    that belong to none."""
    counted = await groups.count_turn(tx, agent_id, finished=finished)
    if counted is None:
        return ()
    due: list[str] = []
    for helper_id in counted.agent_ids:
        shown_by = ids.derive("run", sleeptime.TASK, helper_id, said_ids[-1]) if counted.is_due else None
        await groups.keep_turn(tx, counted.group_id, helper_id, said_ids, shown_by)
        if shown_by is not None:
            await tasks.add(tx, sleeptime.TASK, helper_id)
            due.append(shown_by)
    return tuple(due)

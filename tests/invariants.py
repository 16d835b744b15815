"""Reads a whole database and says which of the ten promises it breaks. Any suite may ask, at any commit point.

I1 one end per run · I2 rows and window move together · I3 no orphan call · I4 a pending approval has one owner ·
I5 a recorded cancel wins · I6 the stream tells what is stored · I7 accepted input is kept · I8 one active run per
thread · I9 no run is left behind · I10 a failed run says why. And across them: store == window == journal == stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise

import msgspec
from sqlalchemy import select

from holdfast.core.events import AnyEvent, CancelAsked, Compacted, ModelReplied, Resumed, RunStarted
from holdfast.core.frames import (
    TERMINAL,
    AbandonedFrame,
    CallFrame,
    ErrorFrame,
    Frame,
    HiddenReasoningFrame,
    MessageFrame,
    ReasoningFrame,
    StopFrame,
    TextFrame,
    UsageFrame,
)
from holdfast.core.messages import Message, Reasoning, Text, Thoughts
from holdfast.core.records import STATUS_OF_STOP, Run, Step
from holdfast.core.run import Phase, RunState, replay
from holdfast.core.spec import Speaking, only_confirms_speech, spoken_text
from holdfast.engine.run_loading import SKIPPED_AFTER_DEATH
from holdfast.errors import HoldfastError
from holdfast.store import frames, holds, journal, messages, runs, steps
from holdfast.store.holds import HoldRow
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.steps import StepFilter
from holdfast.store.tables import thread_messages, threads
from holdfast.store.transaction import Database, Transaction

_event = msgspec.json.Decoder(AnyEvent)
_frames = msgspec.msgpack.Decoder(list[Frame])
_EVERYTHING = Page(limit=None, order="asc")
_THREADS = select(threads.c.id, threads.c.next_position).where(threads.c.deleted_us.is_(None))
_PLACES = select(thread_messages).order_by(thread_messages.c.thread_id, thread_messages.c.position)
_FRAGMENTS = (TextFrame, ReasoningFrame, HiddenReasoningFrame, CallFrame)
_PRODUCED = ("assistant", "tool", "approval", "summary")


class ThreadView(msgspec.Struct):
    next_position: int
    history: list[str] = []  # message ids by position
    positions: dict[str, int] = {}
    window: list[Message] = []
    places: dict[str, int] = {}  # of what is in the window


class Snapshot(msgspec.Struct):
    runs: dict[str, Run]
    messages: dict[str, Message]
    threads: dict[str, ThreadView]
    journals: dict[str, list[AnyEvent]]
    states: dict[str, RunState]
    unreadable: dict[str, str]
    holds: dict[str, HoldRow]
    frames: dict[str, list[tuple[int, Frame]]]
    steps: dict[str, Step]

    def of_run(self, run_id: str) -> list[Message]:
        return [message for message in self.messages.values() if message.run_id == run_id]

    def active_in(self, thread_id: str) -> list[Run]:
        return [run for run in self.runs.values() if run.thread_id == thread_id and run.is_active]

    def open_hold(self, thread_id: str) -> HoldRow | None:
        found = [hold for hold in self.holds.values() if hold.thread_id == thread_id and hold.decided_us is None]
        return found[0] if found else None


async def assert_invariants(database: Database, *, idle: bool = False, unreadable: Collection[str] = ()) -> Snapshot:
    """`idle`: nobody drives anything, so nothing may be active. `unreadable`: runs whose journal a test has spoilt."""
    snapshot = await take_snapshot(database)
    broken = violations(snapshot, idle=idle, unreadable=unreadable)
    assert not broken, "\n".join(broken)
    return snapshot


def violations(snapshot: Snapshot, *, idle: bool = False, unreadable: Collection[str] = ()) -> list[str]:
    found = [f"journal: {run_id}: {why}" for run_id, why in snapshot.unreadable.items() if run_id not in unreadable]
    for name, check in _CHECKS.items():
        found += [f"{name}: {broken}" for broken in check(snapshot)]
    if idle:
        found += [f"I9: run {run.id} is still {run.status}" for run in snapshot.runs.values() if run.is_active]
    return found


async def take_snapshot(database: Database) -> Snapshot:
    return await database.read(_take)


async def _take(tx: Transaction) -> Snapshot:
    known_runs = {run.id: run for run in await runs.list_runs(tx, RunFilter(), _EVERYTHING)}
    known = {message.id: message for message in await messages.list_of_agent(tx, None, _EVERYTHING)}
    journals: dict[str, list[AnyEvent]] = {}
    unreadable: dict[str, str] = {}
    states: dict[str, RunState] = {}
    for run_id in known_runs:
        try:
            journals[run_id] = [_event.decode(text) for text in await journal.load(tx, run_id)]
            states[run_id] = replay(journals[run_id])
        except (msgspec.MsgspecError, HoldfastError) as error:
            journals.pop(run_id, None)
            unreadable[run_id] = str(error)
    return Snapshot(
        runs=known_runs,
        messages=known,
        threads=await _take_threads(tx, known),
        journals=journals,
        states=states,
        unreadable=unreadable,
        holds={run_id: hold for run_id in known_runs if (hold := await holds.get(tx, run_id))},
        frames={run_id: await _take_frames(tx, run_id) for run_id in known_runs},
        steps={step.id: step for step in await steps.list_steps(tx, StepFilter(), _EVERYTHING)},
    )


async def _take_threads(tx: Transaction, known: dict[str, Message]) -> dict[str, ThreadView]:
    views = {row["id"]: ThreadView(row["next_position"]) for row in await tx.fetch_all(_THREADS)}
    for row in await tx.fetch_all(_PLACES):
        view, message_id = views[row["thread_id"]], row["message_id"]
        view.history.append(message_id)
        view.positions[message_id] = row["position"]
        if row["context_position"] is not None:
            view.places[message_id] = row["context_position"]
    for view in views.values():
        view.window = [known[message_id] for message_id in sorted(view.places, key=view.places.__getitem__)]
    return views


async def _take_frames(tx: Transaction, run_id: str) -> list[tuple[int, Frame]]:
    numbered: list[tuple[int, Frame]] = []
    for first, last, blob in await frames.load(tx, run_id, 0):
        batch = list(enumerate(_frames.decode(blob), first))
        assert batch and batch[-1][0] == last, f"a batch of {run_id} is not numbered {first} to {last}"
        numbered += batch
    return numbered


def one_end(snapshot: Snapshot) -> Iterator[str]:
    for run in snapshot.runs.values():
        ended = not run.is_active
        if ended != (run.stop_reason is not None) or ended != (run.completed_us is not None):
            yield f"run {run.id} is {run.status} with stop reason {run.stop_reason}, completed {run.completed_us}"
        if run.stop_reason and STATUS_OF_STOP.get(run.stop_reason, "failed") != run.status:
            yield f"run {run.id} is {run.status} but stopped by {run.stop_reason}"
        state = snapshot.states.get(run.id)
        if state is not None and (told := _told_by_journal(state)) != run.stop_reason:
            yield f"the journal of run {run.id} says {told}, its row {run.stop_reason}"


def _told_by_journal(state: RunState) -> str | None:
    return "requires_approval" if state.phase is Phase.PARKED else state.stop_reason


def window_is_the_store(snapshot: Snapshot) -> Iterator[str]:
    placed = {message_id for view in snapshot.threads.values() for message_id in view.history}
    for message in snapshot.messages.values():
        if message.id not in placed:
            yield f"{message.role} message {message.id} is in no thread"
    for thread_id, view in snapshot.threads.items():
        if view.history and view.positions[view.history[-1]] >= view.next_position:
            yield f"thread {thread_id} has a message beyond its end"
        yield from _window_is_a_suffix(thread_id, view, snapshot)
    yield from _rows_of_runs(snapshot)


def _window_is_a_suffix(thread_id: str, view: ThreadView, snapshot: Snapshot) -> Iterator[str]:
    """What has left the window is older than what is in it; a summary stands where it was put. What was captured, which
    is of no run, was never in it."""
    shown = [row for row in view.window if row.role != "summary"]
    if view.history and (not view.window or view.window[0].role != "system"):
        yield f"the window of {thread_id} does not begin with its system message"
    positions = [view.positions[row.id] for row in shown]
    if positions != sorted(positions):
        yield f"the window of {thread_id} is not in the order of its history"
    oldest_kept = positions[1] if len(positions) > 1 else view.next_position
    for message_id in view.history:
        if message_id in view.places or view.positions[message_id] <= oldest_kept:
            continue
        message = snapshot.messages[message_id]
        if message.role != "summary" and message.run_id is not None:
            yield f"message {message_id} is missing from the window of {thread_id}"


def _rows_of_runs(snapshot: Snapshot) -> Iterator[str]:
    for message in snapshot.messages.values():
        run = snapshot.runs.get(message.run_id or "")
        if run is None:
            continue
        view = snapshot.threads.get(run.thread_id)
        if view is not None and message.id not in view.positions:
            yield f"message {message.id} of run {run.id} is not in its thread"
        if message.step_id is not None and message.step_id not in snapshot.steps:
            yield f"{message.role} message {message.id} belongs to a step that is not stored"
    for step in snapshot.steps.values():
        run = snapshot.runs.get(step.run_id)
        if run is not None and not run.is_active and step.status == "pending" and run.id not in snapshot.unreadable:
            yield f"step {step.number} of run {run.id} is pending, the run {run.status}"


def no_orphan_call(snapshot: Snapshot) -> Iterator[str]:
    for thread_id, view in snapshot.threads.items():
        called = Counter(call.id for row in view.window for call in row.calls)
        returned = Counter(part.call_id for row in view.window for part in row.returns)
        yield from (f"call {call_id} has {count} returns" for call_id, count in returned.items() if count > 1)
        yield from (f"call {call_id} was made {count} times" for call_id, count in called.items() if count > 1)
        yield from (f"call {call_id} returned but was never made" for call_id in returned if call_id not in called)
        missing = {call_id for call_id in called if call_id not in returned}
        expected = _open_call_ids(snapshot, thread_id)
        if expected is not None and missing != expected:
            yield f"thread {thread_id} has open calls {sorted(missing)}, its run says {sorted(expected)}"


def _open_call_ids(snapshot: Snapshot, thread_id: str) -> set[str] | None:
    """None when a journal that a test has spoilt would have to tell."""
    if any(snapshot.runs[run_id].thread_id == thread_id for run_id in snapshot.unreadable):
        return None
    hold = snapshot.open_hold(thread_id)
    expected = {held.call.id for held in hold.hold.calls} if hold else set[str]()
    for run in snapshot.active_in(thread_id):
        expected |= {call.call.id for call in snapshot.states[run.id].open_calls}
    return expected


def pending_approval_has_one_owner(snapshot: Snapshot) -> Iterator[str]:
    open_threads = [hold.thread_id for hold in snapshot.holds.values() if hold.decided_us is None]
    for thread_id, count in Counter(open_threads).items():
        if count > 1:
            yield f"thread {thread_id} waits for {count} decisions"
    for hold in snapshot.holds.values():
        yield from _open_hold(snapshot, hold) if hold.decided_us is None else _decided_hold(snapshot, hold)
    for thread_id, view in snapshot.threads.items():
        asks = bool(view.window) and view.window[-1].is_approval_request
        if asks and not snapshot.open_hold(thread_id):
            yield f"thread {thread_id} ends with an approval request that nobody can answer"


def _open_hold(snapshot: Snapshot, row: HoldRow) -> Iterator[str]:
    run, state, view = snapshot.runs[row.run_id], snapshot.states.get(row.run_id), snapshot.threads.get(row.thread_id)
    if run.stop_reason != "requires_approval" or (state is not None and state.phase is not Phase.PARKED):
        yield f"run {run.id} has an open hold but stopped by {run.stop_reason}"
    if state is not None and state.hold != row.hold:
        yield f"the hold of run {run.id} is not the one in its journal"
    last = view.window[-1] if view and view.window else None
    if last is None or last.id != row.request_id:
        yield f"the last message of {row.thread_id} is not the request that run {run.id} waits on"
    elif tuple(call.id for call in last.calls) != row.hold.asked_ids:
        yield f"the approval request of run {run.id} asks for other calls than its hold"


def _decided_hold(snapshot: Snapshot, row: HoldRow) -> Iterator[str]:
    run, events = snapshot.runs[row.run_id], snapshot.journals.get(row.run_id, [])
    if row.decided_by_run is None:
        if run.status != "cancelled":
            yield f"the hold of run {run.id} was withdrawn but the run is {run.status}"
        return
    if run.stop_reason != "requires_approval":
        yield f"the hold of run {run.id} was answered but the run stopped by {run.stop_reason}"
    if events and events[-1] != Resumed(row.decided_by_run):
        yield f"the journal of run {run.id} does not end with its resumption"
    successor = snapshot.journals.get(row.decided_by_run)
    if successor is None:
        return
    started = successor[0]
    if not isinstance(started, RunStarted) or [c.call for c in started.resumes] != [h.call for h in row.hold.calls]:
        yield f"run {row.decided_by_run} does not carry on the calls of run {run.id}"


def recorded_cancel_wins(snapshot: Snapshot) -> Iterator[str]:
    for run in snapshot.runs.values():
        if run.id in snapshot.unreadable:
            continue
        asked = any(isinstance(event, CancelAsked) for event in snapshot.journals[run.id])
        if (run.cancel_asked_us is not None or asked) and not run.is_active and run.status != "cancelled":
            yield f"run {run.id} was asked to stop and ended {run.status}"
        if run.status == "cancelled" and not asked:
            yield f"run {run.id} is cancelled but nobody asked"


def stream_tells_the_store(snapshot: Snapshot) -> Iterator[str]:
    for run in snapshot.runs.values():
        if run.background:
            yield from stream_violations(snapshot, run, snapshot.frames[run.id])
        elif snapshot.frames[run.id]:
            yield f"frames of foreground run {run.id} are stored"


def stream_violations(snapshot: Snapshot, run: Run, numbered: Sequence[tuple[int, Frame]]) -> Iterator[str]:
    """Also for what a test has followed live: a listener may be shown more than is stored yet, never something else."""
    gaps = _gaps([seq for seq, _ in numbered])
    if not _left_by_deaths([size for _, size in gaps], deaths=max(0, run.lease - 1)):  # 0: nobody has claimed it yet
        yield f"the frames of run {run.id} are not numbered densely: {gaps} (after, missing), lease {run.lease}"
    shown = [frame for _, frame in numbered]
    yield from _ends_once(snapshot, run, shown)
    given_up = {frame.message_id for frame in shown if isinstance(frame, AbandonedFrame)}
    told = _texts(frame for frame in shown if not (isinstance(frame, _FRAGMENTS) and frame.message_id in given_up))
    for message_id, text in told.items():
        row = snapshot.messages.get(message_id)
        if row is None and not run.is_active:
            yield f"run {run.id} streamed message {message_id}, which is not stored"
        if row is not None and text != (stored := _row_text(row, _speaking(snapshot, run))):
            yield f"run {run.id} streamed {text!r} as {message_id}, stored is {stored!r}"
    whole = {frame.message.id: frame.message for frame in shown if isinstance(frame, MessageFrame)}
    for message_id, message in whole.items():
        if snapshot.messages.get(message_id) != message:
            yield f"run {run.id} streamed {message.role} message {message_id} other than it is stored"
    if not run.is_active and run.id not in snapshot.unreadable:
        yield from _missing_from_stream(snapshot, run, {*told, *whole, *_call_messages(shown)})


def _gaps(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """After which number how many are missing. The first is 1."""
    return [(before, after - before - 1) for before, after in pairwise([0, *numbers]) if after != before + 1]


def _left_by_deaths(gaps: Sequence[int], deaths: int) -> bool:
    return all(gap % SKIPPED_AFTER_DEATH == 0 and gap > 0 for gap in gaps) and sum(gaps) <= deaths * SKIPPED_AFTER_DEATH


def _ends_once(snapshot: Snapshot, run: Run, shown: Sequence[Frame]) -> Iterator[str]:
    stops = [index for index, frame in enumerate(shown) if isinstance(frame, StopFrame)]
    terminal = [index for index, frame in enumerate(shown) if isinstance(frame, TERMINAL)]
    if run.is_active:
        if stops or terminal:
            yield f"the stream of run {run.id} has ended, the run has not"
        return
    if stops != [len(shown) - 2] or terminal != [len(shown) - 1]:
        yield f"the stream of run {run.id} does not end with one stop and one last frame"
        return
    stop, last = shown[-2], shown[-1]
    withdrawn = run.id in snapshot.holds and run.status == "cancelled"
    if isinstance(stop, StopFrame) and stop.stop_reason != ("requires_approval" if withdrawn else run.stop_reason):
        yield f"the stream of run {run.id} says {stop.stop_reason}, its row {run.stop_reason}"
    state = snapshot.states.get(run.id)
    if isinstance(last, UsageFrame) and state is not None and not withdrawn and last.usage != state.usage:
        yield f"the stream of run {run.id} counts other tokens than its journal"
    if isinstance(last, ErrorFrame) and last.error != run.metadata.get("error"):
        yield f"the stream of run {run.id} tells another error than its row"


def _texts(shown: Iterator[Frame]) -> dict[str, str]:
    told: dict[str, str] = {}
    for frame in shown:
        if isinstance(frame, (TextFrame, ReasoningFrame)):
            told[frame.message_id] = told.get(frame.message_id, "") + frame.text
    return told


def _call_messages(shown: Sequence[Frame]) -> set[str]:
    return {frame.message_id for frame in shown if isinstance(frame, (CallFrame, HiddenReasoningFrame))}


def _row_text(row: Message, speaking: Speaking | None) -> str:
    spoken = (part.text for part in row.parts if isinstance(part, (Text, Reasoning, Thoughts)))
    return "".join((*spoken, *(spoken_text(call, speaking) or "" for call in row.calls)))


def _speaking(snapshot: Snapshot, run: Run) -> Speaking | None:
    state = snapshot.states.get(run.id)
    loop = state.frozen_spec.heartbeats if state else None
    return loop.speaking if loop else None


def _missing_from_stream(snapshot: Snapshot, run: Run, told: set[str]) -> Iterator[str]:
    """Answers to approvals are never streamed, nor what a withdrawn approval leaves; summaries only when asked for."""
    state = snapshot.states.get(run.id)
    withdrawn = run.id in snapshot.holds and run.status == "cancelled"
    for row in snapshot.of_run(run.id):
        if row.role not in _PRODUCED or row.decisions or (withdrawn and row.role == "tool"):
            continue
        if row.role == "summary" and not (state and state.frozen_spec.include_compaction):
            continue
        if row.role == "tool" and all(only_confirms_speech(answer, _speaking(snapshot, run)) for answer in row.returns):
            continue
        if row.id not in told:
            yield f"run {run.id} never streamed its {row.role} message {row.id}"


def accepted_input_is_kept(snapshot: Snapshot) -> Iterator[str]:
    for run_id, events in snapshot.journals.items():
        for event in events:
            for message_id in _mentioned(event):
                if message_id not in snapshot.messages:
                    yield f"the journal of run {run_id} speaks of message {message_id}, which is not stored"


def _mentioned(event: AnyEvent) -> tuple[str, ...]:
    match event:
        case RunStarted():
            return event.input_ids
        case ModelReplied():
            return (event.message_id,) if event.message_id else ()
        case Compacted():
            return (event.summary_id,)
        case _:
            return ()


def one_active_run_per_thread(snapshot: Snapshot) -> Iterator[str]:
    for thread_id in snapshot.threads:
        active = snapshot.active_in(thread_id)
        if len(active) > 1:
            yield f"thread {thread_id} has {len(active)} active runs"
        if active and snapshot.open_hold(thread_id):
            yield f"thread {thread_id} has an active run while it waits for a decision"


def nothing_is_left_behind(snapshot: Snapshot) -> Iterator[str]:
    """Whether its owner lives only time can tell; that somebody will be able to claim it, the row must say."""
    for run in snapshot.runs.values():
        if run.is_active and (run.lease_owner is None) != (run.lease_expires_us is None):
            yield f"run {run.id} has the owner {run.lease_owner} until {run.lease_expires_us}"
        if run.is_active and run.id in snapshot.states and snapshot.states[run.id].phase in (Phase.DONE, Phase.PARKED):
            yield f"run {run.id} has ended in its journal but not in its row"


def failed_run_says_why(snapshot: Snapshot) -> Iterator[str]:
    for run in snapshot.runs.values():
        error: dict[str, object] | None = run.metadata.get("error")
        if run.status == "failed":
            if error is None or not {"error_type", "message", "run_id"} <= error.keys():
                yield f"run {run.id} failed ({run.stop_reason}) with the error {error!r}"
        elif error is not None:
            yield f"run {run.id} is {run.status} but carries an error"


_CHECKS: dict[str, Callable[[Snapshot], Iterator[str]]] = {
    "I1": one_end,
    "I2": window_is_the_store,
    "I3": no_orphan_call,
    "I4": pending_approval_has_one_owner,
    "I5": recorded_cancel_wins,
    "I6": stream_tells_the_store,
    "I7": accepted_input_is_kept,
    "I8": one_active_run_per_thread,
    "I9": nothing_is_left_behind,
    "I10": failed_run_says_why,
}

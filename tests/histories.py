"""What clients of a fleet have sent and were told, and which promises that breaks. Pure: histories and a database in,
sentences out.

A history holds what was recorded, in order, by the clock of the machine that the clients run on. `violations` compares
it with the database as it is once everything is idle (`Snapshot`), and with the effects that tools had outside:

H1 what was accepted is stored once, and its answers name one run · H2 a thread has one active run at any instant ·
H3 a decision is taken once · H4 all readers of a run see one stream, without gaps, with one end · H5 no tool takes
effect twice, nor one that was denied · H6 every run that somebody was told of has ended · H7 what was said to be over
stays so, as it was said: through any server, also of a cancel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from holdfast.api.answers import HANDED_OVER
from holdfast.core.messages import Approve, Message, Text
from holdfast.core.records import STATUS_OF_STOP, Run

from .invariants import Snapshot

ACTIVE = ("created", "running")
REPLAY = "replay of "  # how readers are called that read a stream from its beginning once its run has ended


class Record(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float


class Sent(Record, frozen=True, kw_only=True):
    """A message went out, perhaps once more. `decides`: the calls that it is an answer to."""

    otid: str
    thread_id: str
    text: str = ""
    decides: tuple[str, ...] = ()


class Answered(Record, frozen=True, kw_only=True):
    """One try was answered; a stream by its first line. `stop_reason`: of a blocking message."""

    otid: str
    status: int
    run_id: str | None = None
    stop_reason: str | None = None


class Attached(Record, frozen=True, kw_only=True):
    """A reader asked for a stream: for the first time, or again where it was cut off. 0: from the beginning."""

    reader: str
    after: int = 0


class Shown(Record, frozen=True, kw_only=True):
    """A reader was shown an event. Only background runs number them."""

    reader: str
    run_id: str
    seq: int | None
    event: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.event.get("message_type"))

    @property
    def is_content(self) -> bool:
        """Pings, and the news that a stream is cut off, repeat the number of the event before them."""
        return self.kind != "ping" and not self.is_cut

    @property
    def is_cut(self) -> bool:
        return self.event.get("message") == HANDED_OVER["message"]

    @property
    def void_ids(self) -> list[str]:
        """The messages that it declares void, if it is such an event."""
        data: dict[str, Any] = self.event.get("event_data") or {}
        return list(data.get("abandoned_message_ids", ()))


class Looked(Record, frozen=True, kw_only=True):
    """A run was read. It was so at some moment between the question and the answer."""

    asked_s: float
    run_id: str
    status: str
    stop_reason: str | None = None


class Listed(Record, frozen=True, kw_only=True):
    """The active runs of a thread were listed."""

    asked_s: float
    thread_id: str
    run_ids: tuple[str, ...]


class Lost(Record, frozen=True, kw_only=True):
    """A request was not answered, or its answer broke off: nobody was there, or not for long enough."""

    why: str


class Cancelled(Record, frozen=True, kw_only=True):
    """What the answer to a cancel said of a run."""

    run_id: str
    result: str


class Effect(Record, frozen=True, kw_only=True):
    """What a tool did to the world outside."""

    call_id: str
    key: str  # which only one call is given


T = TypeVar("T", bound=Record)


class Evidence(msgspec.Struct, frozen=True):
    history: Sequence[Record]
    stored: Snapshot
    clocks_agree: bool = True  # those of the servers: otherwise the times in the database cannot be compared

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.history if isinstance(record, kind)]


def violations(history: Iterable[Record], stored: Snapshot, *, clocks_agree: bool = True) -> list[str]:
    evidence = Evidence(sorted(history, key=lambda record: record.at_s), stored, clocks_agree)
    return [f"{name}: {broken}" for name, check in _CHECKS.items() for broken in check(evidence)]


# --- H1 ---


def accepted_once(evidence: Evidence) -> Iterator[str]:
    rows: defaultdict[str, list[Message]] = defaultdict(list)
    for row in evidence.stored.messages.values():
        rows[row.otid or ""].append(row)
    answers: defaultdict[str, list[Answered]] = defaultdict(list)
    for answer in evidence.of(Answered):
        answers[answer.otid].append(answer)
    tries = Counter(sent.otid for sent in evidence.of(Sent))
    for sent in {sent.otid: sent for sent in evidence.of(Sent)}.values():
        yield from _stored_as_answered(sent, tries[sent.otid], answers[sent.otid], rows[sent.otid])


def _stored_as_answered(sent: Sent, tries: int, answers: Sequence[Answered], rows: Sequence[Message]) -> Iterator[str]:
    named = {answer.run_id for answer in answers if answer.run_id is not None}
    accepted = any(answer.status == 200 for answer in answers)
    if len(named) > 1:
        yield f"the answers to {sent.otid} name the runs {sorted(named)}"
    if len(rows) > 1:
        yield f"{sent.otid} is stored {len(rows)} times"
    if accepted and not rows and not sent.decides:  # an answer that somebody else has given is not stored again
        yield f"{sent.otid} was accepted and is not stored"
    if rows and len(answers) == tries and not accepted and all(answer.status < 500 for answer in answers):
        yield f"{sent.otid} was refused each time and is stored"
    for row in rows:
        if named and row.run_id not in named:
            yield f"{sent.otid} is stored for run {row.run_id}, the answer named {sorted(named)}"
        if sent.text and (text := _text(row)) != sent.text:
            yield f"{sent.otid} is stored as {text!r}, sent was {sent.text!r}"


def _text(row: Message) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, Text))


# --- H2 ---


def one_active_run(evidence: Evidence) -> Iterator[str]:
    for listed in evidence.of(Listed):
        if len(listed.run_ids) > 1:
            yield f"thread {listed.thread_id} had the active runs {sorted(listed.run_ids)} at {listed.at_s:.3f}"
    threads = _by_thread(evidence.stored)
    known = _known_active(evidence)
    for thread_id, runs in threads.items():
        spans = sorted((known[run.id], run.id) for run in runs if run.id in known)
        for ((_, ended_s), earlier), ((began_s, _), later) in pairwise(spans):
            if began_s < ended_s:
                yield f"thread {thread_id}: run {earlier} was active at {ended_s:.3f}, {later} since {began_s:.3f}"
        if evidence.clocks_agree:
            yield from _one_after_another(thread_id, [run for run in runs if run.id not in evidence.stored.holds])


def _by_thread(stored: Snapshot) -> dict[str, list[Run]]:
    found: defaultdict[str, list[Run]] = defaultdict(list)
    for run in stored.runs.values():
        found[run.thread_id].append(run)
    return found


def _known_active(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """From when until when a run was surely active: somebody had heard of it, and somebody was told later that it was
    still active."""
    since: dict[str, float] = {}
    until: dict[str, float] = {}
    for record in evidence.history:
        for run_id in _runs_in(record):
            since.setdefault(run_id, record.at_s)
    for asked_s, run_id in _seen_active(evidence):
        until[run_id] = max(until.get(run_id, 0.0), asked_s)
    return {run_id: (began, until[run_id]) for run_id, began in since.items() if until.get(run_id, 0.0) > began}


def _runs_in(record: Record) -> tuple[str, ...]:
    match record:
        case Answered(run_id=str(run_id)) | Shown(run_id=run_id) | Looked(run_id=run_id) | Cancelled(run_id=run_id):
            return (run_id,)
        case Listed():
            return record.run_ids
        case _:
            return ()


def _one_after_another(thread_id: str, runs: Sequence[Run]) -> Iterator[str]:
    """By the times in the database: a run is dated after the one before it was seen to have ended. Not of runs that
    waited for a decision: when that is withdrawn they are dated again, and were not active meanwhile."""
    for earlier, later in pairwise(sorted(runs, key=lambda run: run.created_us)):
        if earlier.completed_us is not None and later.created_us < earlier.completed_us:
            yield f"thread {thread_id}: run {later.id} began before run {earlier.id} ended"


# --- H3 ---


def decided_once(evidence: Evidence) -> Iterator[str]:
    stored = evidence.stored
    taken: defaultdict[str, list[Message]] = defaultdict(list)
    for row in stored.messages.values():
        for decision in row.decisions:
            taken[decision.call_id].append(row)
    holders = {call_id: hold for hold in stored.holds.values() for call_id in hold.hold.asked_ids}
    for call_id, rows in taken.items():
        if len(rows) > 1:
            yield f"{len(rows)} decisions about call {call_id} are stored"
        hold = holders.get(call_id)
        if hold is None or hold.decided_by_run != rows[0].run_id:
            yield f"the decision about call {call_id} is that of run {rows[0].run_id}, its hold says otherwise"
    accepted = {answer.otid for answer in evidence.of(Answered) if answer.status == 200}
    for sent in evidence.of(Sent):
        for call_id in sent.decides:
            if sent.otid in accepted and not taken[call_id]:
                yield f"{sent.otid} decided about call {call_id}, and no decision is stored"


# --- H4 ---


def one_stream(evidence: Evidence) -> Iterator[str]:
    stored, readers = evidence.stored, defaultdict[str, list[Shown]](list)
    said: dict[tuple[str, int], Shown] = {}
    for shown in evidence.of(Shown):
        if not shown.is_content:
            continue
        readers[shown.reader].append(shown)
        if shown.seq is None:
            continue
        first = said.setdefault((shown.run_id, shown.seq), shown)
        if first.event != shown.event:
            yield (
                f"event {shown.seq} of run {shown.run_id} is {first.event} to {first.reader}, "
                f"and {shown.event} to {shown.reader}"
            )
    attached: dict[str, int] = {}
    for each in evidence.of(Attached):
        attached.setdefault(each.reader, each.after)
    replays = _replays(readers)
    for reader, events in readers.items():
        after = attached.get(reader, 0)
        yield from _in_order(reader, events)
        yield from _ends_once(reader, events, stored)
        yield from _says_what_is_stored(reader, events, stored, after)
        if events[0].seq is not None and events[0].run_id in replays:
            yield from _complete(reader, events, after, replays[events[0].run_id], stored)


def _replays(readers: dict[str, list[Shown]]) -> dict[str, set[int]]:
    """What there is to see of each run: the numbers that a replay shows."""
    return {
        events[0].run_id: {event.seq for event in events if event.seq is not None}
        for reader, events in readers.items()
        if reader.startswith(REPLAY)
    }


def _in_order(reader: str, events: Sequence[Shown]) -> Iterator[str]:
    if len({event.run_id for event in events}) > 1:
        yield f"{reader} was shown several runs"
    numbers = [event.seq for event in events if event.seq is not None]
    for before, after in pairwise(numbers):
        if after <= before:
            yield f"{reader} was shown event {after} after event {before}"


def _ends_once(reader: str, events: Sequence[Shown], stored: Snapshot) -> Iterator[str]:
    stops = [index for index, event in enumerate(events) if event.kind == "stop_reason"]
    if not stops:
        return
    if len(stops) > 1:
        yield f"{reader} was shown {len(stops)} ends"
    if len(events) > stops[0] + 2:
        yield f"{reader} was shown {events[-1].kind} after the end"
    run, told = stored.runs.get(events[0].run_id), events[stops[0]].event.get("stop_reason")
    withdrawn = told == "requires_approval" and run is not None and run.status == "cancelled"
    if run is not None and told != run.stop_reason and not withdrawn:
        yield f"{reader} was told that run {run.id} stopped by {told}, its row says {run.stop_reason}"


def _says_what_is_stored(reader: str, events: Sequence[Shown], stored: Snapshot, after: int) -> Iterator[str]:
    """Whoever saw the end was shown the text of each message as it is stored; from where it began to read."""
    if not any(event.kind == "stop_reason" for event in events):
        return
    told: defaultdict[str, str] = defaultdict(str)
    for event in events:
        if event.kind == "assistant_message" and isinstance(event.event.get("content"), str):
            told[event.event["id"]] += event.event["content"]
    for message_id, text in told.items():
        row = stored.messages.get(message_id)
        if row is not None and (not _text(row).endswith(text) if after else _text(row) != text):
            yield f"{reader} was shown {text!r} of message {message_id}, stored is {_text(row)!r}"


def _complete(reader: str, events: Sequence[Shown], after: int, whole: set[int], stored: Snapshot) -> Iterator[str]:
    """Everything that a replay shows up to where the reader came; beyond that, only pieces of replies that were given
    up, of which it was told."""
    seen = {event.seq for event in events if event.seq is not None}
    run = stored.runs.get(events[0].run_id)
    ended = any(event.kind == "stop_reason" for event in events)
    missing = {seq for seq in whole if after < seq <= max(seen)} - seen
    if missing:
        yield f"{reader} was not shown the events {sorted(missing)} of run {events[0].run_id}"
    void = {message_id for event in events for message_id in event.void_ids}
    untold: set[str] = set()
    for event in events:
        if event.seq in whole or event.void_ids:
            continue
        message_id = str(event.event.get("id"))
        if message_id in stored.messages:
            yield f"{reader} was shown a {event.kind} as event {event.seq}, which a replay leaves out"
        elif message_id not in void:
            untold.add(message_id)
    if ended and run is not None and run.status == "completed":
        yield from (f"{reader} was never told that message {message_id} is void" for message_id in sorted(untold))


# --- H5 ---


def one_effect(evidence: Evidence) -> Iterator[str]:
    effects = evidence.of(Effect)
    for what, counted in (("call", Counter(e.call_id for e in effects)), ("key", Counter(e.key for e in effects))):
        yield from (f"{what} {name} took effect {count} times" for name, count in counted.items() if count > 1)
    rows, happened = evidence.stored.messages.values(), {effect.call_id for effect in effects}
    known = {call.id for row in rows for call in row.calls}
    yield from (f"call {call_id} took effect and is not stored" for call_id in sorted(happened - known))
    for row in rows:
        for part in row.returns:
            if part.status == "success" and part.call_id not in happened:
                yield f"call {part.call_id} is said to have succeeded and took no effect"
        for decision in row.decisions:
            if not isinstance(decision, Approve) and decision.call_id in happened:
                yield f"call {decision.call_id} was denied and took effect"


# --- H6 ---


def every_run_has_ended(evidence: Evidence) -> Iterator[str]:
    for run_id in sorted({run_id for record in evidence.history for run_id in _runs_in(record)}):
        run = evidence.stored.runs.get(run_id)
        if run is None:
            yield f"somebody was told of run {run_id}, which is not stored"
        elif run.is_active:
            yield f"run {run_id} is still {run.status}"


# --- H7 ---


def over_is_over(evidence: Evidence) -> Iterator[str]:
    """A run that asked for an approval is `completed`, and may be cancelled afterwards. Nothing else changes."""
    over: dict[str, tuple[float, str]] = {}
    for at_s, run_id, status in _ends(evidence):
        _, before = over.get(run_id, (at_s, status))
        if status != before and not (status == "cancelled" and run_id in evidence.stored.holds):
            yield f"run {run_id} was said to be {before}, and later {status}"
        over[run_id] = min(over.get(run_id, (at_s, ""))[0], at_s), status
    for asked_s, run_id in _seen_active(evidence):
        if run_id in over and over[run_id][0] < asked_s:
            yield f"run {run_id} was said to be {over[run_id][1]}, and active later"
    for run_id, (_, status) in over.items():
        run = evidence.stored.runs.get(run_id)
        if run is None or run.status == status or (run.status == "cancelled" and run_id in evidence.stored.holds):
            continue
        yield f"run {run_id} was said to be {status}, and is {run.status}"


def _seen_active(evidence: Evidence) -> Iterator[tuple[float, str]]:
    """Since when a question was under way that was answered with: this run is active."""
    for record in evidence.history:
        if isinstance(record, Looked) and record.status in ACTIVE:
            yield record.asked_s, record.run_id
        if isinstance(record, Listed):
            yield from ((record.asked_s, run_id) for run_id in record.run_ids)


def _ends(evidence: Evidence) -> Iterator[tuple[float, str, str]]:
    """Each time that somebody was told how a run has ended."""
    for record in evidence.history:
        match record:
            case Looked() if record.status not in ACTIVE:
                yield record.at_s, record.run_id, record.status
            case Shown() if record.kind == "stop_reason":
                yield record.at_s, record.run_id, _status_of(record.event["stop_reason"])
            case Answered(run_id=str(run_id), stop_reason=str(stop_reason)):
                yield record.at_s, run_id, _status_of(stop_reason)
            case Cancelled(result="cancelled"):
                yield record.at_s, record.run_id, "cancelled"
            case _:
                pass


def _status_of(stop_reason: str) -> str:
    return STATUS_OF_STOP.get(stop_reason, "failed")


_CHECKS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "H1": accepted_once,
    "H2": one_active_run,
    "H3": decided_once,
    "H4": one_stream,
    "H5": one_effect,
    "H6": every_run_has_ended,
    "H7": over_is_over,
}

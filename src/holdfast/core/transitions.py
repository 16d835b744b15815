"""What is written when something has happened to a run: events, messages, frames, and what becomes of its step. Pure.

`run.py` says what a run may do next, and this module what each fact changes (decision 21). A transition takes a fact
and the run before it, and gives a Change. The next checkpoint stores it as a whole, so that rows, window, journal and
frames agree (I2, I6). Nothing here knows of a database, a stream or a clock.

The rows that facts leave in a thread are made at the end of the module: replies, the returns of calls, heartbeats, the
denials of a cancelled hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast import ids
from holdfast.core import heartbeat_loop, tool_rules
from holdfast.core.calls import judge
from holdfast.core.deltas import Reply
from holdfast.core.events import (
    RETURNED_CHARS,
    AnyEvent,
    CancelAsked,
    Compacted,
    CompactionFailed,
    JudgedCall,
    ModelFailed,
    ModelReplied,
    Parked,
    RunFailed,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.failures import Failure
from holdfast.core.frames import AbandonedFrame, Frame, RetryFrame, message_frames
from holdfast.core.hold import HeldTools, Hold, client_answers
from holdfast.core.messages import ClientReturn, Deny, Message, Parts, Reasoning, Role, Text, ToolReturn, content_text
from holdfast.core.model_history import heartbeat_text
from holdfast.core.records import StepStatus, StopReason
from holdfast.core.run import CallModel, OpenCall, Phase, RunState, apply, held_calls
from holdfast.core.spec import RunSpec
from holdfast.core.usage import Usage, estimate_tokens

DENIED_BY_CANCEL: Final = "The user cancelled the request, so the tool call was denied."
NOT_RUN: Final = "Error: the tool was not executed because the user cancelled the request."
CUT_OFF: Final = "Error: the tool was stopped because the user cancelled the request. It may have taken effect in part."
NOT_RUN_AFTER_FAILURE: Final = "Error: the tool was not executed because the run failed."
OUTCOME_UNKNOWN: Final = (
    "Error: the server stopped while this tool was running, so its outcome is unknown. It was not run again. "
    "Check whether it took effect before you repeat it."
)


class RunView(msgspec.Struct, frozen=True):
    """A run as it stands: what a transition is decided on."""

    run_id: str
    lease: int
    state: RunState
    window: Sequence[Message]
    step_number: int | None  # of the newest step
    now_us: int

    @property
    def spec(self) -> RunSpec:
        return self.state.frozen_spec

    @property
    def step_id(self) -> str:
        return _step_id(self.run_id, self.state)

    @property
    def is_at_step(self) -> bool:
        """Whether the newest step is the one being worked on. Between two steps it is the one that has ended."""
        return self.step_number == self.state.model_calls + (self.state.phase is Phase.THINKING)


class Attempt(msgspec.Struct, frozen=True):
    """The ids of one try at a model call, derived from run, step, lease and attempt (decision 4). Another try has other
    ids, so that a reader never appends its fragments to those of an abandoned one."""

    reply_id: str
    held_id: str


class Replied(msgspec.Struct, frozen=True):
    attempt: Attempt
    reply: Reply
    intent: CallModel


class Undone(msgspec.Struct, frozen=True):
    """What a draft held when it was undone. Tools have run and fragments were shown although nothing was stored, so a
    cancel and a failure store what they can of it (I3, I6)."""

    reply: Replied | None = None
    given_up: Reply | None = None  # what a failed try had said
    returns: Sequence[ToolReturn] = ()


class WindowCut(msgspec.Struct, frozen=True):
    evicted_ids: tuple[str, ...]
    summary_id: str


class StepChange(msgspec.Struct, frozen=True):
    """What becomes of the newest step, beside what was measured of it."""

    status: StepStatus | None = None
    stop_reason: StopReason | None = None
    usage: Usage | None = None  # of one more try
    failure: Failure | None = None


class Change(msgspec.Struct, frozen=True):
    state: RunState
    window: list[Message]
    events: Sequence[AnyEvent] = ()
    rows: Sequence[Message] = ()  # new ones, in order
    positions: Mapping[str, int] = {}  # of new rows that have a reserved place; all others are appended
    changed: Sequence[Message] = ()  # rows that were there before
    frames: Sequence[Frame] = ()
    shows_content: bool = False
    cut: WindowCut | None = None
    hold: Hold | None = None
    step: StepChange | None = None
    keeps_partial_reply: bool = False  # what was shown of the reply that was cut off is among the rows


def replied(view: RunView, intent: CallModel, attempt: Attempt, reply: Reply, usage: Usage) -> Change:
    spec, state = view.spec, view.state
    is_last = state.iterations + 1 >= spec.max_steps
    calls = judge(
        spec, intent.choice, reply.calls, parallel=intent.parallel, history=state.history, is_last_step=is_last
    )
    spoken = reply.spoken if spec.heartbeats is None else heartbeat_loop.reply_parts(spec.heartbeats, reply)
    draft = _Draft(view)
    written = reply_rows(draft.origin(intent.number), attempt.reply_id, attempt.held_id, spoken, calls)
    reply_id = written[0].id if written else None
    draft.record(ModelReplied(reply_id, calls, reply.finish or "stop", usage, spoke=bool(reply.spoken)))
    draft.append(written)
    if not spec.stream_tokens:  # a token stream has shown it already
        draft.show(written)
    if not calls and draft.state.phase is Phase.THINKING and not draft.state.stop_after_compaction:
        missing = tool_rules.uncalled_required(spec.rules, spec.tool_names, draft.state.history)
        draft.append_heartbeat(required_tools_reason(missing))
    return draft.change(step=StepChange(status="success", usage=usage))


def model_failed(
    view: RunView, failure: Failure, reply: Reply, retry_in_ms: int | None, shown_ids: Sequence[str]
) -> Change:
    """`shown_ids`: messages of which listeners have seen fragments. They are abandoned by the event that records the
    failed try (decision 10) and not earlier, because a cancel that comes before it keeps what was said."""
    usage = reply.usage or Usage()
    draft = _Draft(view)
    draft.record(ModelFailed(failure.stop_reason, failure.error, failure.overflow, retry_in_ms, usage))
    draft.frames.extend(AbandonedFrame(message_id) for message_id in shown_ids)
    if retry_in_ms is not None or (shown_ids and draft.state.compact):
        # A compaction comes between the tries without a word, unless one was shown that is void now.
        after = msgspec.structs.replace(view, state=draft.state)
        draft.frames.append(retry_frame(after, failure.error, retry_in_ms or 0, shown_ids))
    if draft.state.phase is Phase.DONE:
        return draft.change(step=_failed_step(failure, usage))
    return draft.change(step=StepChange(usage=usage))


def tools_started(view: RunView, calls: Sequence[OpenCall]) -> Change:
    draft = _Draft(view)
    draft.record(ToolsStarted(tuple(call.call.id for call in calls)))
    return draft.change()


def returned(view: RunView, returns: Sequence[ToolReturn]) -> Change:
    draft = _Draft(view)
    draft.add_returns(returns)
    return draft.change(step=StepChange())


def inline_tool_returned(view: RunView, call: OpenCall, answer: ToolReturn) -> Change:
    """Of a built-in tool, whose start and end are one fact."""
    draft = _Draft(view)
    draft.record(ToolsStarted((call.call.id,)))
    draft.add_returns([answer])
    return draft.change()


def settled(view: RunView, calls: Sequence[OpenCall]) -> Change:
    """Returns for calls that are not run: refused, denied, answered by the client, cut off or never reached. So every
    call has its return, whatever ended the run (I3)."""
    state, draft = view.state, _Draft(view)
    hold = state.hold
    if hold is not None:
        draft.append([denial_row(draft.origin(), ids.derive("message", view.run_id, "withdrawn"), hold)])
        draft.add_returns([withdrawal(call) for call in calls], _asked_first(hold))
        return draft.change()
    answers = client_answers([d for row in view.window if row.run_id == view.run_id for d in row.decisions])
    draft.add_returns([settlement(call, state.ending, answers) for call in calls])
    return draft.change()


def parked(view: RunView, tools: HeldTools) -> Change:
    request = next(row for row in reversed(view.window) if row.is_approval_request)
    hold = tools.remembered_in(Hold(request.id, view.step_id, held_calls(view.state)))
    draft = _Draft(view)
    draft.record(Parked(hold))
    return draft.change(hold=hold)


def compacted(view: RunView, summary: Message, evicted: Sequence[Message], context_tokens: int) -> Change:
    """The summary stands right after the system message."""
    gone = {row.id for row in evicted}
    kept = [row for row in view.window if row.id not in gone]
    draft = _Draft(view)
    draft.rows.append(summary)
    draft.window = [*kept[:1], summary, *kept[1:]]
    if view.spec.include_compaction:
        draft.show([summary])
    draft.record(Compacted(summary.id, len(evicted), context_tokens))
    return draft.change(cut=WindowCut(tuple(row.id for row in evicted), summary.id))


def compaction_failed(view: RunView, failure: Failure) -> Change:
    draft = _Draft(view)
    draft.record(CompactionFailed(failure.stop_reason, failure.error))
    ends_step = view.is_at_step and draft.state.phase is Phase.DONE
    return draft.change(step=_failed_step(failure) if ends_step else None)


def failed(view: RunView, failure: Failure, undone: Undone) -> Change:
    """A bug or an error of the server: the run ends as failed, with the reason (I10). `view` is the run as its last
    checkpoint left it. The returns of tools that have run are kept."""
    draft = _Draft(view)
    draft.record(RunFailed(failure.stop_reason, failure.error))
    draft.keep_returns(undone.returns)
    return draft.change(step=_failed_step(failure) if view.is_at_step else None)


def cancelled(
    view: RunView, undone: Undone, partial: Reply | None, attempt: Attempt | None, prompt_tokens: int
) -> Change:
    """The user asked to stop (I5). What was said is kept, and so are the returns of tools that have run. `view` is the
    run as its last checkpoint left it; `partial`, what the model had said when interrupted; `attempt`, its ids."""
    state, spec = view.state, view.spec
    if undone.reply is not None:
        attempt = undone.reply.attempt
    reply = partial or (undone.reply.reply if undone.reply else undone.given_up)
    interrupted = state.phase is Phase.THINKING and not state.compact
    usage = (reply.usage or estimated_usage(reply, prompt_tokens)) if reply and interrupted else Usage()
    draft = _Draft(view)
    draft.record(CancelAsked(usage=usage))
    keeps = reply is not None and attempt is not None and interrupted and spec.stream_tokens
    if reply is not None and attempt is not None and keeps:
        # Only a token stream has delivered it; it is stored so that stream and history agree (I6). A call that was cut
        # off is not stored, because it would need a return (I3); a replay still shows its fragments.
        draft.append(partial_rows(draft.origin(state.model_calls + 1), attempt.reply_id, reply, spec))
    draft.keep_returns(undone.returns)
    step = StepChange("cancelled", "cancelled", usage if interrupted else None) if view.is_at_step else None
    return draft.change(step=step, keeps_partial_reply=keeps)


def retry_frame(view: RunView, error: Mapping[str, Any], retry_in_ms: int, abandoned: Sequence[str]) -> RetryFrame:
    state = view.state
    step_id = ids.derive("step", view.run_id, state.model_calls + 1)
    overflows = state.overflows  # tries that compaction was the answer to: they are not counted against the run
    failures, tries = state.failures + overflows, view.spec.retries + 1 + overflows
    return RetryFrame(
        message_id=ids.derive("message", view.run_id, step_id, view.lease, failures, "retry"),
        step_id=step_id,
        at_us=view.now_us,
        attempt=failures + 1,
        max_attempts=tries,
        error_type=error["error_type"],
        message=error["detail"],
        retry_in_ms=retry_in_ms,
        abandoned_ids=tuple(abandoned),
    )


def estimated_usage(reply: Reply, prompt_tokens: int) -> Usage:
    """Of a reply whose vendor did not say. What went in is paid for too, though nothing may have come out."""
    output = "".join(part.text for part in reply.spoken if isinstance(part, (Text, Reasoning)))
    output += "".join(call.name + call.arguments for call in reply.calls)
    return Usage(prompt_tokens, estimate_tokens(output), estimated=True)


class _Draft:
    """A Change in the making."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.state = view.state
        self.window = list(view.window)
        self.rows: list[Message] = []
        self.frames: list[Frame] = []
        self._events: list[AnyEvent] = []
        self._positions: dict[str, int] = {}
        self._changed: list[Message] = []
        self._shows_content = False

    def change(
        self,
        *,
        step: StepChange | None = None,
        cut: WindowCut | None = None,
        hold: Hold | None = None,
        keeps_partial_reply: bool = False,
    ) -> Change:
        return Change(
            state=self.state,
            window=self.window,
            events=self._events,
            rows=self.rows,
            positions=self._positions,
            changed=self._changed,
            frames=self.frames,
            shows_content=self._shows_content,
            cut=cut,
            hold=hold,
            step=step,
            keeps_partial_reply=keeps_partial_reply,
        )

    def origin(self, step_number: int | None = None) -> Origin:
        """Of rows of that step; else of the step that rows belong to now."""
        view = self._view
        step_id = ids.derive("step", view.run_id, step_number) if step_number else _step_id(view.run_id, self.state)
        return Origin(view.run_id, step_id, view.spec.model.handle, view.now_us)

    def record(self, event: AnyEvent) -> None:
        self.state = apply(self.state, event)
        self._events.append(event)

    def append(self, new: Sequence[Message]) -> None:
        self.rows.extend(new)
        self.window.extend(new)

    def show(self, new: Sequence[Message]) -> None:
        loop = self._view.spec.heartbeats
        speaking = loop.speaking if loop else None
        self.frames.extend(frame for row in new for frame in message_frames(row, speaking))
        self._shows_content = self._shows_content or bool(new)

    def append_heartbeat(self, reason: str) -> None:
        row_id = ids.derive("message", self._view.run_id, self.state.model_calls, "heartbeat")
        self.append([heartbeat_row(self.origin(), row_id, reason, self._view.spec.timezone)])

    def add_returns(self, returns: Sequence[ToolReturn], places: Mapping[str, int] | None = None) -> None:
        """All returns of a step share one row, in the order of its calls. It is shown when the last one is there."""
        state, origin = self.state, self.origin()
        row_id = ids.derive("message", self._view.run_id, origin.step_id, "returns")
        before: Message | None = None
        if state.calls.returned:  # else there is none, and a long window would be searched for it
            before = next((row for row in reversed(self.window) if row.id == row_id), None)
        if state.step_id is not None:  # its calls were put to somebody before
            returns = [msgspec.structs.replace(answer, was_asked=True) for answer in returns]
        row = tool_row(
            origin, row_id, before.returns if before else (), returns, state.calls.places if places is None else places
        )
        if before is not None:
            row = msgspec.structs.replace(before, parts=row.parts)  # all that a stored row can change
        for answer in returns:
            text = content_text(answer.content)[:RETURNED_CHARS]
            self.record(ToolReturned(answer.call_id, answer.status, text))
        self._put_tool_row(row, before, state.return_position)
        if self.state.phase is not Phase.ACTING:
            self.show([row])
        if self.state.heartbeat is not None and self.state.phase is Phase.THINKING:
            self.append_heartbeat(self.state.heartbeat)

    def keep_returns(self, returns: Sequence[ToolReturn]) -> None:
        """Returns of tools that have run although the draft that held them was undone: without them the model would be
        told that the outcome is unknown. A return for a call that is not open is left out."""
        open_ids = {call.call.id for call in self.state.open_calls}
        kept = {answer.call_id: answer for answer in returns if answer.call_id in open_ids}
        if kept:
            self.add_returns(list(kept.values()))

    def _put_tool_row(self, row: Message, before: Message | None, position: int | None) -> None:
        if before is not None:
            self.window[self.window.index(before)] = row
            self._changed.append(row)
            return
        self.rows.append(row)
        if position is None:
            self.window.append(row)
        else:
            # The answer to a hold reserved this place right after itself (decision 5).
            self._positions[row.id] = position
            answer = next(index for index, known in enumerate(self.window) if known.run_id == self._view.run_id)
            self.window.insert(answer + 1, row)


def _step_id(run_id: str, state: RunState) -> str:
    """The step that rows written now belong to."""
    return state.step_id or ids.derive("step", run_id, max(1, state.model_calls))


def _failed_step(failure: Failure, usage: Usage | None = None) -> StepChange:
    return StepChange("failed", failure.stop_reason, usage, failure)


def _asked_first(hold: Hold) -> dict[str, int]:
    """Where the return of each call belongs."""
    others = (held.call.id for held in hold.calls if not held.asks)
    return {call_id: place for place, call_id in enumerate((*hold.asked_ids, *others))}


class Origin(msgspec.Struct, frozen=True):
    """Where a row comes from; stamped on every row of a step."""

    run_id: str
    step_id: str
    model: str
    now_us: int


def reply_rows(
    origin: Origin, reply_id: str, held_id: str, spoken: Parts, calls: Sequence[JudgedCall]
) -> list[Message]:
    """One assistant row, one approval request, or both: then the request holds only the calls that ask."""
    asking = tuple(judged.call for judged in calls if judged.verdict == "held")
    others = tuple(judged.call for judged in calls if judged.verdict != "held")
    rows: list[Message] = []
    if others or (spoken and not asking):
        rows.append(_row(origin, reply_id, "assistant", spoken + others))
    if asking and others:
        rows.append(_row(origin, held_id, "approval", asking))
    elif asking:
        rows.append(_row(origin, reply_id, "approval", spoken + asking))
    return rows


def partial_rows(origin: Origin, reply_id: str, reply: Reply, spec: RunSpec) -> list[Message]:
    """What is stored of a reply that was cut off: its text, not its calls, which would need returns (I3)."""
    loop = spec.heartbeats
    spoken = reply.spoken if loop is None else heartbeat_loop.partial_parts(spec, loop, reply)
    return [_row(origin, reply_id, "assistant", spoken)] if spoken else []


def tool_row(
    origin: Origin, row_id: str, known: Sequence[ToolReturn], new: Sequence[ToolReturn], places: Mapping[str, int]
) -> Message:
    """All returns of a step in one row, in the order of its calls: `places` says where each id belongs.

    Tools that run one after another return in order; then `known` is not looked through again.
    """
    latest = {part.call_id: part for part in new if part.call_id in places}
    added = sorted(latest.values(), key=lambda part: places[part.call_id])
    if known and added and places[added[0].call_id] <= places[known[-1].call_id]:
        together = {part.call_id: part for part in known} | latest
        parts = tuple(sorted(together.values(), key=lambda part: places[part.call_id]))
    else:
        parts = (*known, *added)
    return msgspec.structs.replace(_row(origin, row_id, "tool", parts), name=parts[0].name if parts else None)


def denial_row(origin: Origin, row_id: str, hold: Hold) -> Message:
    """The denial of every held call that a cancel writes in place of a human's answer (I4)."""
    return _row(origin, row_id, "approval", tuple(Deny(call_id, DENIED_BY_CANCEL) for call_id in hold.asked_ids))


def heartbeat_row(origin: Origin, row_id: str, reason: str, timezone: str) -> Message:
    """A message of the role `user` that the server writes, to tell the model why it is called again."""
    row = _row(origin, row_id, "user", (Text(heartbeat_text(reason, origin.now_us, timezone)),))
    return msgspec.structs.replace(row, otid=ids.part_otid(row_id, 0), model=None)


def _row(origin: Origin, row_id: str, role: Role, parts: Parts) -> Message:
    return Message(
        id=row_id,
        role=role,
        parts=parts,
        created_us=origin.now_us,
        run_id=origin.run_id,
        step_id=origin.step_id,
        model=origin.model,
    )


def required_tools_reason(names: Sequence[str]) -> str:
    return f"ToolRuleViolated: You must call {', '.join(names)} at least once to exit the loop."


def settlement(call: OpenCall, ending: StopReason | None, answers: Mapping[str, ClientReturn]) -> ToolReturn:
    """The return of a call that is not run, or not run to its end."""
    answer = answers.get(call.call.id)
    if call.status == "answered" and answer is not None:
        return ToolReturn(call.call.id, call.call.name, answer.status, answer.content, answer.stdout, answer.stderr)
    return ToolReturn(call.call.id, call.call.name, "error", _why_not_run(call, ending))


def _why_not_run(call: OpenCall, ending: StopReason | None) -> str:
    match call.status, ending:
        case "refused", _:
            return call.note or "Error: the call was refused."
        case "denied", _:
            return denial_text(call.note)
        case "started", "cancelled":
            return CUT_OFF
        case "started", _:
            return OUTCOME_UNKNOWN
        case _, "cancelled":
            return NOT_RUN
        case _, None:
            return "Tool not found"
        case _:
            return NOT_RUN_AFTER_FAILURE


def withdrawal(call: OpenCall) -> ToolReturn:
    """The return of any call of a hold that was cancelled, siblings included."""
    return ToolReturn(call.call.id, call.call.name, "error", denial_text(DENIED_BY_CANCEL))


def denial_text(reason: str | None) -> str:
    return "Error: request to call tool denied." + (f" User reason: {reason}" if reason else "")

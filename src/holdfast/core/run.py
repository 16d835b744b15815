"""The run state machine. Every transition lives in this file and nowhere else.

`apply` folds a fact into the state and raises IllegalEvent for any pair that is not in TRANSITIONS. `plan` says what to
do next; it is a function of the state alone, so a crash loses no intention: fold the journal again and ask again.

Ending a run that has open calls takes two steps: `ending` is set, `plan` settles the open calls, and with the last
return the run is done. So no call is left without its return, whatever ended the run (I3).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, Final

import msgspec

from holdfast.core import heartbeat_loop, tool_rules
from holdfast.core.arguments import all_arguments_of
from holdfast.core.calls import Calls, CallStatus, OpenCall
from holdfast.core.events import (
    AnyEvent,
    CancelAsked,
    Compacted,
    CompactionFailed,
    JudgedCall,
    ModelFailed,
    ModelReplied,
    Parked,
    Resumed,
    RunFailed,
    RunStarted,
    ToolReturned,
    ToolsStarted,
)
from holdfast.core.hold import HeldCall, Hold
from holdfast.core.records import StopReason
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import Called, Choice
from holdfast.core.usage import Usage, should_compact
from holdfast.errors import BugError, IllegalEvent, ToolFailed

OVERFLOW: Final = "context_window_exceeded"  # why a context is compacted that did not fit
MAX_COMPACTIONS: Final = 3  # for one model call that overflows
_CUT_SHORT: Final = {
    "error_type": "max_tokens_exceeded",
    "message": "The answer was cut short because it reached the model's limit of output tokens.",
    "detail": "MAX_TOKENS_EXCEEDED: Raise max_output_tokens in the model settings, or ask for less at once.",
}


class Phase(enum.Enum):
    NEW = "new"
    THINKING = "thinking"
    ACTING = "acting"
    PARKING = "parking"
    PARKED = "parked"
    DONE = "done"


# (phase, event) → the phases it may lead to. A pair that is missing is illegal. The docs' diagram is drawn from this.
TRANSITIONS: Final[dict[tuple[Phase, type[AnyEvent]], frozenset[Phase]]] = {
    (Phase.NEW, RunStarted): frozenset({Phase.THINKING, Phase.ACTING}),
    (Phase.THINKING, ModelReplied): frozenset({Phase.THINKING, Phase.ACTING, Phase.PARKING, Phase.DONE}),
    (Phase.THINKING, ModelFailed): frozenset({Phase.THINKING, Phase.DONE}),
    (Phase.THINKING, Compacted): frozenset({Phase.THINKING, Phase.DONE}),
    (Phase.THINKING, CompactionFailed): frozenset({Phase.THINKING, Phase.DONE}),
    (Phase.THINKING, CancelAsked): frozenset({Phase.DONE}),
    (Phase.THINKING, RunFailed): frozenset({Phase.DONE}),
    (Phase.ACTING, ToolsStarted): frozenset({Phase.ACTING}),
    (Phase.ACTING, ToolReturned): frozenset({Phase.ACTING, Phase.THINKING, Phase.DONE}),
    (Phase.ACTING, CancelAsked): frozenset({Phase.ACTING}),
    (Phase.ACTING, RunFailed): frozenset({Phase.ACTING}),
    (Phase.PARKING, Parked): frozenset({Phase.PARKED}),
    (Phase.PARKING, CancelAsked): frozenset({Phase.ACTING}),
    (Phase.PARKING, RunFailed): frozenset({Phase.ACTING}),
    (Phase.PARKED, Resumed): frozenset({Phase.DONE}),
    (Phase.PARKED, CancelAsked): frozenset({Phase.ACTING}),
    (Phase.DONE, CancelAsked): frozenset({Phase.DONE}),
}


class RunState(msgspec.Struct, frozen=True):
    phase: Phase
    spec: RunSpec | None = None
    iterations: int = 0  # of the loop; limited by max_steps
    model_calls: int = 0
    step_id: str | None = None  # the paused step that an approval resumes; None: the newest model call's own
    calls: Calls = Calls()
    fatal: bool = False  # a call of this step ends the run
    cut_short: bool = False  # the output limit came in the middle of a call of this step
    return_position: int | None = None
    hold: Hold | None = None
    history: tuple[Called, ...] = ()
    usage: Usage = Usage()
    context_tokens: int | None = None
    heartbeat: str | None = None  # why the model is called again, as it is told
    compact: str | None = None  # why the context is to be compacted before anything else
    compactions: int = 0
    overflows: int = 0  # since the last reply
    failures: int = 0  # since the last reply, each followed by another try
    pause_ms: int = 0  # to be waited before that try
    stop_after_compaction: StopReason | None = None
    ending: StopReason | None = None
    stop_reason: StopReason | None = None
    error: dict[str, Any] | None = None

    @property
    def frozen_spec(self) -> RunSpec:
        if self.spec is None:
            raise BugError("a run was used before it was started")
        return self.spec

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        return self.calls.still_open


class CallModel(msgspec.Struct, frozen=True):
    number: int  # of the model call within the run, from 1
    choice: Choice
    parallel: bool
    attempt: int = 1
    pause_ms: int = 0  # to wait before it


class CallTools(msgspec.Struct, frozen=True):
    calls: tuple[OpenCall, ...]


class Settle(msgspec.Struct, frozen=True):
    """Calls that get a return without being run."""

    calls: tuple[OpenCall, ...]


class Compact(msgspec.Struct, frozen=True):
    trigger: str


class Park(msgspec.Struct, frozen=True):
    calls: tuple[OpenCall, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until somebody decides."""

    hold: Hold


class Done(msgspec.Struct, frozen=True):
    stop_reason: StopReason


Intent = CallModel | CallTools | Settle | Compact | Park | Wait | Done

NEW: Final = RunState(Phase.NEW)


def apply(state: RunState, event: AnyEvent) -> RunState:
    allowed = TRANSITIONS.get((state.phase, type(event)))
    if allowed is None:
        raise IllegalEvent(f"{type(event).__name__} cannot happen to a run that is {state.phase.value}")
    after = _fold(state, event)
    if after.phase not in allowed:
        raise IllegalEvent(f"{type(event).__name__} led from {state.phase.value} to {after.phase.value}")
    return after


def replay(events: Iterable[AnyEvent]) -> RunState:
    return reduce(apply, events, NEW)


def plan(state: RunState) -> Intent:
    match state.phase:
        case Phase.THINKING:
            return Compact(state.compact) if state.compact else _call_model(state)
        case Phase.ACTING:
            return _next_action(state)
        case Phase.PARKING:
            return Park(tuple(state.calls))
        case Phase.PARKED if state.hold is not None:
            return Wait(state.hold)
        case Phase.DONE if state.stop_reason is not None:
            return Done(state.stop_reason)
        case _:
            raise BugError(f"a run that is {state.phase.value} has no next step")


def _fold(state: RunState, event: AnyEvent) -> RunState:
    match event:
        case RunStarted():
            return _started(event)
        case ModelReplied():
            return _replied(state, event)
        case ModelFailed():
            return _model_failed(state, event)
        case ToolsStarted(call_ids):
            return _tools_started(state, call_ids)
        case ToolReturned():
            return _returned(state, event)
        case Parked(hold):
            return _parked(state, hold)
        case Resumed():
            return _done(state, "requires_approval")
        case Compacted():
            kept = _change(state, compact=None, context_tokens=event.context_tokens, compactions=state.compactions + 1)
            return _done(kept, kept.stop_after_compaction, kept.error) if kept.stop_after_compaction else kept
        case CompactionFailed():
            return _compaction_failed(state, event)
        case CancelAsked():
            return state if state.phase is Phase.DONE else _cancelled(state, event)
        case RunFailed(stop_reason, error):  # pragma: no branch - there is no other kind
            # What breaks while a cancel is being carried out does not make it anything but a cancel.
            return state if state.ending == "cancelled" else _end(state, stop_reason, error)


def _started(event: RunStarted) -> RunState:
    if not event.resumes:
        return RunState(Phase.THINKING, event.spec)
    if any(call.verdict in ("held", "fatal") for call in event.resumes):
        raise IllegalEvent("a run cannot resume a call that nobody has decided on")
    return RunState(
        Phase.ACTING,
        event.spec,
        iterations=1,
        step_id=event.resumed_step_id,
        calls=_open(event.resumes),
        return_position=event.return_position,
    )


def _replied(state: RunState, event: ModelReplied) -> RunState:
    spec = state.frozen_spec
    after = _change(
        state,
        iterations=state.iterations + 1,
        model_calls=state.model_calls + 1,
        step_id=None,
        return_position=None,
        heartbeat=None,
        usage=state.usage + event.usage,
        overflows=0,
        failures=0,
        pause_ms=0,
        context_tokens=event.usage.total_tokens,
        compact="post_step_context_check"
        if should_compact(event.usage.total_tokens, spec.model.context_window)
        else None,
        calls=_open(event.calls),
        fatal=any(call.verdict == "fatal" for call in event.calls),
        cut_short=event.finish == "length" and any(_is_unreadable(call) for call in event.calls),
    )
    if any(call.status == "held" for call in after.calls):
        return _change(after, phase=Phase.PARKING)
    if after.calls:
        return _change(after, phase=Phase.ACTING)
    if event.finish == "length":
        return _finish(_change(after, error=_CUT_SHORT), "max_tokens_exceeded")
    if not tool_rules.uncalled_required(spec.rules, spec.tool_names, after.history):
        return _finish(after, "end_turn")
    return _next_iteration(after)


def _is_unreadable(judged: JudgedCall) -> bool:
    if judged.verdict != "refused":
        return False
    try:
        all_arguments_of(judged.call.arguments)
    except ToolFailed:
        return True
    return False


def _model_failed(state: RunState, event: ModelFailed) -> RunState:
    after = _change(state, usage=state.usage + event.usage, pause_ms=0)
    if event.overflow and state.overflows < MAX_COMPACTIONS:
        return _change(after, compact=OVERFLOW, overflows=state.overflows + 1)
    if event.retry_in_ms is None:
        return _done(after, event.stop_reason, event.error)
    if state.failures >= state.frozen_spec.retries:
        raise IllegalEvent(f"a model call may be tried again {state.frozen_spec.retries} times, not once more")
    return _change(after, failures=state.failures + 1, pause_ms=event.retry_in_ms)


def _compaction_failed(state: RunState, event: CompactionFailed) -> RunState:
    """Fatal only when the model cannot be called without it; otherwise the window is merely fuller than we like."""
    if state.compact == OVERFLOW:
        return _done(state, event.stop_reason, event.error)
    after = _change(state, compact=None)
    return _done(after, after.stop_after_compaction, after.error) if after.stop_after_compaction else after


def _tools_started(state: RunState, call_ids: Sequence[str]) -> RunState:
    for call_id in call_ids:
        call = state.calls.find_open(call_id)
        if call is None or state.ending or not _may_run(state, call):
            raise IllegalEvent(f"call {call_id} may not be started")
    return _change(state, calls=state.calls.start(call_ids))


def _parked(state: RunState, hold: Hold) -> RunState:
    # Which tools these are is read from the database; the state knows only what was asked of them.
    if tuple(msgspec.structs.replace(held, tool=None) for held in hold.calls) != held_calls(state):
        raise IllegalEvent("the hold is not about the calls of this run")
    return _change(state, phase=Phase.PARKED, hold=hold)


def _returned(state: RunState, event: ToolReturned) -> RunState:
    returned = state.calls.find_open(event.call_id)
    if returned is None:
        raise IllegalEvent(f"call {event.call_id} is not open, so it cannot return")
    ran = returned.status == "started"
    history = state.history
    if ran or returned.status == "answered":
        history += (Called(returned.call.name, event.returned),)
    after = _change(state, calls=state.calls.take_return(event.call_id, ran=ran), history=history)
    return _after_calls(after, failed=event.status == "error") if after.calls.all_returned else after


def _after_calls(state: RunState, *, failed: bool) -> RunState:
    if state.ending:
        return _done(state, state.ending, state.error)
    if state.fatal:
        return _finish(_change(state, error=_invalid_call_error(state)), "invalid_tool_call")
    if state.cut_short:  # asked again, the model would be cut short again
        return _finish(_change(state, error=_CUT_SHORT), "max_tokens_exceeded")
    spec = state.frozen_spec
    if spec.heartbeats is not None:
        return _after_heartbeat_call(state, failed=failed)
    ends = tool_rules.any_ends_turn(spec.rules, (call.call.name for call in state.calls if call.ran))
    if (
        ends
        and state.return_position is None
        and not tool_rules.uncalled_required(spec.rules, spec.tool_names, state.history)
    ):
        return _finish(state, "tool_rule")
    return _next_iteration(state)


def _after_heartbeat_call(state: RunState, *, failed: bool) -> RunState:
    """One call a step; of several, which an approval from before may bring, the last one decides."""
    if state.return_position is not None:
        return _next_iteration(state)  # the user has said more meanwhile
    spec, call = state.frozen_spec, state.calls.made[-1]
    outcome: heartbeat_loop.Outcome = call.status if call.status == "refused" or call.status == "denied" else "ran"
    following = heartbeat_loop.after_call(
        spec.rules,
        spec.tool_names,
        state.history,
        call.call.name,
        heartbeat=call.heartbeat,
        outcome=outcome,
        failed=failed,
    )
    if following.reason is None:
        return _finish(state, following.stop_reason)
    return _next_iteration(state, following.reason)


def _next_iteration(state: RunState, heartbeat: str | None = None) -> RunState:
    if state.iterations >= state.frozen_spec.max_steps:
        return _finish(state, "max_steps")
    return _change(state, phase=Phase.THINKING, return_position=None, heartbeat=heartbeat)


def _finish(state: RunState, stop_reason: StopReason) -> RunState:
    if state.compact:
        return _change(state, phase=Phase.THINKING, stop_after_compaction=stop_reason)
    return _done(state, stop_reason, state.error)


def _cancelled(state: RunState, event: CancelAsked) -> RunState:
    return _end(_change(state, usage=state.usage + event.usage), "cancelled", None)


def _end(state: RunState, stop_reason: StopReason, error: dict[str, Any] | None) -> RunState:
    if state.phase is Phase.THINKING:
        return _done(state, stop_reason, error)
    return _change(state, phase=Phase.ACTING, ending=stop_reason, error=error)


def _done(state: RunState, stop_reason: StopReason, error: dict[str, Any] | None = None) -> RunState:
    return _change(state, phase=Phase.DONE, stop_reason=stop_reason, error=error, compact=None)


def _call_model(state: RunState) -> CallModel:
    spec = state.frozen_spec
    choice = tool_rules.choose(spec.rules, spec.tool_names, state.history)
    parallel = spec.model.parallel_tool_calls and tool_rules.allows_parallel_calls(spec.rules)
    if spec.heartbeats is not None:
        choice = msgspec.structs.replace(choice, forced=bool(choice.allowed))
        parallel = False
    return CallModel(state.model_calls + 1, choice, parallel, state.failures + 1, state.pause_ms)


def _next_action(state: RunState) -> CallTools | Settle:
    """A started call that has no return was cut off by a crash: `plan` is not asked while tools are running."""
    if state.ending:
        return Settle(state.open_calls)
    settled = tuple(call for call in state.open_calls if not _may_run(state, call))
    return Settle(settled) if settled else CallTools(state.open_calls)


def _may_run(state: RunState, call: OpenCall) -> bool:
    tool = state.frozen_spec.tool(call.call.name)
    if tool is None or tool.effect == "client":
        return False
    return call.status == "allowed" or (call.status == "started" and tool.effect in ("inline", "retry_safe"))


def held_calls(state: RunState) -> tuple[HeldCall, ...]:
    """The calls of a reply that asks for decisions, as the hold remembers them."""
    spec = state.frozen_spec

    def held(call: OpenCall) -> HeldCall:
        tool = spec.tool(call.call.name)
        return HeldCall(
            call.call,
            asks=call.status == "held",
            client=tool is not None and tool.effect == "client",
            version=tool.version if tool else 0,
            note=call.note,
        )

    return tuple(held(call) for call in state.calls)


def _open(calls: Sequence[JudgedCall]) -> Calls:
    if len({call.call.id for call in calls}) != len(calls):
        raise IllegalEvent("two calls of one reply have the same id")

    def status(call: JudgedCall) -> CallStatus:
        return "refused" if call.verdict == "fatal" else call.verdict

    return Calls.of(
        OpenCall(call.call, status(call), call.note, approved=call.approved, heartbeat=call.heartbeat) for call in calls
    )


def _invalid_call_error(state: RunState) -> dict[str, Any]:
    note = next((call.note for call in state.calls if call.note), "A tool call was invalid.")
    message = "The model made a tool call that could not be carried out."
    return {"error_type": "invalid_tool_call", "message": message, "detail": f"INVALID_TOOL_CALL: {note}"}


def _change(state: RunState, **changes: Any) -> RunState:
    return msgspec.structs.replace(state, **changes)

"""Short ways to say what happened to a run, and runs in every phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

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
from holdfast.core.hold import Hold
from holdfast.core.messages import ToolCall
from holdfast.core.records import ModelChoice
from holdfast.core.run import NEW, Phase, RunState, apply, held_calls, replay
from holdfast.core.spec import Effect, RunSpec, ToolSpec
from holdfast.core.tool_rules import RequiresApproval, Rule
from holdfast.core.usage import Usage

WINDOW = 1_000
FAILURE = {"error_type": "internal_error", "message": "It broke.", "run_id": "run-1"}
EFFECTS: dict[str, Effect] = {
    "note": "once",
    "lookup": "retry_safe",
    "remember": "inline",
    "guarded": "once",
    "camera": "client",
    "finish": "once",
}


def spec(*rules: Rule, max_steps: int = 50, parallel: bool = True, **fields: Any) -> RunSpec:
    return RunSpec(
        agent_id="agent-1",
        thread_id="agent-1",
        model=ModelChoice(handle="holdfast/offline", context_window=WINDOW, parallel_tool_calls=parallel),
        tools=tuple(
            ToolSpec(name=name, description="", parameters={"type": "object", "properties": {}}, effect=effect)
            for name, effect in EFFECTS.items()
        ),
        rules=(RequiresApproval(tool_name="guarded"), *rules),
        max_steps=max_steps,
        **fields,
    )


def call(name: str, call_id: str | None = None) -> ToolCall:
    return ToolCall(call_id or f"c-{name}", name, "{}")


Verdict = Literal["allowed", "held", "refused", "fatal", "denied", "answered"]


def judged(name: str, verdict: Verdict = "allowed", call_id: str | None = None, note: str | None = None) -> JudgedCall:
    return JudgedCall(call(name, call_id), verdict, note)


def started(given: RunSpec | None = None, *resumes: JudgedCall, return_position: int | None = None) -> RunStarted:
    step = "step-paused" if resumes else None
    return RunStarted(given or spec(), ("message-in",), resumes, step, return_position)


def replied(
    *calls: JudgedCall, finish: Literal["stop", "tool_calls", "length"] | None = None, tokens: int = 10
) -> ModelReplied:
    usage = Usage(tokens - 1, 1) if tokens else Usage()
    return ModelReplied("message-out", calls, finish or ("tool_calls" if calls else "stop"), usage)


def returned(name: str, text: str = "fine", call_id: str | None = None) -> ToolReturned:
    return ToolReturned(call_id or f"c-{name}", "success", text)


def started_tools(*names: str) -> ToolsStarted:
    return ToolsStarted(tuple(f"c-{name}" for name in names))


def hold_of(state: RunState) -> Hold:
    return Hold("message-request", "step-1", held_calls(state))


def parked(*calls: JudgedCall, given: RunSpec | None = None) -> RunState:
    state = replay([started(given), replied(*(calls or (judged("guarded", "held"),)))])
    return apply(state, Parked(hold_of(state)))


def after(*events: AnyEvent, given: RunSpec | None = None) -> RunState:
    """A run that began with an ordinary message, and these things happened to it."""
    return replay([started(given), *events])


def resumed(*calls: JudgedCall, given: RunSpec | None = None, return_position: int | None = None) -> RunState:
    return replay([started(given, *calls, return_position=return_position)])


def fold(state: RunState, events: Sequence[AnyEvent]) -> RunState:
    for event in events:
        state = apply(state, event)
    return state


OVERFLOW = ModelFailed("error", FAILURE, overflow=True)
COMPACTED = Compacted("message-summary", 3, 100)
BROKEN = RunFailed("error", FAILURE)

PHASES: dict[Phase, RunState] = {
    Phase.NEW: NEW,
    Phase.THINKING: after(),
    Phase.ACTING: after(replied(judged("note"))),
    Phase.PARKING: after(replied(judged("guarded", "held"))),
    Phase.PARKED: parked(),
    Phase.DONE: after(replied()),
}
# One of each kind, so chosen that it is legal wherever its kind is.
EVENTS: tuple[AnyEvent, ...] = (
    started(),
    replied(),
    ModelFailed("llm_api_error", FAILURE),
    started_tools("note"),
    returned("note"),
    Parked(hold_of(PHASES[Phase.PARKING])),
    Resumed("run-2"),
    COMPACTED,
    CompactionFailed("llm_api_error", FAILURE),
    CancelAsked(),
    BROKEN,
)

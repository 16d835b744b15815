"""Where a run stands, in words: `plan` of its state, with what only its row knows (who drives it, how it ended)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from typing_extensions import TypedDict

from holdfast.core.events import (
    AnyEvent,
    CancelAsked,
    Compacted,
    CompactionFailed,
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
from holdfast.core.records import Run
from holdfast.core.run import CallModel, CallTools, Compact, OpenCall, RunState, Settle, Wait, plan
from holdfast.wire.times import timestamp

_SECOND: Final = 1_000_000
_ENDED: Final = {
    "end_turn": "the model answered and asked for nothing more",
    "tool_rule": "a tool that ends the turn was called",
    "max_steps": "it reached the step limit of the request",
    "cancelled": "it was cancelled",
    "requires_approval": "it stopped to ask for approval",
    "llm_api_error": "the model's provider failed",
    "invalid_llm_response": "the model's reply could not be used",
    "invalid_tool_call": "the model made a call that could not be carried out",
    "max_tokens_exceeded": "the model's reply was cut off by the output limit",
    "context_window_overflow_in_system_prompt": "the system prompt alone does not fit the context window",
    "error": "something in the server failed",
}


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run. `state` is None when its journal cannot be replayed."""

    run: Run
    state: RunState | None
    events: Sequence[tuple[int, AnyEvent]]  # with the time at which each was recorded
    now_us: int
    changed_secrets: Sequence[str] = ()  # since approval was asked for, of a run that waits for it
    journal_removed: bool = False  # after HOLDFAST_RUN_RETENTION_S
    rate_wait: tuple[str, int] | None = None  # the provider whose rate limit it waits or has waited for, and until when

    @property
    def last_us(self) -> int:
        return self.events[-1][0] if self.events else self.run.created_us


class CallStanding(TypedDict):
    tool_call_id: str
    name: str
    arguments: str
    status: str


class Why(TypedDict):
    run_id: str
    agent_id: str
    conversation_id: str | None
    status: str
    stop_reason: str | None
    phase: str
    doing: str
    since: str
    waiting_for: str | None
    unblock: list[str]
    calls: list[CallStanding]
    changed_secrets: list[str]
    driver: str | None
    summary: str
    history: list[str]


class _Activity(msgspec.Struct, frozen=True):
    doing: str
    since_us: int
    waiting_for: str | None = None
    unblock: tuple[str, ...] = ()


def why_view(details: RunDetails) -> Why:
    run, state = details.run, details.state
    activity = _activity(details)
    return {
        "run_id": run.id,
        "agent_id": run.agent_id,
        "conversation_id": run.conversation_id,
        "status": run.status,
        "stop_reason": run.stop_reason,
        "phase": state.phase.value if state else "unknown",
        "doing": activity.doing,
        "since": timestamp(activity.since_us),
        "waiting_for": activity.waiting_for,
        "unblock": list(activity.unblock),
        "calls": [_call(call) for call in state.calls] if state else [],
        "changed_secrets": list(details.changed_secrets),
        "driver": _driver(details) if run.is_active else None,
        "summary": _summary(details, activity),
        "history": [f"{timestamp(at_us)}  {_happened(event)}" for at_us, event in details.events],
    }


def _activity(details: RunDetails) -> _Activity:
    run, state = details.run, details.state
    if details.journal_removed and not run.is_active:
        return _Activity(
            f"{_end(run)} Its journal was removed after the retention time, or to make room.", run.completed_us or 0
        )
    if state is None:
        return _Activity(f"Its journal cannot be read. {_end(run)}", run.completed_us or run.created_us)
    intent = plan(state)
    if isinstance(intent, Wait):
        return _waiting(details, intent.hold)
    if not run.is_active:
        return _ended(details)
    # `plan` is for a driver that has just arrived: to it, a started call is one that was cut off.
    started = [call for call in state.open_calls if call.status == "started"]
    if started and not state.ending:
        names = ", ".join(call.call.name for call in started)
        return _active(details, f"Running {names}, started {_age(details)} ago.", f"{names} to return")
    if details.rate_wait is not None and details.rate_wait[1] > details.now_us:
        return _held_back(details, *details.rate_wait)
    match intent:
        case CallModel():
            return _thinking(details, state, intent)
        case Compact(trigger):
            doing = f"Summarising the oldest messages, to make room ({trigger.replace('_', ' ')})."
            return _active(details, doing, f"{state.frozen_spec.model.handle} to summarise")
        case CallTools(calls):
            return _active(details, f"About to run {', '.join(call.call.name for call in calls)}.", None)
        case Settle():
            return _active(details, "Writing down the end of calls that will not run.", None)
        case _:
            return _active(details, "Writing down what just happened.", None)


def _thinking(details: RunDetails, state: RunState, intent: CallModel) -> _Activity:
    handle, tries = state.frozen_spec.model.handle, state.frozen_spec.retries + 1
    left_us = details.last_us + intent.pause_ms * 1_000 - details.now_us
    if intent.pause_ms and left_us > 0:
        reason = next(
            (_detail(event.error) for _, event in reversed(details.events) if isinstance(event, ModelFailed)), ""
        )
        doing = f"Waiting {_seconds(left_us)} before try {intent.attempt} of {tries} of {handle}, because {reason}"
        return _active(details, doing, f"{_seconds(left_us)} to pass")
    again = f", try {intent.attempt} of {tries}," if intent.attempt > 1 else ""
    # The pause is no part of the try that follows it.
    running = _seconds(details.now_us - details.last_us - intent.pause_ms * 1_000)
    doing = f"Model call {intent.number} of {handle}{again} has been running for {running}."
    return _active(details, doing, f"{handle} to reply")


def _held_back(details: RunDetails, provider: str, until_us: int) -> _Activity:
    doing = f"Waits for the rate limit of provider {provider}, about {_seconds(until_us - details.now_us)}."
    return _active(details, doing, f"the rate limit of provider {provider}")


def _active(details: RunDetails, doing: str, waiting_for: str | None) -> _Activity:
    run = details.run
    if run.cancel_asked_us is not None:
        asked = _seconds(details.now_us - run.cancel_asked_us)
        doing = f"Stopping: a cancel was asked for {asked} ago. {doing}"
    cancel = f"To stop it: {_cancel(run)}."
    return _Activity(doing, details.last_us, waiting_for, (f"Nobody needs to do anything: {_driver(details)}.", cancel))


def _waiting(details: RunDetails, hold: Hold) -> _Activity:
    run = details.run
    asked = [held for held in hold.calls if held.asks]
    names = ", ".join(held.call.name for held in asked)
    answers = [
        {"type": "tool", "tool_call_id": held.call.id, "tool_return": "…", "status": "success"}
        if held.client
        else {"type": "approval", "tool_call_id": held.call.id, "approve": True}
        for held in asked
    ]
    body = json.dumps({"messages": [{"type": "approval", "approvals": answers}]}, ensure_ascii=False)
    shown = "; ".join(f"{held.call.name} {held.call.arguments}" for held in asked)
    someone = "the client to run" if all(held.client for held in asked) else "a person to approve or deny"
    changed = ", ".join(details.changed_secrets)
    warning = f" Secrets of the agent were changed since it was asked: {changed}." if changed else ""
    return _Activity(
        f"Waiting for {someone}: {shown}. Nothing runs meanwhile, and nothing times out.{warning}",
        details.last_us,
        f"{someone} {names}",
        (f"Answer with POST {_messages(run)} {body}.", f"Or withdraw the request: {_cancel(run)}."),
    )


def _ended(details: RunDetails) -> _Activity:
    successor = next((event.by_run for _, event in reversed(details.events) if isinstance(event, Resumed)), None)
    carried_on = f" The request was answered, and run {successor} carries on." if successor else ""
    return _Activity(_end(details.run) + carried_on, details.run.completed_us or details.last_us)


def _end(run: Run) -> str:
    if run.stop_reason is None:
        return f"It is {run.status}."
    reason = _ENDED.get(run.stop_reason, run.stop_reason.replace("_", " "))
    error: dict[str, Any] = run.metadata.get("error") or {}
    said = " ".join({str(error[key]): None for key in ("message", "detail") if error.get(key)})
    return f"It {run.status}: {reason}." + (f" {said}" if said else "")


def _driver(details: RunDetails) -> str:
    run = details.run
    if run.lease_owner is None:
        return "no worker drives it now, and the next free one will take it over"
    if run.lease_expires_us is not None and run.lease_expires_us < details.now_us:
        return f"its worker {run.lease_owner} is gone, and another will take it over"
    return f"{run.lease_owner} drives it (lease {run.lease})"


def _summary(details: RunDetails, activity: _Activity) -> str:
    run = details.run
    if run.is_active or activity.waiting_for:
        since = timestamp(activity.since_us)
        unblock = "".join(f"\n  {sentence}" for sentence in activity.unblock)
        return f"Run {run.id} is not over. {activity.doing} Since {since}.{unblock}"
    return f"Run {run.id} is over since {timestamp(activity.since_us)}. {activity.doing}"


def _detail(error: dict[str, Any]) -> str:
    return str(error.get("detail") or error.get("message"))


def _call(call: OpenCall) -> CallStanding:
    return {
        "tool_call_id": call.call.id,
        "name": call.call.name,
        "arguments": call.call.arguments,
        "status": call.status,
    }


def _messages(run: Run) -> str:
    conversation = run.conversation_id
    return f"/v1/conversations/{conversation}/messages" if conversation else f"/v1/agents/{run.agent_id}/messages"


def _cancel(run: Run) -> str:
    return f'POST /v1/agents/{run.agent_id}/messages/cancel {{"run_ids": ["{run.id}"]}}'


def _age(details: RunDetails) -> str:
    return _seconds(details.now_us - details.last_us)


def _seconds(duration_us: int) -> str:
    return f"{max(0, duration_us) / _SECOND:.1f} s"


def _happened(event: AnyEvent) -> str:
    match event:
        case RunStarted(spec, input_ids, resumes):
            begun = f"started with {len(input_ids)} message(s) for {spec.model.handle}"
            return begun + (f", to carry on {', '.join(call.call.name for call in resumes)}" if resumes else "")
        case ModelReplied(_, calls, finish, usage):
            calls_text = ", ".join(f"{call.call.name} ({call.verdict})" for call in calls) or "nothing more"
            return f"the model replied ({finish}, {usage.total_tokens} tokens) and asked for {calls_text}"
        case ModelFailed(_, error, retry_in_ms=int(pause_ms)):
            return f"a try failed, and another follows after {_seconds(pause_ms * 1_000)}: {_detail(error)}"
        case ModelFailed(_, error, overflow=True):
            return f"the request did not fit: {_detail(error)}"
        case CompactionFailed(_, error):
            return f"the oldest messages could not be summarised: {_detail(error)}"
        case ModelFailed(stop_reason, error) | RunFailed(stop_reason, error):
            return f"failed ({stop_reason}): {_detail(error)}"
        case ToolsStarted(call_ids):
            return f"started {len(call_ids)} tool call(s): {', '.join(call_ids)}"
        case ToolReturned(call_id, status):
            return f"call {call_id} returned ({status})"
        case Parked(hold):
            return f"asked for a decision on {len(hold.asked_ids)} call(s)"
        case Resumed(by_run):
            return f"the decision came, and run {by_run} carries on"
        case Compacted(_, evicted):
            return f"{evicted} message(s) were summarised"
        case CancelAsked(by):
            return f"a cancel was asked for by the {by}"

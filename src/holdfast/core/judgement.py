"""What the rules say of the calls a model made, before any of them runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import heartbeats, tool_rules
from holdfast.core.arguments import arguments_of, merge_prefilled
from holdfast.core.events import JudgedCall
from holdfast.core.hold import Hold
from holdfast.core.messages import Approve, Decision, Deny, ToolCall
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import Called, Choice
from holdfast.errors import ToolFailed


def judge(
    spec: RunSpec,
    choice: Choice,
    calls: Sequence[ToolCall],
    *,
    parallel: bool,
    history: Sequence[Called] = (),
    is_last_step: bool = False,
) -> tuple[JudgedCall, ...]:
    """Calls as they will be stored: arguments cleaned, prefilled ones merged in.

    Without parallel calls only the first is kept, and of calls with one id: their returns could not be told apart.
    `history`: the calls before these, which decide with them whether a run with heartbeats goes on. It does not after
    its last step.
    """
    distinct: dict[str, ToolCall] = {}
    for call in calls if parallel else calls[:1]:
        distinct.setdefault(call.id, call)
    allowed, approval = frozenset(choice.allowed), tool_rules.approval_names(spec.rules)
    judged = (_judge_one(spec, choice, call, allowed, approval) for call in distinct.values())
    if spec.heartbeats is None:
        return tuple(judged)
    return tuple(
        _with_heartbeat(spec, call, one, history, is_last_step)
        for call, one in zip(distinct.values(), judged, strict=True)
    )


def resume(hold: Hold, decisions: Sequence[Decision]) -> tuple[JudgedCall, ...]:
    """The calls of a hold, once it is decided, as the successor run begins with them."""
    by_id = {decision.call_id: decision for decision in decisions}

    def judged(held_index: int) -> JudgedCall:
        held = hold.calls[held_index]
        match by_id.get(held.call.id):
            case None:
                return JudgedCall(held.call, "refused" if held.note else "allowed", held.note)
            case Approve():
                loop_arguments = heartbeats.heartbeat_arguments(held.call.arguments)
                return JudgedCall(held.call, "allowed", approved=held.tool, heartbeat=loop_arguments.heartbeat)
            case Deny(_, reason):
                return JudgedCall(held.call, "denied", reason)
            case _:
                loop_arguments = heartbeats.heartbeat_arguments(held.call.arguments)
                return JudgedCall(held.call, "answered", heartbeat=loop_arguments.heartbeat)

    return tuple(judged(index) for index in range(len(hold.calls)))


def _judge_one(
    spec: RunSpec, choice: Choice, call: ToolCall, allowed: frozenset[str], approval: frozenset[str]
) -> JudgedCall:
    tool = spec.tool(call.name)
    if tool is None or call.name not in allowed:
        return JudgedCall(call, "refused", _violation(spec, choice, call.name))
    try:
        arguments = arguments_of(call.arguments)
    except ToolFailed as failed:
        return JudgedCall(call, "refused", failed.message)
    try:
        merged = merge_prefilled(tool.parameters, arguments, choice.prefilled.get(call.name, {}))
    except ToolFailed as failed:
        return JudgedCall(call, "fatal", failed.message)
    cleaned = msgspec.structs.replace(call, arguments=msgspec.json.encode(merged).decode())
    asks = tool.effect == "client" or call.name in approval
    return JudgedCall(cleaned, "held" if asks else "allowed")


def _with_heartbeat(
    spec: RunSpec, made: ToolCall, judged: JudgedCall, history: Sequence[Called], is_last_step: bool
) -> JudgedCall:
    """The call as a run with heartbeats keeps it. A call that waits for a decision keeps what the model asked for: what
    the loop makes of it is not known yet."""
    try:
        requested = heartbeats.heartbeat_arguments(made.arguments).heartbeat
        arguments = arguments_of(judged.call.arguments)
    except ToolFailed:  # it was refused for that
        return judged
    goes_on = requested
    if judged.verdict != "held":
        following = heartbeats.after_call(
            spec.rules,
            spec.tool_names,
            (*history, Called(made.name, "")),
            made.name,
            heartbeat=requested,
            outcome="ran" if judged.verdict == "allowed" else "refused",
        )
        goes_on = following.reason is not None and not is_last_step
    stored = msgspec.structs.replace(judged.call, arguments=heartbeats.stored_arguments(arguments, heartbeat=goes_on))
    return msgspec.structs.replace(judged, call=stored, heartbeat=requested)


def _violation(spec: RunSpec, choice: Choice, name: str) -> str:
    refusal = f"[ToolConstraintError] Cannot call {name}, valid tools include: {list(choice.allowed)}."
    hints = tool_rules.explain(spec.rules)
    return f"{refusal}\n** Hint: the rules for your tools are **\n{hints}" if hints else refusal

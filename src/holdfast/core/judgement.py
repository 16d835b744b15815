"""What the rules say of the calls a model made, before any of them runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core import tool_rules
from holdfast.core.arguments import arguments_of, merge_prefilled
from holdfast.core.events import JudgedCall
from holdfast.core.hold import Hold
from holdfast.core.messages import Approve, Decision, Deny, ToolCall
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import Choice
from holdfast.errors import ToolFailed


def judge(spec: RunSpec, choice: Choice, calls: Sequence[ToolCall], *, parallel: bool) -> tuple[JudgedCall, ...]:
    """Calls as they will be stored: arguments cleaned, prefilled ones merged in.

    Without parallel calls only the first is kept, and of calls with one id: their returns could not be told apart.
    """
    distinct: dict[str, ToolCall] = {}
    for call in calls if parallel else calls[:1]:
        distinct.setdefault(call.id, call)
    allowed, approval = frozenset(choice.allowed), tool_rules.approval_names(spec.rules)
    return tuple(_judge_one(spec, choice, call, allowed, approval) for call in distinct.values())


def resume(hold: Hold, decisions: Sequence[Decision]) -> tuple[JudgedCall, ...]:
    """The calls of a hold, once it is decided, as the successor run begins with them."""
    by_id = {decision.call_id: decision for decision in decisions}

    def judged(held_index: int) -> JudgedCall:
        held = hold.calls[held_index]
        match by_id.get(held.call.id):
            case None:
                return JudgedCall(held.call, "refused" if held.note else "allowed", held.note)
            case Approve():
                return JudgedCall(held.call, "allowed", approved=held.tool)
            case Deny(_, reason):
                return JudgedCall(held.call, "denied", reason)
            case _:
                return JudgedCall(held.call, "answered")

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


def _violation(spec: RunSpec, choice: Choice, name: str) -> str:
    refusal = f"[ToolConstraintError] Cannot call {name}, valid tools include: {list(choice.allowed)}."
    hints = tool_rules.explain(spec.rules)
    return f"{refusal}\n** Hint: the rules for your tools are **\n{hints}" if hints else refusal

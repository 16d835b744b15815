"""The rows that facts leave in a thread: replies, the returns of calls, heartbeats, the denials of a cancelled hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast import ids
from holdfast.core import envelopes, heartbeats
from holdfast.core.deltas import Reply
from holdfast.core.events import JudgedCall
from holdfast.core.hold import Hold
from holdfast.core.messages import ClientReturn, Deny, Message, Parts, Role, Text, ToolReturn
from holdfast.core.records import StopReason
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec

DENIED_BY_CANCEL: Final = "The user cancelled the request, so the tool call was denied."
NOT_RUN: Final = "Error: the tool was not executed because the user cancelled the request."
CUT_OFF: Final = "Error: the tool was stopped because the user cancelled the request. It may have taken effect in part."
NOT_RUN_AFTER_FAILURE: Final = "Error: the tool was not executed because the run failed."
OUTCOME_UNKNOWN: Final = (
    "Error: the server stopped while this tool was running, so its outcome is unknown. It was not run again. "
    "Check whether it took effect before you repeat it."
)


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
    spoken = reply.spoken if loop is None else heartbeats.partial_parts(spec, loop, reply)
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
    row = _row(origin, row_id, "user", (Text(envelopes.heartbeat(reason, origin.now_us, timezone)),))
    return msgspec.structs.replace(row, otid=ids.part_otid(row_id, 0), model=None)


def required_tools_reason(names: Sequence[str]) -> str:
    return f"ToolRuleViolated: You must call {', '.join(names)} at least once to exit the loop."


def settlement(call: OpenCall, ending: StopReason | None, answers: Mapping[str, ClientReturn]) -> ToolReturn:
    """The return of a call that is not run, or not run to its end."""
    answer = answers.get(call.call.id)
    if call.status == "answered" and answer is not None:
        return ToolReturn(call.call.id, call.call.name, answer.status, answer.content, answer.stdout, answer.stderr)
    return ToolReturn(call.call.id, call.call.name, "error", _why_not_run(call, ending))


def withdrawal(call: OpenCall) -> ToolReturn:
    """The return of any call of a hold that was cancelled, siblings included."""
    return ToolReturn(call.call.id, call.call.name, "error", denial_text(DENIED_BY_CANCEL))


def denial_text(reason: str | None) -> str:
    return "Error: request to call tool denied." + (f" User reason: {reason}" if reason else "")


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

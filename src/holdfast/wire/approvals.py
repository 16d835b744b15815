"""Calls that wait for a person, or for the client, as they are listed."""

from __future__ import annotations

from typing_extensions import TypedDict

from holdfast.core.hold import HeldCall, Hold
from holdfast.wire.times import timestamp


class WaitingCall(TypedDict):
    tool_call_id: str
    name: str
    arguments: str
    client: bool  # only the client can run it: it wants a tool return, not an approval


class WaitingApproval(TypedDict):
    id: str  # the run's, which is also the cursor of the list
    run_id: str
    agent_id: str
    conversation_id: str | None
    request_id: str
    asked_at: str
    tool_calls: list[WaitingCall]


def approval_view(run_id: str, agent_id: str, thread_id: str, hold: Hold, asked_us: int) -> WaitingApproval:
    return {
        "id": run_id,
        "run_id": run_id,
        "agent_id": agent_id,
        "conversation_id": None if thread_id == agent_id else thread_id,
        "request_id": hold.request_id,
        "asked_at": timestamp(asked_us),
        "tool_calls": [waiting_call(held) for held in hold.calls if held.asks],
    }


def waiting_call(held: HeldCall) -> WaitingCall:
    call = held.call
    return {"tool_call_id": call.id, "name": call.name, "arguments": call.arguments, "client": held.client}

"""Calls that wait for a person, or for the client, as they are listed."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import TypedDict

from holdfast.core.hold import HeldCall, Hold, changed_secrets
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
    changed_secrets: list[str]  # whose value, or presence, is another than when it was asked


def approval_view(
    run_id: str, agent_id: str, thread_id: str, hold: Hold, asked_us: int, secret_ids: Mapping[str, str]
) -> WaitingApproval:
    """`secret_ids`: of the agent's secrets as they are now, by name."""
    return {
        "id": run_id,
        "run_id": run_id,
        "agent_id": agent_id,
        "conversation_id": None if thread_id == agent_id else thread_id,
        "request_id": hold.request_id,
        "asked_at": timestamp(asked_us),
        "tool_calls": [waiting_call(held) for held in hold.calls if held.asks],
        "changed_secrets": changed_secrets(hold, secret_ids),
    }


def waiting_call(held: HeldCall) -> WaitingCall:
    call = held.call
    return {"tool_call_id": call.id, "name": call.name, "arguments": call.arguments, "client": held.client}

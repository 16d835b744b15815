"""What a client says to a call that waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.conformance.modes import Json


def approve(*call_ids: str) -> list[Json]:
    return answer(approval(call_id, True) for call_id in call_ids)


def deny(*call_ids: str, reason: str | None = None) -> list[Json]:
    return answer(approval(call_id, False, reason) for call_id in call_ids)


def answer(items: Iterable[Json], **fields: Any) -> list[Json]:
    """The list of messages that answers; more may be appended to it."""
    return [{"type": "approval", "approvals": list(items), **fields}]


def approval(call_id: str, approve: bool, reason: str | None = None) -> Json:
    return {"type": "approval", "tool_call_id": call_id, "approve": approve, "reason": reason}


def returned(call_id: str, text: Any, status: str = "success") -> Json:
    return {"type": "tool", "tool_call_id": call_id, "tool_return": text, "status": status}


def user(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def asked_ids(message: Json) -> list[str]:
    assert message["message_type"] == "approval_request_message", message
    return [call["tool_call_id"] for call in message["tool_calls"]]

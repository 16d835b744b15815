"""The tools by which agents talk to each other: their names, and what is said on either side."""

from __future__ import annotations

from typing import Any, Final

import msgspec

ASK: Final = "send_message_to_agent_and_wait_for_reply"
TELL: Final = "send_message_to_agent_async"
ASK_TAGGED: Final = "send_message_to_agents_matching_tags"
NAMES: Final = (ASK, TELL, ASK_TAGGED)
SENT: Final = "Successfully sent message"


class ToOne(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `ASK` and `TELL`."""

    message: str
    other_agent_id: str


class ToTagged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `ASK_TAGGED`."""

    message: str
    match_all: list[str] | None = None
    match_some: list[str] | None = None


def incoming(sender_id: str, message: str, *, waits: bool) -> str:
    """The message as the other agent gets it. The beginning is what programs look for."""
    note = "It waits for your answer" if waits else "It does not wait for an answer"
    return f"[Incoming message from agent with ID '{sender_id}'. {note}.] {message}"


def reply(agent_id: str, texts: list[str]) -> dict[str, Any]:
    return {"agent_id": agent_id, "response": texts}


def no_reply(agent_id: str, why: str) -> dict[str, Any]:
    return reply(agent_id, [f"<error: {why}>"])

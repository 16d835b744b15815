"""Searching messages, on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.messages import Message
from holdfast.core.spec import Speaking
from holdfast.wire.bounds import Id, Many, Name, SearchText
from holdfast.wire.messages import stored_view, to_wire

Role = Literal["assistant", "user", "tool", "function", "system", "approval", "summary"]
_SHOWN = frozenset({"system_message", "user_message", "assistant_message"})


class SearchAllMessages(BaseModel):
    """`search_mode` is accepted for clients that name one: messages have no vectors, and are found by their words."""

    query: SearchText
    search_mode: Literal["vector", "fts", "hybrid"] = "hybrid"
    agent_id: Id | None = None
    conversation_id: Id | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    start_date: Name | None = None
    end_date: Name | None = None


class MessageSearch(SearchAllMessages):
    query: SearchText | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    roles: Many[Role] | None = None
    project_id: Id | None = None
    template_id: Id | None = None


class FoundRow(msgspec.Struct, frozen=True):
    """A stored message with where it is, and what of it was searched."""

    message: Message
    agent_id: str | None
    conversation_id: str | None
    text: str


class MessageItem(TypedDict):
    message_type: str
    message_id: str
    agent_id: str | None
    conversation_id: str | None
    created_at: str
    content: NotRequired[Any]


class MessageHit(TypedDict):
    embedded_text: str
    message: dict[str, Any]
    fts_rank: int | None
    vector_rank: int | None
    rrf_score: float


def message_items(found: Sequence[FoundRow], limit: int) -> list[MessageItem]:
    """What was said, without calls and their returns: clients know no other kinds here."""
    items: list[MessageItem] = []
    for row in found:
        for shown in to_wire(row.message, speaking=Speaking()):
            if shown["message_type"] in _SHOWN:
                items.append(
                    {
                        "message_type": shown["message_type"],
                        "message_id": row.message.id,
                        "agent_id": row.agent_id,
                        "conversation_id": row.conversation_id,
                        "created_at": shown["date"],
                        "content": shown["content"],
                    }
                )
    return items[:limit]


def message_hits(found: Sequence[FoundRow], scores: Sequence[float]) -> list[MessageHit]:
    return [
        {
            "embedded_text": row.text,
            "message": stored_view(row.message, agent_id=row.agent_id, conversation_id=row.conversation_id),
            "fts_rank": rank,
            "vector_rank": None,
            "rrf_score": score,
        }
        for rank, (row, score) in enumerate(zip(found, scores, strict=True), start=1)
    ]

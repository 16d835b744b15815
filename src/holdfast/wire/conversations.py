"""Conversations, the threads of an agent that have a name, and what may be asked of a thread's context window."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core.records import Thread
from holdfast.errors import Invalid
from holdfast.wire.bounds import JsonObject
from holdfast.wire.model_settings import ModelSettings, sent_settings
from holdfast.wire.requests import ColumnText, Ids, Key, TokenCount
from holdfast.wire.times import optional_timestamp, timestamp


class ResetMessagesRequest(BaseModel):
    add_default_initial_messages: bool = False


class CompactionSettingsInput(BaseModel):
    """Given fields override the agent's; `overrides` holds exactly those."""

    mode: Literal["sliding_window", "all", "self_compact_all", "self_compact_sliding_window"] = "sliding_window"
    model: Key | None = None
    model_settings: JsonObject | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool = False
    clip_chars: TokenCount | None = 50_000
    sliding_window_percentage: float = Field(default=0.30, gt=0, le=1)

    def overrides(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class CompactionRequest(BaseModel):
    compaction_settings: CompactionSettingsInput | None = None


class ConversationCompactionRequest(CompactionRequest):
    agent_id: Key | None = None


class ConversationRecompileRequest(BaseModel):
    agent_id: Key | None = None


class CreateConversation(BaseModel):
    summary: ColumnText | None = None
    description: ColumnText | None = None
    isolated_block_labels: Ids | None = None
    model: Key | None = None
    model_settings: JsonObject | None = None
    context_window_limit: TokenCount | None = None
    hidden: bool | None = None


class UpdateConversation(BaseModel):
    """Only the fields that were sent are changed: `model_fields_set` tells null from absent."""

    summary: ColumnText | None = None
    description: ColumnText | None = None
    model: Key | None = None
    model_settings: JsonObject | None = None
    context_window_limit: TokenCount | None = None
    last_message_at: datetime | None = None
    archived: bool | None = None


class ForkConversation(BaseModel):
    """Query parameters. `message_id`: the last message the fork takes along."""

    agent_id: Key | None = None
    message_id: Key | None = None
    hidden: bool | None = None


class ConversationView(TypedDict):
    id: str
    agent_id: str
    summary: str | None
    description: str | None
    in_context_message_ids: list[str]
    isolated_block_ids: list[str]
    model: str | None
    model_settings: dict[str, Any] | None
    context_window_limit: int | None
    hidden: bool | None
    forked_from: str | None  # a conversation, or the agent for its default history
    archived: bool
    archived_at: str | None
    last_message_at: str | None
    created_at: str
    updated_at: str
    created_by_id: str
    last_updated_by_id: str


class CompactionView(TypedDict):
    summary: str | None
    num_messages_before: int
    num_messages_after: int


def conversation_view(thread: Thread, window_ids: Iterable[str]) -> ConversationView:
    """`window_ids`: the messages in the context window, in order."""
    return {
        "id": thread.id,
        "agent_id": thread.agent_id,
        "summary": thread.summary,
        "description": thread.description,
        "in_context_message_ids": list(window_ids),
        "isolated_block_ids": list(thread.isolated_block_ids),
        "model": thread.model,
        "model_settings": thread.model_settings,
        "context_window_limit": thread.context_window_limit,
        "hidden": thread.hidden,
        "forked_from": thread.forked_from,
        "archived": thread.archived_us is not None,
        "archived_at": optional_timestamp(thread.archived_us),
        "last_message_at": optional_timestamp(thread.last_message_us),
        "created_at": timestamp(thread.created_us),
        "updated_at": timestamp(thread.updated_us),
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
    }


def compaction_view(summary: str | None, before: int, after: int) -> CompactionView:
    return {"summary": summary, "num_messages_before": before, "num_messages_after": after}


def checked_settings(sent: dict[str, Any] | None) -> dict[str, Any] | None:
    """Model settings as they are kept. They come as a plain object, because a wrong one has always been a 400 here."""
    if sent is None:
        return None
    try:
        return sent_settings(ModelSettings.model_validate(sent))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise Invalid(f"model_settings.{where}: {first['msg']}") from error

from __future__ import annotations

from typing import Any

from letta_client.types.conversation import Conversation
from letta_client.types.conversations.compaction_response import CompactionResponse
from pydantic import TypeAdapter

from holdfast.core.records import Thread
from holdfast.wire.conversations import ConversationView, compaction_view, conversation_view

from .examples import AGENT, AT_US, CONVERSATION, MESSAGE, through_sdk


def a_thread(**fields: Any) -> Thread:
    return Thread(id=CONVERSATION, agent_id=AGENT, created_us=AT_US, updated_us=AT_US, **fields)


def test_the_client_reads_a_conversation() -> None:
    settings = {"provider_type": "openai", "temperature": 0.5}
    thread = a_thread(
        summary="keys",
        model="openai/gpt-x",
        model_settings=settings,
        isolated_block_ids=("block-1",),
        last_message_us=AT_US,
    )
    shown = conversation_view(thread, [MESSAGE])
    TypeAdapter(ConversationView).validate_python(shown, strict=True)
    assert shown["model_settings"] == settings
    read = through_sdk(Conversation, shown)
    assert (read.id, read.agent_id, read.summary, read.model) == (CONVERSATION, AGENT, "keys", "openai/gpt-x")
    assert read.in_context_message_ids == [MESSAGE]
    assert shown["isolated_block_ids"] == ["block-1"]
    assert read.last_message_at == read.created_at


def test_a_new_conversation_shows_nulls_and_is_not_archived() -> None:
    shown = conversation_view(a_thread(), ())
    assert shown["created_at"] == shown["updated_at"] == "2026-03-01T09:30:00.250000Z"
    assert (shown["summary"], shown["model"], shown["last_message_at"], shown["archived_at"]) == (None,) * 4
    assert (shown["archived"], shown["in_context_message_ids"]) == (False, [])


def test_an_archived_conversation_says_since_when() -> None:
    shown = conversation_view(a_thread(archived_us=AT_US), ())
    assert (shown["archived"], shown["archived_at"]) == (True, "2026-03-01T09:30:00.250000Z")


def test_the_client_reads_the_answer_to_a_compaction() -> None:
    read = through_sdk(CompactionResponse, compaction_view("keys", 80, 12))
    assert (read.summary, read.num_messages_before, read.num_messages_after) == ("keys", 80, 12)

"""The answer to a blocking request, and the small objects that end an answer or a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.core.messages import Message
from holdfast.core.records import StopReason
from holdfast.core.usage import Usage
from holdfast.wire.messages import WireMessage, to_live


def letta_response(
    messages: Iterable[Message],
    stop_reason: StopReason,
    usage: Usage,
    *,
    step_count: int,
    context_tokens: int | None = None,
    include_types: Collection[str] | None = None,
    include_compaction: bool = False,
) -> dict[str, Any]:
    """`messages` are those the run made, in order; its input among them does no harm."""
    return {
        "messages": live_messages(messages, include_types=include_types, include_compaction=include_compaction),
        "stop_reason": stop_reason_view(stop_reason),
        "usage": usage_statistics(usage, step_count=step_count, context_tokens=context_tokens),
        "logprobs": None,
        "turns": None,
    }


def live_messages(
    messages: Iterable[Message], *, include_types: Collection[str] | None = None, include_compaction: bool = False
) -> list[WireMessage]:
    return [
        shown
        for message in messages
        for shown in to_live(message, include=include_types, include_compaction=include_compaction)
    ]


def stop_reason_view(stop_reason: StopReason) -> dict[str, Any]:
    return {"message_type": "stop_reason", "stop_reason": stop_reason}


def usage_statistics(
    usage: Usage, *, step_count: int, context_tokens: int | None = None, run_ids: list[str] | None = None
) -> dict[str, Any]:
    """Null means that the vendor did not say."""
    return {
        "message_type": "usage_statistics",
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "step_count": step_count,
        "run_ids": run_ids,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "context_tokens": context_tokens,
    }


def error_message(error: Mapping[str, Any], run_id: str, seq_id: int | None = None) -> dict[str, Any]:
    """`error` is what the run keeps in `metadata.error`. Absent fields are left out: their schema has no null."""
    shown: dict[str, Any] = {
        "message_type": "error_message",
        "run_id": error.get("run_id") or run_id,
        "error_type": error.get("error_type") or "internal_error",
        "message": error.get("message") or "An error occurred during agent execution.",
    }
    if (detail := error.get("detail")) is not None:
        shown["detail"] = str(detail)
    if seq_id is not None:
        shown["seq_id"] = seq_id
    return shown

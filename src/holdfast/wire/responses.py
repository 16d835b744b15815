"""The answer to a blocking request, and the small objects that end an answer or a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holdfast.core.frames import CompactionFrame, RetryFrame
from holdfast.core.messages import Message
from holdfast.core.records import StopReason
from holdfast.core.spec import Speaking
from holdfast.core.usage import Usage
from holdfast.wire.messages import WireMessage, envelope, filter_types, to_live


def letta_response(
    messages: Iterable[Message | CompactionFrame],
    stop_reason: StopReason,
    usage: Usage,
    *,
    step_count: int,
    context_tokens: int | None = None,
    include_types: Collection[str] | None = None,
    include_compaction: bool = False,
    run_id: str | None = None,
    speaking: Speaking | None = None,
    due_run_ids: Collection[str] = (),
) -> dict[str, Any]:
    """`messages` are those the run made, in order; its input among them does no harm."""
    return {
        "messages": live_messages(
            messages,
            include_types=include_types,
            include_compaction=include_compaction,
            run_id=run_id,
            speaking=speaking,
        ),
        "stop_reason": stop_reason_view(stop_reason),
        "usage": usage_statistics(
            usage, step_count=step_count, context_tokens=context_tokens, run_ids=list(due_run_ids) or None
        ),
        "logprobs": None,
        "turns": None,
    }


def live_messages(
    messages: Iterable[Message | CompactionFrame],
    *,
    include_types: Collection[str] | None = None,
    include_compaction: bool = False,
    run_id: str | None = None,
    speaking: Speaking | None = None,
) -> list[WireMessage]:
    shown: list[WireMessage] = []
    for message in messages:
        if isinstance(message, Message):
            shown += to_live(message, include=include_types, include_compaction=include_compaction, speaking=speaking)
        elif include_compaction:
            shown += filter_types([compaction_event(message, run_id)], include_types)
    return shown


def compaction_event(frame: CompactionFrame, run_id: str | None, seq_id: int | None = None) -> WireMessage:
    shown = envelope(
        "event_message", frame.message_id, frame.at_us, step_id=frame.step_id, run_id=run_id, seq_id=seq_id
    )
    data = {
        "trigger": frame.trigger,
        "context_token_estimate": frame.context_token_estimate,
        "context_window": frame.context_window,
    }
    return shown | {"event_type": "compaction", "event_data": data}


def retry_event(frame: RetryFrame, run_id: str, seq_id: int | None = None) -> WireMessage:
    shown = envelope(
        "event_message", frame.message_id, frame.at_us, step_id=frame.step_id, run_id=run_id, seq_id=seq_id
    )
    data = {
        "attempt": frame.attempt,
        "max_attempts": frame.max_attempts,
        "error_type": frame.error_type,
        "message": frame.message,
        "retry_in_ms": frame.retry_in_ms,
        "abandoned_message_ids": list(frame.abandoned_ids),
    }
    # Clients do not know this event, take it for some message, and append the contents of neighbours.
    return shown | {"event_type": "retry", "event_data": data, "content": ""}


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

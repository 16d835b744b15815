"""Where a history is cut when it is compacted, and what the summariser is asked.

Rows are never split from what belongs to them: a call leaves together with its return, and an approval request that
waits for its answer does not leave at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from holdfast.core import default_texts
from holdfast.core.messages import (
    CompactionStats,
    Message,
    Text,
    ToolCall,
    Turn,
    content_text,
    text_of,
)
from holdfast.core.model_history import BYTES_PER_TOKEN, estimate_message, history, pending_start
from holdfast.core.records import CompactionSettings
from holdfast.core.usage import calibrated

Mode = Literal["sliding_window", "all", "self_compact_all", "self_compact_sliding_window"]
Estimate = Callable[[Message], int]

_FALLBACKS: Final[dict[Mode, tuple[Mode, ...]]] = {
    "self_compact_all": ("self_compact_sliding_window", "all"),
    "self_compact_sliding_window": ("all",),
    "sliding_window": ("all",),
    "all": (),
}
CLIPPED: Final = "... [summary truncated to fit]"
# Every request for a summary ends in a user turn that opens with this tag, whatever prompt an agent brings.
REQUEST_TAG: Final = "<summary_request>"
_KEEP_PERCENT: Final = 70
_GROWTH_PERCENT: Final = 10
# Estimates count bytes; vendors count tokens, and often more of them. Where nothing is learnt yet, this is feared.
_FEARED_RATIO: Final = 1.3
_TRANSCRIPT_SHARE_PERCENT: Final = 50
_SUMMARY_SHARE_PERCENT: Final = 50
_ROW_CHARS: Final = 8_000


def modes_to_try(mode: Mode) -> tuple[Mode, ...]:
    """The wanted mode, then what is tried when it fails or frees too little."""
    return (mode, *_FALLBACKS[mode])


def is_own_summary(mode: Mode) -> bool:
    """Whether the agent's own model summarises, in its own words and with its own prompt before it."""
    return mode in ("self_compact_all", "self_compact_sliding_window")


def first_evictable(messages: Sequence[Message]) -> int:
    return 1 if messages and messages[0].role == "system" else 0


def evictable(messages: Sequence[Message]) -> Sequence[Message]:
    """What a summary may take the place of: a pending approval stays where it is."""
    return messages[first_evictable(messages) : pending_start(messages)]


def summarisable(messages: Sequence[Message]) -> bool:
    """A summary of nothing but a summary would be no shorter."""
    return any(row.role != "summary" for row in evictable(messages))


def cut(
    messages: Sequence[Message],
    settings: CompactionSettings,
    *,
    context_window: int,
    overhead_tokens: int = 0,
    ratio: float | None = None,
    estimate: Estimate = estimate_message,
) -> int:
    """The index of the first row to keep after the system row; `first_evictable(messages)` when nothing can go.

    `overhead_tokens` is what every request costs besides its rows, such as its tools. `ratio` is what
    the vendor has been found to count for each token that we guess.
    """
    start, end = first_evictable(messages), pending_start(messages)
    if settings.mode in ("all", "self_compact_all"):
        return max(start, end)
    places = _cut_places(messages, start, end)
    if not places:
        return start
    costs = [estimate(message) for message in messages]
    besides = sum(costs[:start]) + overhead_tokens
    most = context_window * _KEEP_PERCENT // 100
    feared = _FEARED_RATIO if ratio is None else ratio
    percent = round(settings.sliding_window_percentage * 100)
    while percent < 100:
        first_kept = start + -(-(len(messages) - start) * percent // 100)
        place = next((index for index in places if index >= first_kept), places[-1])
        if calibrated(besides + sum(costs[place:]), feared) <= most:
            return place
        percent += _GROWTH_PERCENT
    return places[-1]


def summary_request(
    evicted: Sequence[Message],
    settings: CompactionSettings,
    *,
    system: str,
    model_handle: str,
    context_window: int,
    timezone: str = "UTC",
) -> tuple[str, tuple[Turn, ...]]:
    """The system prompt and turns that ask for a summary of `evicted`.

    The `self_` modes keep the agent's own prompt and turns as the prefix, so that a vendor's cache serves them again.
    """
    prompt = settings.prompt or default_texts.SUMMARY[settings.mode]
    if is_own_summary(settings.mode):
        turns = history(evicted, model_handle=model_handle, context_window=context_window, timezone=timezone)
        return system, _asked_last(turns, Text(f"{REQUEST_TAG}\n{prompt}\n</summary_request>"))
    limit = context_window * _TRANSCRIPT_SHARE_PERCENT // 100 * BYTES_PER_TOKEN
    asked = Turn("user", (Text(f"{REQUEST_TAG}\n{transcript(evicted, limit)}\n</summary_request>"),))
    if not settings.prompt_acknowledgement:
        return prompt, (asked,)
    agreed = (
        Turn("user", (Text(default_texts.SUMMARY_ANNOUNCED),)),
        Turn("assistant", (Text(default_texts.SUMMARY_AGREED),)),
    )
    return prompt, (*agreed, asked)


def transcript(messages: Sequence[Message], limit: int) -> str:
    """The rows as plain text; when it is longer than `limit` bytes the middle is left out."""
    return without_middle("\n".join(line for message in messages for line in _lines(message)), limit)


def without_middle(text: str, limit: int) -> str:
    """The text itself, unless it is longer than `limit` bytes."""
    if len(text.encode()) <= limit:
        return text
    # Characters may take four bytes each: a quarter of the limit per half is always enough of a cut.
    half = limit // (2 if text.isascii() else 8)
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[len(text) - half :]}"


def clip(summary: str, limit: int | None, *, context_window: int, ratio: float | None = None) -> str:
    """`limit` is the agent's, in characters. Half of the window is all that a summary gets: it is there to make room,
    and one that fills a small window would leave none for whatever comes next."""
    tokens = context_window * _SUMMARY_SHARE_PERCENT / 100 / (_FEARED_RATIO if ratio is None else ratio)
    most_bytes = int(tokens) * BYTES_PER_TOKEN
    kept = summary[:limit].encode()[:most_bytes].decode(errors="ignore")
    return summary if kept == summary else kept + CLIPPED


def stats(
    trigger: str,
    *,
    context_window: int,
    before: Sequence[Message],
    cut_at: int,
    tokens_before: int | None = None,
    tokens_after: int | None = None,
) -> CompactionStats:
    """`cut_at` as `cut` gave it; the summary row counts among the messages after."""
    after = first_evictable(before) + 1 + len(before) - cut_at
    return CompactionStats(trigger, context_window, len(before), after, tokens_before, tokens_after)


def _cut_places(messages: Sequence[Message], start: int, end: int) -> list[int]:
    """Indexes a history may begin at: a reply of the model, and no call before it that returns after it."""
    called_at = {call.id: index for index, message in enumerate(messages) for call in message.calls}
    returned_at: dict[int, int] = {}
    for index, message in enumerate(messages):
        for part in message.returns:
            if part.call_id in called_at:
                returned_at[called_at[part.call_id]] = index
    places: list[int] = []
    open_until = 0
    for index in range(start, min(end + 1, len(messages))):
        message = messages[index]
        begins_reply = message.role == "assistant" or message.is_approval_request
        if index > start and begins_reply and index > open_until and not _continues_reply(messages, index):
            places.append(index)
        open_until = max(open_until, returned_at.get(index, 0))
    return places


def _continues_reply(messages: Sequence[Message], index: int) -> bool:
    before, message = messages[index - 1], messages[index]
    return message.role == "approval" and before.role == "assistant" and before.step_id == message.step_id


def _asked_last(turns: tuple[Turn, ...], question: Text) -> tuple[Turn, ...]:
    if turns and turns[-1].role == "user":
        return (*turns[:-1], Turn("user", (*turns[-1].parts, question)))
    return (*turns, Turn("user", (question,)))


def _lines(message: Message) -> list[str]:
    match message.role:
        case "user" | "system":
            return [f"{message.role.title()}: {shortened(text_of(message.parts))}"]
        case "summary":
            return [f"Earlier summary: {text_of(message.parts)}"]
        case "assistant" | "approval":
            return [line for part in message.parts if (line := _spoken_line(part))]
        case _:
            return [f"Result of {part.name}: {shortened(content_text(part.content))}" for part in message.returns]


def _spoken_line(part: object) -> str | None:
    match part:
        case Text():
            return f"Assistant: {shortened(part.text)}"
        case ToolCall():
            return f"Assistant called {part.name} with {shortened(part.arguments)}"
        case _:
            return None


def shortened(text: str) -> str:
    return text if len(text) <= _ROW_CHARS else f"{text[:_ROW_CHARS]}... [{len(text) - _ROW_CHARS} more characters]"

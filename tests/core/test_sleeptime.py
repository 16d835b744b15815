"""What a sleeptime agent is shown."""

from __future__ import annotations

from typing import Any

from holdfast.core.messages import Message, Reasoning, Text, ToolCall, ToolReturn
from holdfast.core.sleeptime import assignment


def row(role: Any, *parts: Any) -> Message:
    return Message(id="message-1", role=role, parts=parts, created_us=0)


def lines(*rows: Message, limit: int = 10_000) -> list[str]:
    text = assignment(rows, limit)
    assert text is not None
    return text.split("Messages:\n")[1].splitlines()


def test_words_calls_and_returns_are_shown_and_thoughts_and_instructions_are_not() -> None:
    assert lines(
        row("system", Text("Be good.")),
        row("user", Text("Hello")),
        row("assistant", Reasoning("hm"), Text("Hi."), ToolCall("c1", "roll", '{"sides": 6}')),
        row("tool", ToolReturn("c1", "roll", "success", "4")),
    ) == [
        "user: Hello",
        "assistant: Hi.",
        'assistant: Tool call roll with {"sides": 6}',
        "assistant: Tool call returned 4",
    ]


def test_what_is_said_through_send_message_is_shown_as_words() -> None:
    said = row("assistant", ToolCall("c1", "send_message", '{"message": "Good day."}'))
    confirmed = row("tool", ToolReturn("c1", "send_message", "success", "Sent message successfully."))
    assert lines(said, confirmed) == ["assistant: Good day."]


def test_of_a_long_transcript_the_middle_is_left_out() -> None:
    shown = lines(*(row("user", Text(f"message {number}")) for number in range(1_000)), limit=1_000)
    assert shown[0] == "user: message 0" and shown[-1] == "user: message 999"
    assert sum(len(line) for line in shown) < 1_100


def test_without_anything_to_show_there_is_no_assignment() -> None:
    assert assignment([row("system", Text("Be good."))], 1_000) is None

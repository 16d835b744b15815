"""Frames are stored as bytes: they must come back as they went, also with a later release."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from holdfast.core.frames import (
    TERMINAL,
    AbandonedFrame,
    CallFrame,
    CompactionFrame,
    ErrorFrame,
    Frame,
    HiddenReasoningFrame,
    MessageFrame,
    ReasoningFrame,
    RetryFrame,
    StopFrame,
    TextFrame,
    UsageFrame,
    closing_frames,
    message_frames,
    with_due_runs,
)
from holdfast.core.messages import Image, Message, Reasoning, Text, Thoughts, ToolCall, ToolReturn
from holdfast.core.spec import Speaking
from holdfast.core.usage import Usage

_decoder = msgspec.msgpack.Decoder(list[Frame])
FRAMES: list[Frame] = [
    TextFrame("message-1", 0, "step-1", 5, "ü"),
    ReasoningFrame("message-1", 0, "step-1", 5, "hm", "signed"),
    HiddenReasoningFrame("message-1", 0, "step-1", 5, "redacted", "xx"),
    CallFrame("message-1", 1, "step-1", 5, "c1", None, '{"a', True),
    MessageFrame(
        Message(
            id="message-2",
            role="tool",
            parts=(ToolReturn("c1", "note", "success", (Text("a"), Image("image/png", "AA=="))),),
            created_us=6,
        )
    ),
    CompactionFrame("message-3", None, 7, "post_step_context_check", None, 1_000),
    RetryFrame("message-4", "step-1", 8, 2, 4, "llm_rate_limit", "Slow down.", 500, ("message-1",)),
    AbandonedFrame("message-1"),
    StopFrame("end_turn"),
    UsageFrame(Usage(1, 2, 0, None, 3), 2, 40),
    ErrorFrame({"error_type": "internal_error", "message": "It broke."}),
]


def test_there_is_a_frame_of_every_kind_to_try() -> None:
    assert {type(frame) for frame in FRAMES} == set(get_args(Frame))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_survives_a_round_trip(frame: Frame) -> None:
    assert _decoder.decode(msgspec.msgpack.encode([frame])) == [frame]


def test_the_tags_of_stored_frames_do_not_change() -> None:
    tags = [msgspec.msgpack.decode(msgspec.msgpack.encode(frame))[0] for frame in FRAMES]
    assert tags == ["t", "r", "h", "c", "m", "x", "y", "a", "s", "u", "e"]


def test_a_stream_ends_with_usage_or_with_an_error() -> None:
    assert (UsageFrame, ErrorFrame) == TERMINAL


def test_a_whole_message_has_a_frame_for_each_message_a_client_is_shown() -> None:
    row = Message(id="message-1", role="assistant", parts=(Reasoning("hm"), Text("words")), created_us=0)
    assert message_frames(row) == [MessageFrame(row, 0), MessageFrame(row, 1)]


def test_a_return_that_only_confirms_words_has_no_frame() -> None:
    said = ToolReturn("c1", "send_message", "success", "Sent message successfully.")
    row = Message(id="message-1", role="tool", parts=(said,), created_us=1)
    assert message_frames(row, Speaking()) == []
    assert len(message_frames(row)) == 1


def test_each_call_that_is_shown_as_words_has_a_frame_of_its_own() -> None:
    words = [ToolCall(f"c{number}", "send_message", '{"message": "hi"}') for number in range(2)]
    other = ToolCall("c9", "note", "{}")
    row = Message(id="message-1", role="assistant", parts=(Thoughts("hm"), *words, other), created_us=1)
    assert [frame.index for frame in message_frames(row, Speaking())] == [0, 1, 2, 3]
    assert [frame.index for frame in message_frames(row)] == [0, 1]


def test_the_end_of_a_run_tells_of_the_runs_that_it_has_made_due() -> None:
    frames = closing_frames("end_turn", None, Usage(), 1)
    assert with_due_runs(frames, ()) is frames
    stop, usage = with_due_runs(frames, ("run-1",))
    assert stop == frames[0]
    assert isinstance(usage, UsageFrame)
    assert usage.run_ids == ("run-1",)

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from letta_client import APIStatusError, Letta

from holdfast.core.frames import (
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
)
from holdfast.core.messages import Reasoning, Summary, Text, ToolCall, ToolReturn
from holdfast.core.usage import Usage
from holdfast.wire.messages import to_wire
from holdfast.wire.responses import DONE, FrameEncoder

from .examples import AGENT, AT_US, MESSAGE, RUN, STEP, as_event, check_shape, envelope, otid, row

SECOND_US = 1_000_000
ERROR = {"error_type": "llm_timeout", "message": "model did not answer", "detail": "TEST: Mocked error", "run_id": RUN}
SUMMARY = MessageFrame(row("summary", Summary("Keys.", shown=True)))
COMPACTION = CompactionFrame(MESSAGE, STEP, AT_US, "post_step_context_check", 31_000, 32_000)

RETRY = RetryFrame(MESSAGE, STEP, AT_US, 2, 4, "llm_rate_limit", "RATE_LIMIT_EXCEEDED: slow down", 500, (MESSAGE,))


def text(fragment: str, index: int = 0, at_us: int = AT_US) -> TextFrame:
    return TextFrame(MESSAGE, index, STEP, at_us, fragment)


def call(name: str | None, arguments: str, held: bool) -> CallFrame:
    return CallFrame(MESSAGE, 1, STEP, AT_US, "call_7", name, arguments, held)


def decoded(encoded: bytes | None) -> list[dict[str, Any]]:
    """Read the way a browser would: blank lines end events, and nothing else may be in them."""
    assert encoded is not None and encoded.endswith(b"\n\n")
    events = encoded.decode().removesuffix("\n\n").split("\n\n")
    bodies = [event.removeprefix("event: error\n") for event in events]
    assert all(body.startswith("data: ") and "\n" not in body for body in bodies)
    return [json.loads(body.removeprefix("data: ")) for body in bodies]


def one(encoded: bytes | None) -> dict[str, Any]:
    (event,) = decoded(encoded)
    check_shape(event)
    return event


USAGE_VIEW = {
    "message_type": "usage_statistics",
    "completion_tokens": 41,
    "prompt_tokens": 900,
    "total_tokens": 941,
    "step_count": 2,
    "run_ids": None,
    "cached_input_tokens": 0,
    "cache_write_tokens": None,
    "reasoning_tokens": None,
    "context_tokens": 905,
    "run_id": RUN,
}
DELTA = {"arguments": '{"q', "tool_call_id": "call_7"}
EXAMPLES: dict[str, tuple[Frame, dict[str, Any]]] = {
    "text": (text('Under "the" mat.\n'), envelope("assistant_message", content='Under "the" mat.\n')),
    "reasoning": (
        ReasoningFrame(MESSAGE, 1, STEP, AT_US, "hm"),
        envelope("reasoning_message", source="reasoner_model", reasoning="hm", signature=None, otid=otid(1)),
    ),
    "signed reasoning": (
        ReasoningFrame(MESSAGE, 0, STEP, AT_US, "hm", 'sig"'),
        envelope("reasoning_message", source="reasoner_model", reasoning="hm", signature='sig"'),
    ),
    "redacted reasoning": (
        HiddenReasoningFrame(MESSAGE, 0, STEP, AT_US, "redacted", "blob"),
        envelope("hidden_reasoning_message", state="redacted", hidden_reasoning="blob"),
    ),
    "omitted reasoning": (
        HiddenReasoningFrame(MESSAGE, 2, STEP, AT_US, "omitted"),
        envelope("hidden_reasoning_message", state="omitted", hidden_reasoning=None, otid=otid(2)),
    ),
    "the start of a call": (
        call("find_item", "", held=False),
        envelope(
            "tool_call_message",
            otid=otid(1),
            tool_call={"name": "find_item", "arguments": "", "tool_call_id": "call_7"},
            tool_calls={"name": "find_item", "arguments": "", "tool_call_id": "call_7"},
        ),
    ),
    "more of a call leaves the name out": (
        call(None, '{"q', held=False),
        envelope("tool_call_message", otid=otid(1), tool_call=DELTA, tool_calls=DELTA),
    ),
    "more of a held call says that the name is null": (
        call(None, '{"q', held=True),
        envelope(
            "approval_request_message",
            otid=MESSAGE,
            tool_call={"name": None} | DELTA,
            tool_calls={"name": None} | DELTA,
        ),
    ),
    "retry": (
        RETRY,
        envelope(
            "event_message",
            otid=None,
            event_type="retry",
            content="",
            event_data={
                "attempt": 2,
                "max_attempts": 4,
                "error_type": "llm_rate_limit",
                "message": "RATE_LIMIT_EXCEEDED: slow down",
                "retry_in_ms": 500,
                "abandoned_message_ids": [MESSAGE],
            },
        ),
    ),
    "stop": (StopFrame("end_turn"), {"message_type": "stop_reason", "stop_reason": "end_turn", "run_id": RUN}),
    "usage": (UsageFrame(Usage(900, 41, 0), 2, 905), USAGE_VIEW),
    "error": (ErrorFrame(ERROR), {"message_type": "error_message"} | ERROR),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_frame_of_a_foreground_run_is_sent_without_a_number(name: str) -> None:
    frame, expected = EXAMPLES[name]
    event = one(FrameEncoder(RUN).encode(7, frame))
    assert event.pop("seq_id", None) is None
    expected = {key: value for key, value in expected.items() if key != "seq_id"}
    assert event == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_frame_of_a_background_run_carries_its_number(name: str) -> None:
    frame, expected = EXAMPLES[name]
    assert one(FrameEncoder(RUN, background=True).encode(7, frame)) == expected | {"seq_id": 7}


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {"retry"}))  # which only we send
def test_the_clients_stream_models_accept_the_event(name: str) -> None:
    event = one(FrameEncoder(RUN, background=True).encode(7, EXAMPLES[name][0]))
    assert as_event(event).message_type == event["message_type"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_errors_are_named_events(name: str) -> None:
    frame = EXAMPLES[name][0]
    encoded = FrameEncoder(RUN).encode(1, frame) or b""
    assert encoded.startswith(b"event: error\ndata: {" if isinstance(frame, ErrorFrame) else b"data: {")


# --- whole messages ---


def test_a_row_is_sent_as_all_its_messages_under_one_number() -> None:
    stored = row("assistant", Reasoning("hm"), Text("hi"), ToolCall("call_7", "find_item", "{}"))
    events = decoded(FrameEncoder(RUN, background=True).encode(5, MessageFrame(stored)))
    assert events == to_wire(stored, seq_id=5)
    assert len(events) == 3


def test_the_callers_own_messages_are_not_sent_back() -> None:
    assert FrameEncoder(RUN).encode(1, MessageFrame(row("user", Text("hi")))) is None


def test_compaction_is_sent_only_to_those_who_asked() -> None:
    asked = FrameEncoder(RUN, include_compaction=True)
    assert one(asked.encode(1, COMPACTION)) == envelope(
        "event_message",
        otid=None,
        event_type="compaction",
        event_data={
            "trigger": "post_step_context_check",
            "context_token_estimate": 31_000,
            "context_window": 32_000,
        },
    )
    assert one(asked.encode(2, SUMMARY))["message_type"] == "summary_message"
    unasked = FrameEncoder(RUN)
    assert (unasked.encode(1, COMPACTION), unasked.encode(2, SUMMARY)) == (None, None)


def test_compaction_obeys_the_types_asked_for() -> None:
    encoder = FrameEncoder(RUN, include_compaction=True, include_types={"summary_message"})
    assert encoder.encode(1, COMPACTION) is None
    assert one(encoder.encode(2, SUMMARY))["summary"] == "Keys."


# --- filters ---

CONTENT: list[tuple[str, Frame]] = [
    ("assistant_message", text("a")),
    ("reasoning_message", ReasoningFrame(MESSAGE, 0, STEP, AT_US, "b")),
    ("hidden_reasoning_message", HiddenReasoningFrame(MESSAGE, 0, STEP, AT_US, "omitted")),
    ("tool_call_message", call("f", "", held=False)),
    ("approval_request_message", call("f", "", held=True)),
    ("tool_return_message", MessageFrame(row("tool", ToolReturn("call_7", "f", "success", "x")))),
]


@pytest.mark.parametrize("wanted", [message_type for message_type, _ in CONTENT])
def test_a_reader_gets_only_the_content_types_it_asked_for(wanted: str) -> None:
    encoder = FrameEncoder(RUN, include_types={wanted})
    shown = decoded(encoder.encode_all((seq, frame) for seq, (_, frame) in enumerate(CONTENT, 1)))
    assert [event["message_type"] for event in shown] == [wanted]


@pytest.mark.parametrize("include", [set[str](), {"user_message"}])
def test_retries_stop_usage_errors_and_pings_always_pass(include: Collection[str]) -> None:
    encoder = FrameEncoder(RUN, include_types=include)
    assert encoder.encode_all(enumerate((frame for _, frame in CONTENT), 1)) == b""
    for name in ("stop", "usage", "error", "retry"):
        assert encoder.encode(1, EXAMPLES[name][0]) is not None
    assert encoder.ping()


def test_an_abandoned_attempt_is_not_on_the_wire() -> None:
    assert FrameEncoder(RUN).encode(1, AbandonedFrame(MESSAGE)) is None


def test_many_frames_are_one_piece_of_bytes_without_the_hidden_ones() -> None:
    frames: list[Frame] = [text("a"), AbandonedFrame(MESSAGE), text("b"), StopFrame("end_turn")]
    encoder = FrameEncoder(RUN, background=True)
    single = [FrameEncoder(RUN, background=True).encode(seq, frame) or b"" for seq, frame in enumerate(frames, 4)]
    assert encoder.encode_all(enumerate(frames, 4)) == b"".join(single)
    assert [event["seq_id"] for event in decoded(b"".join(single))] == [4, 6, 7]


# --- what is remembered from one fragment to the next ---


def test_a_fragment_is_dated_by_its_own_second() -> None:
    encoder = FrameEncoder(RUN)
    early, late, early_again = (one(encoder.encode(1, text("a", at_us=AT_US + d))) for d in (0, SECOND_US, 1))
    assert late["date"] == "2026-03-01T09:30:01+00:00"
    assert early["date"] == early_again["date"] == "2026-03-01T09:30:00+00:00"


_other_message = "message-7c217c21-5d0c-4f40-8a3b-6c1d2e3f4a00"
_fragments = st.tuples(
    st.sampled_from([MESSAGE, _other_message]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.text(),
    st.sampled_from(["text", "reasoning", "call", "held"]),
)


def fragment(message_id: str, index: int, second: int, words: str, kind: str) -> Frame:
    at_us = AT_US + second * SECOND_US
    if kind == "text":
        return TextFrame(message_id, index, STEP, at_us, words)
    if kind == "reasoning":
        return ReasoningFrame(message_id, index, STEP, at_us, words)
    return CallFrame(message_id, index, STEP, at_us, "call_7", None, words, kind == "held")


@given(st.lists(_fragments, max_size=12))
def test_an_encoder_with_a_past_sends_the_same_as_a_new_one(drawn: list[tuple[str, int, int, str, str]]) -> None:
    encoder = FrameEncoder(RUN, background=True)
    for seq, made in enumerate((fragment(*each) for each in drawn), 1):
        assert encoder.encode(seq, made) == FrameEncoder(RUN, background=True).encode(seq, made)


@given(st.text())
def test_any_text_survives_and_stays_on_one_line(words: str) -> None:
    for frame, read in ((text(words), "content"), (ReasoningFrame(MESSAGE, 0, STEP, AT_US, words), "reasoning")):
        encoded = FrameEncoder(RUN).encode(1, frame)
        assert one(encoded)[read] == words
        assert encoded is not None and len(encoded.decode().splitlines()) == 2


def test_line_separators_in_whole_messages_are_escaped_too() -> None:
    words = "a\u2028b\u2029c\u0085d ž"
    encoded = FrameEncoder(RUN).encode(1, MessageFrame(row("assistant", Text(words))))
    assert one(encoded)["content"] == words
    assert encoded is not None and len(encoded.decode().splitlines()) == 2


# --- pings ---


def test_a_ping_says_who_and_when_and_repeats_the_last_number() -> None:
    encoder = FrameEncoder(RUN, background=True, now_us=lambda: AT_US)
    ping = one(encoder.ping(4))
    assert ping.pop("id").startswith("ping-")
    expected = envelope("ping", otid=None, step_id=None, seq_id=4)
    del expected["id"]
    assert ping == expected


@pytest.mark.parametrize(("background", "last_seq"), [(True, None), (True, 0), (False, 4)])
def test_a_ping_before_the_first_frame_or_of_a_foreground_run_has_no_number(
    background: bool, last_seq: int | None
) -> None:
    assert one(FrameEncoder(RUN, background=background).ping(last_seq))["seq_id"] is None


def test_a_ping_is_dated_now_unless_told_the_time() -> None:
    before = int(time.time())
    dated = as_event(one(FrameEncoder(RUN).ping())).date.timestamp()
    assert before <= dated <= time.time()


# --- the client itself ---


def read_by_client(body: bytes) -> list[Any]:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    transport = httpx.Client(transport=httpx.MockTransport(answer))
    with Letta(base_url="http://127.0.0.1", api_key="none", http_client=transport) as client:
        return list(client.agents.messages.create(AGENT, input="hi", streaming=True))


def test_the_client_reads_a_whole_stream() -> None:
    encoder = FrameEncoder(RUN, background=True)
    frames: list[Frame] = [
        text("Under "),
        text("the\u2028mat."),
        MessageFrame(row("tool", ToolReturn("call_7", "f", "success", "x"))),
        StopFrame("cancelled"),
        UsageFrame(Usage(9, 1), 1),
    ]
    events = read_by_client(encoder.ping() + encoder.encode_all(enumerate(frames, 1)) + DONE)
    assert [event.message_type for event in events] == [
        "ping",
        "assistant_message",
        "assistant_message",
        "tool_return_message",
        "stop_reason",
        "usage_statistics",
    ]
    assert "".join(event.content for event in events[1:3]) == "Under the\u2028mat."
    assert [event.seq_id for event in events[1:4]] == [1, 2, 3]


def test_the_client_raises_on_an_error_with_the_vendors_words_in_it() -> None:
    encoder = FrameEncoder(RUN)
    frames: list[Frame] = [StopFrame("llm_api_error"), ErrorFrame(ERROR)]
    with pytest.raises(APIStatusError, match="TEST: Mocked error"):
        read_by_client(encoder.encode_all(enumerate(frames, 1)) + DONE)

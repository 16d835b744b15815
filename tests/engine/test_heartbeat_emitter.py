"""What is streamed of an agent that speaks through a tool has the ids, the places and the words of what is stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import heartbeat_loop, transitions
from holdfast.core.calls import judge
from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    OmittedDelta,
    ReasoningDelta,
    RedactedDelta,
    ReplyFolder,
    TextDelta,
    UsageDelta,
)
from holdfast.core.frames import CallFrame, Frame, HiddenReasoningFrame, ReasoningFrame, TextFrame
from holdfast.core.messages import Message
from holdfast.core.run import CallModel
from holdfast.core.spec import HeartbeatLoop, RunSpec, Speaking, ToolSpec
from holdfast.core.tool_rules import Choice
from holdfast.core.transitions import Attempt
from holdfast.core.usage import Usage
from holdfast.engine.clock import SystemClock
from holdfast.engine.emitter import HeartbeatEmitter
from holdfast.wire.messages import WireMessage, to_wire

from ..core.machine import EFFECTS, spec
from ..effort import examples

ATTEMPT = Attempt("message-00000000-0000-4000-8000-000000000100", "message-00000000-0000-4000-8000-000000000200")
ORIGIN = transitions.Origin("run-1", "step-1", "holdfast/offline", 0)
SPEAKING = Speaking()
ANY = Choice((*EFFECTS, SPEAKING.tool), forced=True)
CALL = CallModel(1, ANY, parallel=False)


def looping(*, thinking: bool = True, speaking: Speaking | None = SPEAKING) -> tuple[RunSpec, HeartbeatLoop]:
    loop = HeartbeatLoop(thinking=thinking, speaking=speaking)
    base = spec(heartbeats=loop)
    says = ToolSpec(name=SPEAKING.tool, description="", parameters={"type": "object"}, effect="inline")
    return msgspec.structs.replace(base, tools=(*base.tools, says)), loop


def call_of(name: str, arguments: str, size: int, index: int = 0) -> list[Delta]:
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    return [CallDelta(index, f"c{index}", name), *(CallDelta(index, arguments=piece) for piece in pieces)]


def emitted(given: tuple[RunSpec, HeartbeatLoop], deltas: Sequence[Delta]) -> list[Frame]:
    emitter = HeartbeatEmitter(*given, CALL, ATTEMPT, "step-1", SystemClock())
    return [*(frame for delta in deltas for frame in emitter.frames(delta)), *emitter.finish()]


def stored(given: tuple[RunSpec, HeartbeatLoop], deltas: Sequence[Delta]) -> Message:
    folder = ReplyFolder()
    for delta in deltas:
        folder.add(delta)
    reply = folder.reply()
    calls = judge(given[0], ANY, reply.calls, parallel=False)
    spoken = heartbeat_loop.reply_parts(given[1], reply)
    (row,) = transitions.reply_rows(ORIGIN, ATTEMPT.reply_id, ATTEMPT.held_id, spoken, calls)
    return row


def shown(frames: Sequence[Frame]) -> list[tuple[str, int, str]]:
    """Each message that the frames add up to: its type, its place and its words, in the order of places."""
    found: dict[int, tuple[str, str]] = {}
    for frame in frames:
        match frame:
            case TextFrame():
                kind, text = "assistant_message", frame.text
            case ReasoningFrame():
                kind, text = "reasoning_message" if frame.native else "thoughts", frame.text
            case HiddenReasoningFrame():
                kind, text = "hidden_reasoning_message", frame.data or ""
            case CallFrame() if frame.held:
                continue
            case CallFrame():
                kind, text = "tool_call_message", frame.name or ""
            case _:
                raise AssertionError(frame)
        assert frame.message_id == ATTEMPT.reply_id
        before = found.get(frame.index, (kind, ""))
        assert before[0] == kind
        found[frame.index] = kind, before[1] + text
    return [(kind, index, text) for index, (kind, text) in sorted(found.items())]


def listed(row: Message, speaking: Speaking | None) -> list[tuple[str, int, str]]:
    def one(index: int, message: WireMessage) -> tuple[str, int, str]:
        match message["message_type"]:
            case "reasoning_message" if message["source"] == "non_reasoner_model":
                return "thoughts", index, message["reasoning"]
            case "reasoning_message":
                return "reasoning_message", index, message["reasoning"]
            case "assistant_message":
                return "assistant_message", index, message["content"]
            case "tool_call_message":
                return "tool_call_message", index, message["tool_call"]["name"]
            case kind:
                return kind, index, message.get("hidden_reasoning") or ""

    wire = [
        message for message in to_wire(row, speaking=speaking) if message["message_type"] != "approval_request_message"
    ]
    return [one(index, message) for index, message in enumerate(wire)]


_WORDS = st.text(st.sampled_from('ab"\\\n\0é😀{}, '), min_size=1, max_size=20)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "thinking": _WORDS,
        "message": _WORDS | st.dictionaries(_WORDS, st.integers(), max_size=2) | st.integers(),
        "other": st.lists(_WORDS, max_size=2),
        "request_heartbeat": st.booleans(),
    },
)
_BEFORE = st.lists(
    st.sampled_from([TextDelta("aside"), ReasoningDelta("hm"), RedactedDelta("xx"), OmittedDelta()]), max_size=3
)


@examples(100)
@given(
    st.sampled_from(["send_message", "note", "guarded"]),
    _ARGUMENTS,
    st.permutations(["thinking", "message", "other", "request_heartbeat"]),
    _BEFORE,
    st.booleans(),
    st.booleans(),
    st.integers(1, 9),
)
def test_what_is_streamed_is_what_is_stored(
    name: str,
    arguments: dict[str, Any],
    order: list[str],
    before: list[Delta],
    thinking: bool,
    speaks: bool,
    size: int,
) -> None:
    given = looping(thinking=thinking, speaking=SPEAKING if speaks else None)
    written = json.dumps({key: arguments[key] for key in order if key in arguments})
    deltas = [*before, *call_of(name, written, size), UsageDelta(Usage(1, 1)), Finish("tool_calls")]
    frames, row = emitted(given, deltas), stored(given, deltas)
    assert shown(frames) == listed(row, given[1].speaking)
    held = [frame for frame in frames if isinstance(frame, CallFrame) and frame.held]
    assert bool(held) == (row.role == "approval")
    shown_calls = [frame for frame in frames if isinstance(frame, CallFrame)]
    if shown_calls:
        told = json.loads("".join(frame.arguments for frame in shown_calls))
        expected = {key: value for key, value in arguments.items() if not (thinking and key == "thinking")}
        assert told == expected or (speaks and name == "send_message"), "thoughts are not told twice"


@pytest.mark.parametrize(
    ("thinking", "deltas"),
    [
        (True, call_of("send_message", '{"thinking": {"a": [1]}, "message": "hi"}', 4)),
        (True, call_of("send_message", '{"thinking": null, "message": "hi"}', 4)),
        (True, call_of("note", '{"thinking": 5, "message": "hi"}', 4)),
        (True, [CallDelta(0, "c0"), CallDelta(0, None, "send_message", '{"thinking": "t", "message": "hi"}')]),
        (True, [CallDelta(0, None, "note"), CallDelta(0, "c0", None, '{"thinking": "t", "x": 1}')]),
        (True, [*call_of("note", "{}", 4, index=1), *call_of("lookup", "{}", 4, index=0)]),
        *(
            (True, call_of(name, json.dumps('{"thinking": "t", "message": "hi"}'), 5))
            for name in ("send_message", "note")
        ),
        (False, call_of("note", json.dumps('{"thinking": "t", "message": "hi"}'), 5)),
        (False, [TextDelta("pre "), *call_of("send_message", '{"message": "hi"}', 4), TextDelta("post")]),
        (False, [TextDelta("pre "), *call_of("guarded", "{}", 4), TextDelta("post")]),
        (True, call_of("note", '{"thinking": "t", "x": "cut o', 5)),
        (True, call_of("note", '{"thinking": [1 2], "x": "cut o', 5)),
        (True, call_of("note", "[1]", 5)),
    ],
)
def test_unusual_replies_are_streamed_as_they_are_stored(thinking: bool, deltas: list[Delta]) -> None:
    given = looping(thinking=thinking)
    frames = emitted(given, deltas)
    assert shown(frames) == listed(stored(given, deltas), given[1].speaking)
    assert all(frame.call_id for frame in frames if isinstance(frame, CallFrame))


def test_text_after_a_call_with_nothing_before_it_is_not_streamed() -> None:
    """It is stored before the call, whose place is told already."""
    frames = emitted(looping(thinking=False), [*call_of("send_message", '{"message": "hi"}', 4), TextDelta("post")])
    assert shown(frames) == [("assistant_message", 0, "hi")]


@pytest.mark.parametrize("size", [3, 1_000])
def test_a_call_that_asks_and_is_written_as_a_string_is_told_whole(size: int) -> None:
    written = json.dumps('{"thinking": "t", "x": 1}')
    held = [frame for frame in emitted(looping(), call_of("guarded", written, size)) if isinstance(frame, CallFrame)]
    assert json.loads("".join(frame.arguments for frame in held)) == {"x": 1}


def test_words_are_streamed_while_they_are_written() -> None:
    arguments = '{"thinking": "I greet.", "message": "Hello \\"there\\""}'
    frames = emitted(looping(), call_of("send_message", arguments, 4))
    words = [frame.text for frame in frames if isinstance(frame, TextFrame)]
    assert "".join(words) == 'Hello "there"'
    assert len(words) > 3


def test_words_before_the_thoughts_wait_for_them() -> None:
    emitter = HeartbeatEmitter(*looping(), CALL, ATTEMPT, "step-1", SystemClock())
    deltas = call_of("send_message", '{"message": "Hello", "thinking": "I greet."}', 100)
    frames = [frame for delta in deltas for frame in emitter.frames(delta)]
    assert [type(frame) for frame in frames] == [ReasoningFrame, TextFrame]
    assert emitter.finish() == []


def test_only_the_first_call_of_a_reply_is_shown() -> None:
    deltas = [*call_of("note", "{}", 9), *call_of("lookup", '{"x": 1}', 9, index=1)]
    names = {frame.name for frame in emitted(looping(), deltas) if isinstance(frame, CallFrame)}
    assert names == {"note", None}


@pytest.mark.parametrize("arguments", ['{"other":1}', '{"message": "cut', "no json"])
def test_a_speaking_call_without_words_is_shown_as_the_call_that_it_is(arguments: str) -> None:
    given = looping(thinking=False)
    frames = emitted(given, call_of("send_message", arguments, 5))
    if any(isinstance(frame, TextFrame) for frame in frames):
        assert arguments == '{"message": "cut'  # shown before it was known to be broken
    else:
        assert [frame.arguments for frame in frames if isinstance(frame, CallFrame)] == [arguments]


def test_a_reply_without_a_call_shows_its_text_as_thoughts_where_they_have_no_argument() -> None:
    frames = emitted(looping(thinking=False), [TextDelta("I wonder")])
    assert shown(frames) == [("thoughts", 0, "I wonder")]
    assert emitted(looping(), [TextDelta("I wonder")]) == []

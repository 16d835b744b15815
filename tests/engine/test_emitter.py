"""What is streamed must have the ids of what will be stored, whatever the model calls and in whatever order."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import transitions
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
from holdfast.core.messages import Message, Reasoning, Text
from holdfast.core.run import CallModel
from holdfast.core.tool_rules import Choice
from holdfast.core.transitions import Attempt
from holdfast.core.usage import Usage
from holdfast.engine.clock import SystemClock
from holdfast.engine.emitter import Emitter

from ..core.machine import EFFECTS, spec
from ..effort import examples

SPEC = spec()
ATTEMPT = Attempt("message-r", "message-h")
ORIGIN = transitions.Origin("run-1", "step-1", "holdfast/offline", 0)
ANY = Choice(tuple(EFFECTS), forced=False)


def made_call(index: int, name: str, arguments: str = "{}", call_id: str | None = None) -> list[Delta]:
    half = len(arguments) // 2
    first = CallDelta(index, call_id or f"c{index}", name)
    return [first, CallDelta(index, arguments=arguments[:half]), CallDelta(index, arguments=arguments[half:])]


def emitted(deltas: Sequence[Delta], *, parallel: bool = True, choice: Choice = ANY) -> list[Frame]:
    emitter = Emitter(SPEC, CallModel(1, choice, parallel), ATTEMPT, "step-1", SystemClock())
    return [*(frame for delta in deltas for frame in emitter.frames(delta)), *emitter.finish()]


def stored(deltas: Sequence[Delta], *, parallel: bool = True, choice: Choice = ANY) -> list[Message]:
    folder = ReplyFolder()
    for delta in deltas:
        folder.add(delta)
    reply = folder.reply()
    calls = judge(SPEC, choice, reply.calls, parallel=parallel)
    return transitions.reply_rows(ORIGIN, ATTEMPT.reply_id, ATTEMPT.held_id, reply.spoken, calls)


def assert_same(frames: Sequence[Frame], written: Sequence[Message]) -> None:
    home = {call.id: row for row in written for call in row.calls}
    told = [frame for frame in frames if isinstance(frame, CallFrame)]
    assert {frame.call_id for frame in told} == set(home)
    for frame in told:
        assert frame.message_id == home[frame.call_id].id
        assert frame.held == (home[frame.call_id].role == "approval")
    spoken = [row for row in written for part in row.parts if isinstance(part, (Text, Reasoning))]
    for frame in frames:
        if isinstance(frame, (TextFrame, ReasoningFrame)):
            assert frame.message_id in {row.id for row in spoken}


def test_text_and_thought_are_shown_as_they_come_and_numbered_by_part() -> None:
    frames = emitted(
        [ReasoningDelta("h"), ReasoningDelta("m", "sig"), TextDelta("wo"), TextDelta("rds"), Finish("stop")]
    )
    assert [(type(frame), getattr(frame, "index", None)) for frame in frames] == [
        (ReasoningFrame, 0),
        (ReasoningFrame, 0),
        (TextFrame, 1),
        (TextFrame, 1),
    ]


def test_hidden_thoughts_are_parts_of_their_own() -> None:
    frames = emitted([OmittedDelta(), RedactedDelta("xx"), TextDelta("words"), UsageDelta(Usage())])
    hidden = [frame for frame in frames if isinstance(frame, HiddenReasoningFrame)]
    assert [(frame.state, frame.data, frame.index) for frame in hidden] == [("omitted", None, 0), ("redacted", "xx", 1)]
    assert isinstance(frames[-1], TextFrame)
    assert frames[-1].index == 2


def test_an_ordinary_call_is_shown_as_it_comes_with_its_name_first() -> None:
    emitter = Emitter(SPEC, CallModel(1, ANY, True), ATTEMPT, "step-1", SystemClock())
    shown = [emitter.frames(delta) for delta in made_call(0, "note", '{"x":1}')]
    assert [[(f.name, f.arguments) for f in frames if isinstance(f, CallFrame)] for frames in shown] == [
        [("note", "")],
        [(None, '{"x')],
        [(None, '":1}')],
    ]
    assert emitter.finish() == []


def test_a_call_that_asks_alone_shares_the_message_of_the_text() -> None:
    deltas = [TextDelta("words"), *made_call(0, "guarded")]
    assert [row.id for row in stored(deltas)] == ["message-r"]
    assert_same(emitted(deltas), stored(deltas))


def test_calls_that_ask_have_a_message_of_their_own_when_another_call_is_made_before_or_after() -> None:
    for names in (("guarded", "note"), ("note", "guarded"), ("camera", "note", "guarded")):
        deltas = [delta for index, name in enumerate(names) for delta in made_call(index, name)]
        assert_same(emitted(deltas), stored(deltas))


def test_a_call_that_cannot_be_asked_about_because_its_arguments_are_broken_is_shown_as_it_is_stored() -> None:
    for broken in ("guarded", "camera"):
        deltas = [*made_call(0, broken, '{"x'), *made_call(1, "guarded")]
        assert_same(emitted(deltas), stored(deltas))
        assert_same(emitted(made_call(0, broken, "[")), stored(made_call(0, broken, "[")))


def test_a_guarded_tool_that_the_rules_forbid_now_is_not_shown_as_a_question() -> None:
    choice = Choice(("note",), forced=True)
    deltas = made_call(0, "guarded")
    assert_same(emitted(deltas, choice=choice, parallel=False), stored(deltas, choice=choice, parallel=False))


def test_only_the_first_call_is_shown_when_only_one_is_kept() -> None:
    deltas = [*made_call(0, "note"), *made_call(1, "lookup")]
    assert_same(emitted(deltas, parallel=False), stored(deltas, parallel=False))


def test_of_calls_with_one_id_only_the_first_is_shown() -> None:
    deltas = [*made_call(0, "note", call_id="c"), *made_call(1, "lookup", call_id="c")]
    assert_same(emitted(deltas), stored(deltas))


@examples(150)
@given(
    names=st.lists(st.sampled_from([*EFFECTS, "unknown"]), max_size=4),
    arguments=st.lists(st.sampled_from(["{}", '{"x', "", '{"a":1}']), min_size=4, max_size=4),
    text=st.booleans(),
    parallel=st.booleans(),
    allowed=st.sets(st.sampled_from(list(EFFECTS)), min_size=1),
)
def test_whatever_is_streamed_has_the_id_of_what_is_stored(
    names: list[str], arguments: list[str], text: bool, parallel: bool, allowed: set[str]
) -> None:
    choice = Choice(tuple(name for name in EFFECTS if name in allowed), forced=False)
    deltas: list[Delta] = [TextDelta("words")] if text else []
    for index, name in enumerate(names):
        deltas += made_call(index, name, arguments[index])
    assert_same(emitted(deltas, parallel=parallel, choice=choice), stored(deltas, parallel=parallel, choice=choice))

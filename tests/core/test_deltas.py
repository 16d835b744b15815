from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import deltas
from holdfast.core.deltas import (
    MAX_CALLS,
    CallDelta,
    Delta,
    Finish,
    OmittedDelta,
    ReasoningDelta,
    RedactedDelta,
    Reply,
    ReplyFolder,
    TextDelta,
    UsageDelta,
)
from holdfast.core.messages import OmittedReasoning, Reasoning, RedactedReasoning, Text, ToolCall
from holdfast.core.usage import Usage
from holdfast.errors import BadReply


def folded(*deltas: Delta) -> Reply:
    folder = ReplyFolder()
    for delta in deltas:
        folder.add(delta)
    return folder.reply()


def test_fragments_of_one_kind_become_one_part_and_a_change_of_kind_begins_another() -> None:
    reply = folded(
        ReasoningDelta("let "), ReasoningDelta("me"), TextDelta("one "), TextDelta("two"), ReasoningDelta("more")
    )
    assert reply.parts == (Reasoning("let me"), Text("one two"), Reasoning("more"))


def test_hidden_reasoning_keeps_its_place_and_separates_texts() -> None:
    reply = folded(TextDelta("a"), RedactedDelta("xx"), OmittedDelta("sig"), TextDelta("b"))
    assert reply.parts == (Text("a"), RedactedReasoning("xx"), OmittedReasoning("sig"), Text("b"))


def test_a_signature_belongs_to_the_reasoning_it_came_with() -> None:
    reply = folded(ReasoningDelta("a"), ReasoningDelta("", "sig"), TextDelta("b"), ReasoningDelta("c"))
    assert reply.parts == (Reasoning("a", "sig"), Text("b"), Reasoning("c"))


def test_a_signature_closes_its_block_so_that_every_block_keeps_its_own() -> None:
    reply = folded(ReasoningDelta("a"), ReasoningDelta("", "first"), ReasoningDelta("b"), ReasoningDelta("", "second"))
    assert reply.parts == (Reasoning("a", "first"), Reasoning("b", "second"))


def test_texts_and_calls_keep_their_signatures() -> None:
    reply = folded(TextDelta("a", "text"), CallDelta(0, "call-1", "roll", "{", "call"), CallDelta(0, arguments="}"))
    assert reply.parts == (Text("a", "text"), ToolCall("call-1", "roll", "{}", "call"))


def test_parallel_calls_are_told_apart_by_index_and_come_last_in_the_order_they_began() -> None:
    reply = folded(
        CallDelta(1, "c2", "second"),
        CallDelta(0, "c1", "first", '{"a"'),
        CallDelta(1, arguments="{}"),
        CallDelta(0, arguments=":1}"),
        TextDelta("calling"),
    )
    assert reply.parts == (Text("calling"), ToolCall("c2", "second", "{}"), ToolCall("c1", "first", '{"a":1}'))
    assert [call.name for call in reply.calls] == ["second", "first"]
    assert reply.spoken == (Text("calling"),)


def test_id_and_name_may_come_late_and_are_not_overwritten() -> None:
    reply = folded(CallDelta(0, arguments="{"), CallDelta(0, "c1", "tool", "}"), CallDelta(0, "c9", "other"))
    assert reply.calls == (ToolCall("c1", "tool", "{}"),)


def test_a_reply_that_was_cut_off_has_no_finish() -> None:
    assert folded(TextDelta("half")) == Reply((Text("half"),), None, None)
    assert folded(UsageDelta(Usage(1, 2)), Finish("length")) == Reply((), "length", Usage(1, 2))


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**16))
def test_however_text_is_cut_into_fragments_it_folds_to_itself(said: str, arguments: str, seed: int) -> None:
    cut = random.Random(seed)
    deltas: list[Delta] = [TextDelta(piece) for piece in pieces(said, cut)]
    deltas += [CallDelta(0, "c1", "tool"), *(CallDelta(0, arguments=piece) for piece in pieces(arguments, cut))]
    assert folded(*deltas).parts == (Text(said), ToolCall("c1", "tool", arguments))


def pieces(text: str, cut: random.Random) -> list[str]:
    found: list[str] = []
    while text:
        size = cut.randint(1, len(text))
        found.append(text[:size])
        text = text[size:]
    return found


def test_a_reply_of_too_many_calls_is_refused_at_the_first_that_is_too_many() -> None:
    folder = ReplyFolder()
    for number in range(MAX_CALLS):
        folder.add(CallDelta(number, f"c{number}", "note", "{}"))
    folder.add(CallDelta(0, arguments=" "))
    with pytest.raises(BadReply, match="more than 256 tool calls"):
        folder.add(CallDelta(MAX_CALLS, "one more", "note", "{}"))
    assert len(folder.reply().calls) == MAX_CALLS


@pytest.mark.parametrize(
    "delta",
    [
        TextDelta("x" * 1_000_000),
        TextDelta("", "x" * 1_000_000),
        ReasoningDelta("x" * 1_000_000),
        RedactedDelta("x" * 1_000_000),
        OmittedDelta("x" * 1_000_000),
        CallDelta(0, "c", "note", "x" * 1_000_000),
    ],
    ids=lambda delta: type(delta).__name__,
)
def test_a_reply_of_any_kind_that_does_not_end_is_refused(delta: Delta) -> None:
    folder = ReplyFolder()
    with pytest.raises(BadReply, match="longer than 16000000 characters"):
        for _ in range(20):
            folder.add(delta)


def test_deltas_that_say_nothing_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "MAX_REPLY_CHARS", 1_000)
    folder = ReplyFolder()
    with pytest.raises(BadReply, match="longer than"):
        for _ in range(1_001):
            folder.add(TextDelta(""))

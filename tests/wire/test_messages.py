from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from letta_client.types.agents.internal_message import InternalMessage

from holdfast import ids
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    CompactionStats,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Role,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
    wire_message_count,
)
from holdfast.wire.messages import filter_types, stored_view, to_live, to_wire

from .examples import AGENT, CONVERSATION, MESSAGE, as_message, check_shape, envelope, otid, row

CALL = ToolCall("call_7", "find_item", '{"q": "key"}')
SECOND_CALL = ToolCall("call_8", "dice", "{}")
CALL_VIEW = {"name": "find_item", "arguments": '{"q": "key"}', "tool_call_id": "call_7"}
SECOND_VIEW = {"name": "dice", "arguments": "{}", "tool_call_id": "call_8"}
IMAGE = Image("image/png", "iVBOR", "low")
IMAGE_VIEW = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR", "detail": "low"},
}
STATS = CompactionStats("context_window_exceeded", 32_000, 80, 12, 31_000, 4_000)
STATS_VIEW = {
    "trigger": "context_window_exceeded",
    "context_window": 32_000,
    "messages_count_before": 80,
    "messages_count_after": 12,
    "context_tokens_before": 31_000,
    "context_tokens_after": 4_000,
}


def text_view(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "signature": None}


def return_view(tool_return: Any, **fields: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"status": "success", "tool_call_id": "call_7", "stdout": None, "stderr": None}
    return {"type": "tool", "tool_return": tool_return} | given | fields


def approval_view(call_id: str, approve: bool, reason: str | None) -> dict[str, Any]:
    return {"type": "approval", "tool_call_id": call_id, "approve": approve, "reason": reason}


EXAMPLES: dict[str, tuple[Message, list[dict[str, Any]]]] = {
    "system": (
        row("system", Text("You keep notes.")),
        [envelope("system_message", content="You keep notes.")],
    ),
    "user text, with what the client gave": (
        row("user", Text("Where is the key?"), otid="5d0c", name="Ann", sender_id="identity-1"),
        [envelope("user_message", content="Where is the key?", otid="5d0c", name="Ann", sender_id="identity-1")],
    ),
    "user text and image": (
        row("user", Text("this one"), IMAGE),
        [envelope("user_message", content=[text_view("this one"), IMAGE_VIEW])],
    ),
    "a lone image": (row("user", IMAGE), [envelope("user_message", content=[IMAGE_VIEW])]),
    "assistant text": (
        row("assistant", Text("Under the mat.")),
        [envelope("assistant_message", content="Under the mat.")],
    ),
    "assistant text sent by the client": (
        row("assistant", Text("Hello."), otid="5d0c"),
        [envelope("assistant_message", content="Hello.", otid="5d0c")],
    ),
    "reasoning, text and parallel calls": (
        row(
            "assistant",
            Reasoning("The note ", "sig"),
            Reasoning("mentions a mat."),
            Text("Un"),
            Text("der."),
            CALL,
            SECOND_CALL,
        ),
        [
            envelope(
                "reasoning_message",
                source="reasoner_model",
                reasoning="The note mentions a mat.",
                signature="sig",
            ),
            envelope("assistant_message", content="Under.", otid=otid(1)),
            envelope("tool_call_message", tool_call=CALL_VIEW, tool_calls=[CALL_VIEW, SECOND_VIEW], otid=otid(2)),
        ],
    ),
    "a later signature wins": (
        row("assistant", Reasoning("a", "first"), Reasoning("b", "second")),
        [envelope("reasoning_message", source="reasoner_model", reasoning="ab", signature="second")],
    ),
    "hidden reasoning is never merged": (
        row("assistant", RedactedReasoning("blob"), OmittedReasoning("sig"), OmittedReasoning()),
        [
            envelope("hidden_reasoning_message", state="redacted", hidden_reasoning="blob"),
            envelope("hidden_reasoning_message", state="omitted", hidden_reasoning=None, otid=otid(1)),
            envelope("hidden_reasoning_message", state="omitted", hidden_reasoning=None, otid=otid(2)),
        ],
    ),
    "text on both sides of reasoning": (
        row("assistant", Text("a"), Reasoning("b"), Text("c")),
        [
            envelope("assistant_message", content="a"),
            envelope("reasoning_message", source="reasoner_model", reasoning="b", signature=None, otid=otid(1)),
            envelope("assistant_message", content="c", otid=otid(2)),
        ],
    ),
    "a request for approval": (
        row("approval", Text("May I?"), CALL, SECOND_CALL),
        [
            envelope("assistant_message", content="May I?"),
            envelope(
                "approval_request_message", tool_call=CALL_VIEW, tool_calls=[CALL_VIEW, SECOND_VIEW], otid=MESSAGE
            ),
        ],
    ),
    "an answer of every kind": (
        row(
            "approval",
            ClientReturn("call_6", "42", "error", ("out",), ("err",)),
            Deny("call_9", "keep it"),
            Approve("call_10"),
            otid="a7",
        ),
        [
            envelope(
                "approval_response_message",
                otid="a7",
                approvals=[
                    return_view("42", status="error", tool_call_id="call_6", stdout=["out"], stderr=["err"]),
                    approval_view("call_9", False, "keep it"),
                    approval_view("call_10", True, None),
                ],
                approve=False,
                approval_request_id="call_9",
                reason="keep it",
            )
        ],
    ),
    "an answer that approves": (
        row("approval", Approve("call_9", "fine")),
        [
            envelope(
                "approval_response_message",
                approvals=[approval_view("call_9", True, "fine")],
                approve=True,
                approval_request_id="call_9",
                reason="fine",
            )
        ],
    ),
    "an answer of returns only": (
        row("approval", ClientReturn("call_7", (Text("see"), IMAGE))),
        [
            envelope(
                "approval_response_message",
                approvals=[return_view([text_view("see"), IMAGE_VIEW])],
                approve=None,
                approval_request_id=None,
                reason=None,
            )
        ],
    ),
    "tool returns": (
        row(
            "tool",
            ToolReturn("call_7", "find_item", "error", "lost", ("looking",), ()),
            ToolReturn("call_8", "dice", "success", "6"),
        ),
        [
            envelope(
                "tool_return_message",
                name="find_item",
                tool_return="lost",
                status="error",
                tool_call_id="call_7",
                stdout=["looking"],
                stderr=[],
                tool_returns=[
                    return_view("lost", status="error", stdout=["looking"], stderr=[]),
                    return_view("6", tool_call_id="call_8"),
                ],
            )
        ],
    ),
    "a tool return with an image": (
        row("tool", ToolReturn("call_7", "look", "success", (Text("see"), IMAGE))),
        [
            envelope(
                "tool_return_message",
                name="look",
                tool_return="see [Image omitted]",
                status="success",
                tool_call_id="call_7",
                stdout=None,
                stderr=None,
                tool_returns=[return_view([text_view("see"), IMAGE_VIEW])],
            )
        ],
    ),
    "a tool row still without returns": (row("tool"), []),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_stored_row_is_shown_as(name: str) -> None:
    stored, expected = EXAMPLES[name]
    assert to_wire(stored) == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_shown_has_the_documented_shape_and_the_client_reads_it_back(name: str) -> None:
    for shown in to_wire(EXAMPLES[name][0], seq_id=3, is_err=True):
        check_shape(shown)
        read = as_message(shown)
        assert (read.message_type, read.id, read.otid) == (shown["message_type"], shown["id"], shown["otid"])
        assert (read.seq_id, read.is_err) == (3, True)


def test_an_error_flag_that_is_false_is_null_on_the_wire() -> None:
    assert to_wire(row("system", Text("x")), is_err=False)[0]["is_err"] is None


# --- summaries ---


def summary(shown: bool) -> Message:
    return row("summary", Summary("Talked about keys.", STATS, shown=shown))


@pytest.mark.parametrize("show_summaries", [False, True])
def test_a_summary_nobody_asked_to_see_is_listed_as_the_packed_user_message(show_summaries: bool) -> None:
    (listed,) = to_wire(summary(shown=False), show_summaries=show_summaries)
    check_shape(listed)
    assert listed["message_type"] == "user_message"
    packed = json.loads(listed["content"])
    assert packed["type"] == "system_alert"
    assert "hidden from view" in packed["message"] and packed["message"].endswith("Talked about keys.")
    assert packed["time"] == "2026-03-01 09:30:00 AM UTC+0000"
    assert packed["compaction_stats"] == STATS_VIEW


def test_a_summary_without_statistics_is_packed_without_them() -> None:
    (listed,) = to_wire(row("summary", Summary("Keys.")))
    assert "compaction_stats" not in json.loads(listed["content"])


def test_a_summary_that_was_asked_for_is_a_summary_message_when_summaries_are_shown() -> None:
    (shown,) = to_wire(summary(shown=True), show_summaries=True)
    assert shown == envelope("summary_message", summary="Talked about keys.", compaction_stats=STATS_VIEW)
    check_shape(shown)
    assert as_message(shown).compaction_stats.messages_count_after == 12
    assert to_wire(summary(shown=True))[0]["message_type"] == "user_message"


def test_a_summary_message_without_statistics_says_null() -> None:
    (shown,) = to_wire(row("summary", Summary("Keys.", shown=True)), show_summaries=True)
    assert shown["compaction_stats"] is None


# --- live answers ---


@pytest.mark.parametrize(
    "name", ["system", "user text and image", "an answer of every kind", "a tool row still without returns"]
)
def test_the_caller_is_never_shown_its_own_input(name: str) -> None:
    assert to_live(EXAMPLES[name][0], include=None, include_compaction=True) == []


def test_compaction_is_shown_live_only_to_those_who_asked() -> None:
    asked = to_live(summary(shown=True), include=None, include_compaction=True)
    assert [shown["message_type"] for shown in asked] == ["summary_message"]
    assert to_live(summary(shown=True), include=None, include_compaction=False) == []
    assert to_live(summary(shown=False), include=None, include_compaction=True) == []
    assert to_live(summary(shown=True), include={"assistant_message"}, include_compaction=True) == []


def test_a_live_message_is_filtered_by_type_and_numbered() -> None:
    stored = EXAMPLES["reasoning, text and parallel calls"][0]
    (shown,) = to_live(stored, include={"assistant_message"}, include_compaction=False, seq_id=9)
    assert shown == envelope("assistant_message", content="Under.", otid=otid(1), seq_id=9)


def test_no_filter_shows_everything_and_an_empty_filter_nothing() -> None:
    shown = to_wire(EXAMPLES["reasoning, text and parallel calls"][0])
    assert filter_types(shown, None) == shown
    assert filter_types(shown, []) == []


# --- otids ---

_words = st.text(max_size=3)
_spoken_parts = st.one_of(
    st.builds(Text, _words),
    st.builds(Reasoning, _words, st.none() | _words),
    st.builds(RedactedReasoning, _words),
    st.builds(OmittedReasoning),
)
_calls = st.builds(ToolCall, st.uuids().map(str), _words, st.just("{}"))


def drawn(role: Role, spoken: list[AnyPart], calls: list[AnyPart]) -> list[dict[str, Any]]:
    return to_wire(row(role, *spoken, *calls, id=ids.new("message")))


@given(st.sampled_from(["assistant", "approval"]), st.lists(_spoken_parts, max_size=12), st.lists(_calls, min_size=1))
def test_the_messages_of_one_row_share_its_id_and_differ_in_otid(
    role: Role, spoken: list[AnyPart], calls: list[AnyPart]
) -> None:
    shown = drawn(role, spoken, calls)
    assert len({message["id"] for message in shown}) == 1
    assert len({message["otid"] for message in shown}) == len(shown)


@given(st.lists(_spoken_parts, max_size=12), st.lists(_calls, min_size=1))
def test_an_otid_ends_with_the_place_of_its_message_in_the_row(spoken: list[AnyPart], calls: list[AnyPart]) -> None:
    for index, message in enumerate(drawn("assistant", spoken, calls)):
        assert int(message["otid"][-2:], 16) & 0x7F == index


@given(st.lists(st.lists(_spoken_parts, min_size=1, max_size=4), min_size=2, max_size=5))
def test_otids_of_different_rows_never_meet(rows: list[list[AnyPart]]) -> None:
    shown = [message["otid"] for parts in rows for message in drawn("assistant", parts, [])]
    assert len(set(shown)) == len(shown)


def test_a_row_with_more_parts_than_otids_is_still_shown() -> None:
    parts: list[AnyPart] = [Text("a"), Reasoning("b")] * 70
    shown = drawn("assistant", parts, [])
    assert len(shown) == 140
    assert len({message["otid"] for message in shown}) == ids.MAX_PARTS


# --- the stored form ---


def stored(message: Message) -> dict[str, Any]:
    return stored_view(message, agent_id=AGENT, conversation_id=CONVERSATION)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_client_reads_the_stored_form(name: str) -> None:
    shown = stored(EXAMPLES[name][0])
    read = InternalMessage.model_validate(json.loads(json.dumps(shown)))
    assert (read.id, read.role, read.agent_id, read.conversation_id) == (
        MESSAGE,
        shown["role"],
        AGENT,
        CONVERSATION,
    )
    assert set(shown) == set(InternalMessage.model_fields)


def test_the_stored_form_keeps_every_kind_of_content() -> None:
    shown = stored(
        row("assistant", Text("a"), IMAGE, Reasoning("b", "s"), RedactedReasoning("c"), OmittedReasoning("d"), CALL)
    )
    assert shown["content"] == [
        text_view("a"),
        IMAGE_VIEW,
        {"type": "reasoning", "is_native": True, "reasoning": "b", "signature": "s"},
        {"type": "redacted_reasoning", "data": "c"},
        {"type": "omitted_reasoning", "signature": "d"},
    ]
    assert shown["tool_calls"] == [
        {"id": "call_7", "type": "function", "function": {"name": "find_item", "arguments": '{"q": "key"}'}}
    ]
    assert shown["tool_returns"] is None and shown["approvals"] is None


def test_the_stored_form_of_a_summary_is_the_packed_text() -> None:
    (part,) = stored(summary(shown=True))["content"]
    assert json.loads(part["text"])["type"] == "system_alert"


def test_the_stored_form_of_returns_and_answers() -> None:
    returned = stored(EXAMPLES["tool returns"][0])
    assert returned["tool_call_id"] == "call_7"
    assert returned["tool_returns"][1] == {
        "tool_call_id": "call_8",
        "status": "success",
        "stdout": None,
        "stderr": None,
        "func_response": "6",
    }
    answered = stored(EXAMPLES["an answer of every kind"][0])
    assert [kind.get("type") for kind in answered["approvals"]] == [None, "approval", "approval"]
    assert answered["approvals"][0]["func_response"] == "42"
    assert (answered["approve"], answered["approval_request_id"]) == (False, "call_9")
    assert answered["denial_reason"] == "keep it"
    approved = stored(EXAMPLES["an answer that approves"][0])
    assert (approved["approve"], approved["denial_reason"]) == (True, None)


SPOKEN = st.sampled_from([Text("a"), Reasoning("b"), RedactedReasoning("c"), OmittedReasoning(), CALL])


@given(role=st.sampled_from(["assistant", "approval"]), parts=st.lists(SPOKEN, min_size=1, max_size=6))
def test_the_core_knows_how_many_messages_a_row_becomes(role: Role, parts: list[AnyPart]) -> None:
    message = row(role, *parts)
    if message.role == "assistant" or message.calls:
        assert wire_message_count(message) == len(to_wire(message))


def test_a_row_can_be_shown_one_message_at_a_time() -> None:
    message = row("assistant", Reasoning("hm"), Text("yes"), CALL)

    whole = to_live(message, include=None, include_compaction=False)
    one_by_one = [to_live(message, include=None, include_compaction=False, index=index) for index in range(4)]

    assert one_by_one == [*([each] for each in whole), []]

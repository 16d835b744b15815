"""The many ways in which messages stand in agent files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Deny,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Summary,
    Text,
    Thoughts,
    ToolCall,
    ToolReturn,
)
from holdfast.errors import Invalid
from holdfast.wire.agent_file_messages import IMAGE_MISSING, MessageReader, Origin, read_message

NOW_US = 1_772_357_400_000_000
THEIRS = Origin(model_name="mini", handle="acme/mini", is_ours=False, thinks_in_text=False, now_us=NOW_US)
CALL = {"id": "c1", "type": "function", "function": {"name": "roll", "arguments": "{}"}}


def read(*messages: dict[str, Any], origin: Origin = THEIRS) -> list[tuple[AnyPart, ...]]:
    given = [read_message({"id": f"message-{number}", **each}) for number, each in enumerate(messages)]
    reader = MessageReader(origin, given)
    return [reader.row(each).parts for each in given]


def packed(message: Any, status: str = "OK") -> str:
    return json.dumps({"status": status, "message": message, "time": "now"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("plain", Text("plain")),
        ([{"type": "text", "text": "a", "signature": "s"}], Text("a", "s")),
        ([{"type": "reasoning", "reasoning": "hm", "is_native": True, "signature": "s"}], Reasoning("hm", "s")),
        ([{"type": "reasoning", "reasoning": "hm", "is_native": False}], Thoughts("hm")),
        ([{"type": "redacted_reasoning", "data": "x"}], RedactedReasoning("x")),
        ([{"type": "omitted_reasoning"}], OmittedReasoning()),
        ([{"type": "summarized_reasoning", "id": "r", "summary": [{"index": 0, "text": "a"}]}], Reasoning("a")),
        ([{"type": "tool_call", "id": "c", "name": "roll", "input": {"n": 1}}], ToolCall("c", "roll", '{"n":1}')),
        ([{"type": "image", "source": {"type": "url", "url": "https://example.com/a"}}], Text(IMAGE_MISSING)),
    ],
)
def test_what_an_assistant_says_is_read_whatever_its_type(content: Any, expected: AnyPart) -> None:
    assert read({"role": "assistant", "content": content}) == [(expected,)]


def test_a_call_that_stands_in_content_and_in_a_field_is_one_call() -> None:
    twice: list[dict[str, Any]] = [{"type": "tool_call", "id": "c1", "name": "roll", "input": {}}]
    assert read({"role": "assistant", "content": twice, "tool_calls": [CALL]}) == [(ToolCall("c1", "roll", "{}"),)]


@pytest.mark.parametrize(
    ("fields", "status", "content"),
    [
        ({"tool_returns": [{"tool_call_id": "c1", "status": "error", "func_response": packed("no")}]}, "error", "no"),
        ({"tool_returns": [{"status": "success", "func_response": "bare"}], "tool_call_id": "c1"}, "success", "bare"),
        ({"tool_call_id": "c1", "content": packed({"n": 1})}, "success", '{"n":1}'),
        ({"tool_call_id": "c1", "content": packed(None, "Failed")}, "error", "null"),
        ({"content": [{"type": "tool_return", "tool_call_id": "c1", "content": "x", "is_error": True}]}, "error", "x"),
    ],
)
@pytest.mark.parametrize("role", ["tool", "function"])
def test_a_return_is_read_wherever_it_stands(role: str, fields: dict[str, Any], status: Any, content: str) -> None:
    rows = read({"role": "assistant", "tool_calls": [CALL]}, {"role": role, **fields})
    assert rows[1] == (ToolReturn("c1", "roll", status, content),)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"approvals": [{"type": "approval", "tool_call_id": "c1", "approve": True}]}, Approve("c1")),
        ({"approvals": [{"tool_call_id": "c1", "status": "success", "func_response": "x"}]}, ClientReturn("c1", "x")),
        ({"approvals": [{"type": "tool", "tool_call_id": "c1", "tool_return": "x"}]}, ClientReturn("c1", "x")),
        ({"approve": False, "approval_request_id": "message-0", "denial_reason": "no"}, Deny("c1", "no")),
        ({"approve": True, "approval_request_id": "c1"}, Approve("c1")),
    ],
)  # fmt: skip
def test_a_decision_is_read_in_the_words_of_every_version(fields: dict[str, Any], expected: AnyPart) -> None:
    rows = read({"role": "approval", "tool_calls": [CALL]}, {"role": "approval", **fields})
    assert rows[1] == (expected,)


def test_envelopes_of_the_old_server_are_taken_off_and_texts_of_our_own_files_are_not() -> None:
    user = {"role": "user", "content": json.dumps({"type": "user_message", "message": "hi", "time": "now"})}
    alert = {"type": "system_alert", "message": "Note: long ago.\nA summary follows:\n Ships: came.\nAnd went."}
    assert read(user, {"role": "summary", "content": json.dumps(alert)}) == [
        (Text("hi"),),
        (Summary("Ships: came.\nAnd went."),),
    ]
    ours = Origin(model_name="mini", handle="acme/mini", is_ours=True, thinks_in_text=False, now_us=NOW_US)
    assert read(user, origin=ours) == [(Text(user["content"]),)]
    login = {"role": "user", "content": json.dumps({"type": "login", "last_login": "never", "time": "now"})}
    assert read(login) == [(Text(login["content"]),)]


def test_text_beside_the_call_of_an_agent_that_speaks_through_a_tool_is_what_it_thought() -> None:
    origin = Origin(model_name="mini", handle="acme/mini", is_ours=False, thinks_in_text=True, now_us=NOW_US)
    rows = read(
        {"role": "assistant", "content": "I greet.", "tool_calls": [CALL]},
        {"role": "assistant", "content": "Said aloud."},
        origin=origin,
    )
    assert rows == [(Thoughts("I greet."), ToolCall("c1", "roll", "{}")), (Text("Said aloud."),)]


def test_the_agents_model_is_known_by_its_handle_and_other_models_stay_what_they_are() -> None:
    given = [read_message({"id": "message-0", "role": "assistant", "model": model}) for model in ("mini", "x", None)]
    reader = MessageReader(THEIRS, given)
    assert [reader.row(each).model for each in given] == ["acme/mini", "x", None]


def test_ids_of_the_file_mean_nothing_in_a_row_and_other_ids_stay() -> None:
    fields = {"id": "message-0", "role": "user", "content": "hi", "otid": "o", "name": "Ada"}
    outside = "agent-123e4567-e89b-42d3-8456-426614174000"
    given = read_message({**fields, "group_id": "group-0", "sender_id": outside})
    row = MessageReader(THEIRS, [given]).row(given)
    assert (row.group_id, row.sender_id, row.otid, row.name, row.created_us) == (None, outside, "o", "Ada", NOW_US)


@pytest.mark.parametrize("wrong", [{"role": 1}, {"role": "user", "content": 5}, {"role": "user", "tool_calls": "x"}])
def test_a_message_of_another_shape_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="Expected"):
        read_message({"id": "message-0", **wrong})

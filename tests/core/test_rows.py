"""The rows that a run leaves behind."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import ids
from holdfast.core import transitions
from holdfast.core.deltas import Reply
from holdfast.core.events import JudgedCall
from holdfast.core.hold import HeldCall, Hold
from holdfast.core.messages import ClientReturn, Deny, Parts, Reasoning, Text, ToolCall, ToolReturn, text_of
from holdfast.core.model_history import HIDDEN_FROM_USER
from holdfast.core.records import StopReason
from holdfast.core.run import CallStatus, OpenCall

from .machine import call, judged, spec

ORIGIN = transitions.Origin("run-1", "step-1", "holdfast/offline", 1_790_000_000_000_000)
SAID = (Reasoning("hm"), Text("words"))


def written(*calls: JudgedCall, spoken: Parts = SAID) -> list[tuple[str, str, Parts]]:
    made = transitions.reply_rows(ORIGIN, "message-r", "message-h", spoken, calls)
    assert all((row.run_id, row.step_id, row.model) == ("run-1", "step-1", "holdfast/offline") for row in made)
    return [(row.id, row.role, row.parts) for row in made]


def test_an_answer_is_one_assistant_row() -> None:
    assert written() == [("message-r", "assistant", SAID)]


def test_an_empty_reply_leaves_no_row() -> None:
    assert written(spoken=()) == []


def test_calls_stand_in_the_row_of_the_text() -> None:
    assert written(judged("note"), judged("unknown", "refused")) == [
        ("message-r", "assistant", (*SAID, call("note"), call("unknown")))
    ]


def test_calls_alone_make_a_row_too() -> None:
    assert written(judged("note"), spoken=()) == [("message-r", "assistant", (call("note"),))]


def test_a_reply_that_only_asks_is_one_approval_request_with_its_text() -> None:
    assert written(judged("guarded", "held")) == [("message-r", "approval", (*SAID, call("guarded")))]


def test_a_mixed_reply_is_an_assistant_row_and_then_an_approval_request() -> None:
    asked = [judged("guarded", "held", "c1"), judged("note"), judged("guarded", "held", "c3")]
    assert written(*asked) == [
        ("message-r", "assistant", (*SAID, call("note"))),
        ("message-h", "approval", (call("guarded", "c1"), call("guarded", "c3"))),
    ]


def test_of_a_reply_that_was_cut_off_only_what_it_said_is_kept() -> None:
    cut_off = Reply((*SAID, ToolCall("c", "note", '{"ha')), None, None)
    (kept,) = transitions.partial_rows(ORIGIN, "message-r", cut_off, spec())
    assert (kept.id, kept.role, kept.parts) == ("message-r", "assistant", SAID)
    assert transitions.partial_rows(ORIGIN, "message-r", Reply((ToolCall("c", "note", ""),), None, None), spec()) == []


def test_all_returns_of_a_step_share_a_row_in_the_order_of_its_calls() -> None:
    first, second = ToolReturn("c1", "note", "success", "a"), ToolReturn("c2", "lookup", "success", "b")
    row = transitions.tool_row(ORIGIN, "message-t", [second], [first], {"c1": 0, "c2": 1, "c3": 2})
    assert row.parts == (first, second)
    assert row.name == "note"
    assert row.role == "tool"


def test_a_tool_row_without_returns_has_no_name() -> None:
    assert transitions.tool_row(ORIGIN, "message-t", [], [], {"c1": 0}).name is None


def test_a_cancelled_hold_is_answered_by_denials_of_what_it_asked() -> None:
    hold = Hold("m", "step-1", (HeldCall(call("guarded"), asks=True), HeldCall(call("note"), asks=False)))
    row = transitions.denial_row(ORIGIN, "message-d", hold)
    assert row.parts == (Deny("c-guarded", "The user cancelled the request, so the tool call was denied."),)
    assert row.role == "approval"
    assert not row.is_approval_request


def test_every_call_of_a_cancelled_hold_is_told_of_the_denial() -> None:
    told = transitions.withdrawal(OpenCall(call("note"), "allowed"))
    assert told == ToolReturn(
        "c-note",
        "note",
        "error",
        "Error: request to call tool denied. User reason: The user cancelled the request, so the tool call was denied.",
    )


def test_a_heartbeat_is_a_user_turn_that_no_user_wrote() -> None:
    row_id = ids.derive("message", "heartbeat")
    row = transitions.heartbeat_row(ORIGIN, row_id, transitions.required_tools_reason(["note", "finish"]), "UTC")
    packed = msgspec.json.decode(text_of(row.parts))
    assert (row.role, row.model, packed["type"]) == ("user", None, "heartbeat")
    assert packed["reason"] == (
        f"{HIDDEN_FROM_USER} ToolRuleViolated: You must call note, finish at least once to exit the loop."
    )
    assert row.otid == ids.part_otid(row_id, 0)


def test_a_denial_without_a_reason_does_not_make_one_up() -> None:
    assert transitions.denial_text(None) == "Error: request to call tool denied."
    assert transitions.denial_text("no") == "Error: request to call tool denied. User reason: no"


@pytest.mark.parametrize(
    ("status", "ending", "text"),
    [
        ("refused", None, "no such tool"),
        ("refused", "cancelled", "no such tool"),
        ("denied", None, "Error: request to call tool denied. User reason: no such tool"),
        ("started", "cancelled", transitions.CUT_OFF),
        ("started", "error", transitions.OUTCOME_UNKNOWN),
        ("started", None, transitions.OUTCOME_UNKNOWN),
        ("allowed", "cancelled", transitions.NOT_RUN),
        ("held", "cancelled", transitions.NOT_RUN),
        ("allowed", None, "Tool not found"),
        ("allowed", "error", transitions.NOT_RUN_AFTER_FAILURE),
        ("answered", "cancelled", transitions.NOT_RUN),
    ],
)
def test_a_call_that_is_not_run_to_its_end_hears_why(status: CallStatus, ending: StopReason | None, text: str) -> None:
    told = transitions.settlement(OpenCall(call("note"), status, "no such tool"), ending, {})
    assert told == ToolReturn("c-note", "note", "error", text)


def test_a_refused_call_without_a_note_is_told_that_it_was_refused() -> None:
    assert transitions.settlement(OpenCall(call("note"), "refused"), None, {}).content == "Error: the call was refused."


def test_a_client_return_is_used_as_it_was_sent_even_when_the_run_is_ending() -> None:
    answer = ClientReturn("c-camera", (Text("snap"),), "error", ("out",), ("err",))
    endings: tuple[StopReason | None, ...] = (None, "cancelled")
    for ending in endings:
        told = transitions.settlement(OpenCall(call("camera"), "answered"), ending, {"c-camera": answer})
        assert told == ToolReturn("c-camera", "camera", "error", (Text("snap"),), ("out",), ("err",))

"""Answers to a hold: accepted only when they answer exactly what was asked."""

from __future__ import annotations

import pytest

from holdfast.core.hold import HeldCall, Hold, answers_same_calls, check_answer, client_answers, cut_answer
from holdfast.core.messages import Approve, ClientReturn, Decision, Deny
from holdfast.errors import Conflict, Invalid

from .machine import call

VERSIONS = {"guarded": 3, "note": 1}
HOLD = Hold(
    "message-request",
    "step-1",
    (
        HeldCall(call("guarded", "c1"), asks=True, version=3),
        HeldCall(call("note", "c2"), asks=False, version=1),
        HeldCall(call("camera", "c3"), asks=True, client=True),
    ),
)
ALONE = Hold("message-request", "step-1", HOLD.calls[:1])


def test_only_the_calls_that_ask_are_to_be_answered() -> None:
    assert HOLD.asked_ids == ("c1", "c3")


def test_an_answer_is_put_in_the_order_of_the_calls() -> None:
    camera, approval = ClientReturn("c3", "snap"), Approve("c1")
    assert check_answer(HOLD, [camera, approval], VERSIONS) == (approval, camera)


@pytest.mark.parametrize(
    "decisions",
    [
        [Approve("c1")],
        [Approve("c1"), ClientReturn("c3", ""), Approve("c2")],
        [Approve("c1"), ClientReturn("c4", "")],
        [Approve("c1"), Approve("c1"), ClientReturn("c3", "")],
    ],
    ids=["missing", "sibling", "unknown", "twice"],
)
def test_an_answer_to_other_calls_than_were_asked_for_is_refused(decisions: list[Decision]) -> None:
    with pytest.raises(Invalid, match=r"Invalid tool call IDs. Expected '\['c1', 'c3'\]'"):
        check_answer(HOLD, decisions, VERSIONS)


def test_an_answer_that_decides_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="does not contain any approvals"):
        check_answer(HOLD, [], VERSIONS)


def test_the_request_may_stand_for_its_only_call() -> None:
    assert check_answer(ALONE, [Approve("message-request", "fine")], VERSIONS) == (Approve("c1", "fine"),)
    with pytest.raises(Invalid, match="Invalid tool call IDs"):
        check_answer(HOLD, [Approve("message-request")], VERSIONS)


def test_a_client_tool_cannot_be_approved_but_it_can_be_denied() -> None:
    with pytest.raises(Invalid, match="must be answered with a tool return"):
        check_answer(HOLD, [Approve("c1"), Approve("c3")], VERSIONS)
    assert check_answer(HOLD, [Approve("c1"), Deny("c3")], VERSIONS) == (Approve("c1"), Deny("c3"))


def test_a_server_tool_may_be_answered_by_the_client() -> None:
    answers = (ClientReturn("c1", "done elsewhere"), ClientReturn("c3", "snap"))
    assert check_answer(HOLD, answers, VERSIONS) == answers


def test_a_tool_that_was_changed_since_it_was_asked_for_cannot_be_approved_only_denied() -> None:
    changed = {"guarded": 4}
    with pytest.raises(Conflict, match="was changed after approval was asked"):
        check_answer(ALONE, [Approve("c1")], changed)
    assert check_answer(ALONE, [Deny("c1", "no")], changed) == (Deny("c1", "no"),)


def test_a_tool_that_was_detached_meanwhile_can_be_approved_and_will_not_be_found() -> None:
    assert check_answer(ALONE, [Approve("c1")], {}) == (Approve("c1"),)


def test_the_same_answer_sent_again_is_recognised_whatever_it_decides() -> None:
    assert answers_same_calls(HOLD, [Approve("c1"), Deny("c3")])
    assert answers_same_calls(ALONE, [Approve("message-request")])
    assert not answers_same_calls(HOLD, [Approve("c1")])
    assert not answers_same_calls(HOLD, [Approve("c1"), Approve("c2"), Approve("c3")])


def test_client_answers_are_found_by_call() -> None:
    camera = ClientReturn("c3", "snap")
    assert client_answers([Approve("c1"), camera]) == {"c3": camera}


def test_a_clients_return_is_cut_to_what_a_model_would_be_shown_and_other_answers_are_left_alone() -> None:
    cut = cut_answer(ClientReturn("c3", "x" * 20), 10)
    assert isinstance(cut, ClientReturn)
    assert str(cut.content).startswith("x" * 10 + "... [truncated 10 chars]")
    assert cut_answer(Deny("c1", "x" * 20), 10) == Deny("c1", "x" * 20)

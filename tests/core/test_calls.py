"""What becomes of a model's calls before any of them runs, and of held ones once they are decided."""

from __future__ import annotations

import json

import pytest

from holdfast.core.calls import Calls, OpenCall, judge, resume
from holdfast.core.events import JudgedCall
from holdfast.core.hold import HeldCall, Hold, ToolIdentity
from holdfast.core.messages import Approve, ClientReturn, Deny, ToolCall
from holdfast.core.run import apply
from holdfast.core.spec import RunSpec, ToolSpec
from holdfast.core.tool_rules import Choice, RunFirst, choose

from .machine import after, call, judged, replied, returned, spec, started_tools

MANY = 5_000


def test_a_return_copies_none_of_the_other_calls_of_its_step() -> None:
    before = after(replied(judged("note", call_id="c-a"), judged("note", call_id="c-b")), started_tools("a", "b"))
    then = apply(before, returned("a"))
    assert then.calls.made is before.calls.made
    assert then.calls.places is before.calls.places


def test_the_returns_of_thousands_of_calls_are_folded_one_by_one() -> None:
    names = [str(number) for number in range(MANY)]
    state = after(replied(*(judged("note", call_id=f"c-{name}") for name in names)), started_tools(*names))
    for name in reversed(names):
        assert state.calls.any_running
        state = apply(state, returned(name))
    assert state.calls.all_returned
    assert not state.calls.any_running
    assert len(state.history) == MANY


def test_a_call_is_shown_as_it_is_now() -> None:
    made = Calls.of([OpenCall(call("note", name), "allowed", note=name) for name in "abc"])
    now = made.start(["a", "b"]).take_return("a", ran=True)
    assert [(each.call.id, each.status, each.ran) for each in now] == [
        ("a", "returned", True),
        ("b", "started", False),
        ("c", "allowed", False),
    ]
    assert [each.call.id for each in now.still_open] == ["b", "c"]
    assert now.find_open("a") is None
    assert now.find_open("nobody") is None
    assert [each.status for each in made] == ["allowed"] * 3, "an earlier state stays as it was"


GUARDED = ToolIdentity("tool-guarded", 1, "f00d")
EVERYTHING = Choice(("note", "lookup", "remember", "guarded", "camera", "finish"), forced=False)


def judge_one(given: ToolCall, choice: Choice = EVERYTHING, rules: RunSpec | None = None) -> JudgedCall:
    (verdict,) = judge(rules or spec(), choice, [given], parallel=True)
    return verdict


def test_an_ordinary_call_is_allowed() -> None:
    assert judge_one(call("note")) == judged("note")


def test_a_call_to_a_guarded_tool_or_a_client_tool_is_held() -> None:
    assert judge_one(call("guarded")).verdict == "held"
    assert judge_one(call("camera")).verdict == "held"


def test_an_unknown_tool_is_refused_with_the_names_of_those_there_are() -> None:
    refused = judge_one(call("explode"))
    assert refused.verdict == "refused"
    assert refused.note is not None
    assert refused.note.startswith("[ToolConstraintError] Cannot call explode, valid tools include: ['note', 'lookup',")


def test_a_tool_that_the_rules_forbid_now_is_refused_with_the_rules() -> None:
    rules = spec(RunFirst(tool_name="note"))
    choice = choose(rules.rules, rules.tool_names, ())
    refused = judge_one(call("lookup"), choice, rules)
    assert refused.verdict == "refused"
    assert refused.note is not None
    assert "valid tools include: ['note']" in refused.note
    assert "note must be the first tool you call" in refused.note


def test_a_guarded_tool_that_the_rules_forbid_is_refused_without_asking_anybody() -> None:
    assert judge_one(call("guarded"), Choice(("note",), forced=True)).verdict == "refused"


def test_arguments_that_are_not_json_are_refused_and_never_guessed() -> None:
    refused = judge_one(ToolCall("c1", "guarded", '{"broken'))
    assert refused.verdict == "refused"
    assert refused.call.arguments == '{"broken'
    assert refused.note is not None
    assert "not valid JSON" in refused.note


def test_arguments_are_stored_as_they_will_be_executed() -> None:
    cleaned = judge_one(ToolCall("c1", "note", ' {"x": 1, "request_heartbeat": true} '))
    assert json.loads(cleaned.call.arguments) == {"x": 1}


def test_prefilled_arguments_are_part_of_the_stored_call() -> None:
    parameters = {"type": "object", "properties": {"colour": {"type": "string"}}}
    tool = ToolSpec(name="paint", description="", parameters=parameters, effect="once")
    rules = RunSpec(agent_id="a", thread_id="a", model=spec().model, tools=(tool,))
    choice = Choice(("paint",), forced=True, prefilled={"paint": {"colour": "red"}})
    assert judge_one(ToolCall("c1", "paint", '{"colour":"blue"}'), choice, rules).call.arguments == '{"colour":"red"}'


def test_a_prefilled_argument_that_the_tool_cannot_take_is_fatal() -> None:
    choice = Choice(("note",), forced=True, prefilled={"note": {"colour": "red"}})
    fatal = judge_one(call("note"), choice)
    assert fatal.verdict == "fatal"
    assert fatal.note is not None
    assert fatal.note.startswith("Invalid prefilled tool arguments from tool rules")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_arguments_with_numbers_that_json_does_not_have_are_refused_and_not_read_as_null(number: str) -> None:
    refused = judge_one(ToolCall("c1", "guarded", f'{{"m": {number}}}'))
    assert refused.verdict == "refused"
    assert refused.note is not None
    assert f"{number} is not a finite number" in refused.note


def test_without_parallel_calls_only_the_first_is_kept() -> None:
    calls = [call("note"), call("lookup")]
    assert judge(spec(), EVERYTHING, calls, parallel=False) == (judged("note"),)
    assert judge(spec(), EVERYTHING, calls, parallel=True) == (judged("note"), judged("lookup"))
    assert judge(spec(), EVERYTHING, [], parallel=False) == ()


def test_of_calls_with_one_id_the_first_is_kept_in_its_place() -> None:
    calls = [call("note", "c1"), call("lookup", "c2"), call("finish", "c1")]
    kept = judge(spec(), EVERYTHING, calls, parallel=True)
    assert [(each.call.id, each.call.name) for each in kept] == [("c1", "note"), ("c2", "lookup")]


def test_a_decided_hold_becomes_the_calls_that_the_next_run_begins_with() -> None:
    hold = Hold(
        "message-request",
        "step-1",
        (
            HeldCall(call("guarded", "c1"), asks=True, tool=GUARDED),
            HeldCall(call("note", "c2"), asks=False),
            HeldCall(call("guarded", "c3"), asks=True),
            HeldCall(call("camera", "c4"), asks=True, client=True),
            HeldCall(call("unknown", "c5"), asks=False, note="no such tool"),
        ),
    )
    decisions = (Approve("c1"), Deny("c3", "too dear"), ClientReturn("c4", "snap"))
    assert resume(hold, decisions) == (
        JudgedCall(call("guarded", "c1"), "allowed", approved=GUARDED),
        judged("note", "allowed", "c2"),
        judged("guarded", "denied", "c3", "too dear"),
        judged("camera", "answered", "c4"),
        judged("unknown", "refused", "c5", "no such tool"),
    )

"""Answers to a hold: accepted only when they answer exactly what was asked, of the very tool that was asked about."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.hold import (
    HeldCall,
    Hold,
    ToolIdentity,
    answers_same_calls,
    changed_secrets,
    check_answer,
    client_answers,
    cut_answer,
    fingerprint,
    identity_of,
    run_names,
)
from holdfast.core.messages import Approve, ClientReturn, Decision, Deny
from holdfast.core.records import Tool
from holdfast.errors import Conflict, Invalid

from .machine import call

GUARDED = ToolIdentity("tool-guarded", 3, "f00d")
TOOLS = {"guarded": GUARDED, "note": ToolIdentity("tool-note", 1, "cafe")}
HOLD = Hold(
    "message-request",
    "step-1",
    (
        HeldCall(call("guarded", "c1"), asks=True, version=3, tool=GUARDED),
        HeldCall(call("note", "c2"), asks=False, version=1),
        HeldCall(call("camera", "c3"), asks=True, client=True),
    ),
)
ALONE = Hold("message-request", "step-1", HOLD.calls[:1])
STORED_EARLIER = Hold("message-request", "step-1", (HeldCall(call("guarded", "c1"), asks=True, version=3),))


def test_only_the_calls_that_ask_are_to_be_answered() -> None:
    assert HOLD.asked_ids == ("c1", "c3")


def test_an_answer_is_put_in_the_order_of_the_calls() -> None:
    camera, approval = ClientReturn("c3", "snap"), Approve("c1")
    assert check_answer(HOLD, [camera, approval], TOOLS) == (approval, camera)


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
        check_answer(HOLD, decisions, TOOLS)


def test_an_answer_that_decides_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="does not contain any approvals"):
        check_answer(HOLD, [], TOOLS)


def test_the_request_may_stand_for_its_only_call() -> None:
    assert check_answer(ALONE, [Approve("message-request", "fine")], TOOLS) == (Approve("c1", "fine"),)
    with pytest.raises(Invalid, match="Invalid tool call IDs"):
        check_answer(HOLD, [Approve("message-request")], TOOLS)


def test_a_client_tool_cannot_be_approved_but_it_can_be_denied() -> None:
    with pytest.raises(Invalid, match="must be answered with a tool return"):
        check_answer(HOLD, [Approve("c1"), Approve("c3")], TOOLS)
    assert check_answer(HOLD, [Approve("c1"), Deny("c3")], TOOLS) == (Approve("c1"), Deny("c3"))


def test_a_server_tool_may_be_answered_by_the_client() -> None:
    answers = (ClientReturn("c1", "done elsewhere"), ClientReturn("c3", "snap"))
    assert check_answer(HOLD, answers, TOOLS) == answers


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (ToolIdentity("tool-guarded", 4, "f00d"), "was changed after approval was asked"),
        (ToolIdentity("tool-guarded", 3, "beef"), "was changed after approval was asked"),
        (ToolIdentity("tool-other", 3, "f00d"), "belongs to another tool"),
    ],
    ids=["version", "fingerprint", "id"],
)
def test_a_tool_that_was_changed_since_it_was_asked_for_cannot_be_approved_only_denied(
    changed: ToolIdentity, sentence: str
) -> None:
    tools = {"guarded": changed}
    with pytest.raises(Conflict, match=sentence):
        check_answer(ALONE, [Approve("c1")], tools)
    assert check_answer(ALONE, [Deny("c1", "no")], tools) == (Deny("c1", "no"),)
    answered = (ClientReturn("c1", "done elsewhere"),)
    assert check_answer(ALONE, answered, tools) == answered


def test_a_tool_that_was_gone_when_it_was_asked_for_cannot_be_approved() -> None:
    gone = msgspec.structs.replace(ALONE.calls[0], tool=ToolIdentity("tool-guarded", 3, None))
    with pytest.raises(Conflict, match="was changed after approval was asked"):
        check_answer(Hold("message-request", "step-1", (gone,)), [Approve("c1")], TOOLS)


def test_a_hold_of_an_earlier_version_is_held_to_the_version_of_its_tool() -> None:
    assert check_answer(STORED_EARLIER, [Approve("c1")], TOOLS) == (Approve("c1"),)
    with pytest.raises(Conflict, match="was changed after approval was asked"):
        check_answer(STORED_EARLIER, [Approve("c1")], {"guarded": ToolIdentity("tool-guarded", 4, "f00d")})


def test_a_hold_of_an_earlier_version_can_be_read_and_tells_of_no_changed_secrets() -> None:
    stored = (
        b'{"request_id":"message-request","step_id":"step-1","calls":'
        b'[{"call":{"id":"c1","name":"guarded","arguments":"{}"},"asks":true,"version":3}]}'
    )
    read = msgspec.json.decode(stored, type=Hold)
    assert (read.calls[0].version, read.calls[0].tool, read.secrets) == (3, None, None)
    assert changed_secrets(read, {"TARGET": "agent-env-1"}) == []


def test_changed_added_and_removed_secrets_are_told_and_those_that_stayed_are_not() -> None:
    hold = msgspec.structs.replace(ALONE, secrets={"CHANGED": "1", "GONE": "2", "SAME": "3"})
    assert changed_secrets(hold, {"SAME": "3", "CHANGED": "4", "NEW": "5"}) == ["CHANGED", "GONE", "NEW"]


def test_an_answer_lets_run_what_it_approves_and_siblings_that_ask_for_nothing() -> None:
    assert run_names(HOLD, [Approve("c1"), ClientReturn("c3", "snap")]) == {"guarded", "note"}
    assert run_names(HOLD, [Deny("c1"), Deny("c3")]) == {"note"}


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


TOOL = Tool(
    id="tool-1",
    name="pay",
    tool_type="custom",
    description="Pays.",
    json_schema={"name": "pay", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
    source_code="def pay(a, b): ...",
    tags=("money", "urgent"),
)


def changed(**fields: Any) -> str:
    return fingerprint(msgspec.structs.replace(TOOL, **fields), ("TOKEN",))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "pay2"},
        {"tool_type": "letta_core"},
        {"description": "Plays."},
        {"json_schema": {"name": "pay"}},
        {"source_code": "def pay(a, b): pass"},
        {"source_type": "typescript"},
        {"args_json_schema": {"type": "object"}},
        {"tags": ("money", "urgent", "retry-safe")},
        {"pip_requirements": [{"name": "requests"}]},
        {"npm_requirements": [{"name": "left-pad"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_whatever_decides_what_runs_or_what_is_shown_changes_the_fingerprint(fields: dict[str, Any]) -> None:
    assert changed(**fields) != changed()


@pytest.mark.parametrize(
    "fields",
    [
        {"tags": ("urgent", "money")},
        {"json_schema": {"parameters": {"properties": {"b": {}, "a": {}}, "type": "object"}, "name": "pay"}},
        {"pip_requirements": []},
        {"return_char_limit": 1},
        {"default_requires_approval": True},
        {"enable_parallel_execution": True},
        {"metadata": {"owner": "ada"}},
        {"updated_us": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_order_and_what_changes_neither_leave_the_fingerprint_as_it_is(fields: dict[str, Any]) -> None:
    assert changed(**fields) == changed()


def test_the_names_of_the_secrets_that_a_tool_gets_are_part_of_its_fingerprint() -> None:
    assert fingerprint(TOOL, ("A", "B")) == fingerprint(TOOL, ("B", "A")) != fingerprint(TOOL, ("A",))


def test_a_built_in_tool_gets_no_secrets_so_their_names_do_not_matter() -> None:
    built_in = msgspec.structs.replace(TOOL, tool_type="letta_core")
    assert fingerprint(built_in, ("A",)) == fingerprint(built_in, ())


def test_tools_of_equal_content_are_told_apart_by_their_ids() -> None:
    again = msgspec.structs.replace(TOOL, id="tool-2")
    assert identity_of(again, ()) != identity_of(TOOL, ())
    assert identity_of(again, ()).fingerprint == identity_of(TOOL, ()).fingerprint


def test_the_fingerprint_that_is_stored_with_a_hold_stays_the_same_between_releases() -> None:
    """A change here makes every approval that waits at an upgrade a 409."""
    assert fingerprint(TOOL, ("TOKEN",)) == "f07f697560e7c9f92a7fa894b235b1fb5d658e5b7376a5aa772ea0574d56aa38"


@pytest.mark.parametrize("name", ["run_code", "run_code_with_tools"])
def test_what_a_program_may_call_is_part_of_the_fingerprint_of_the_tool_that_runs_it(name: str) -> None:
    runner = msgspec.structs.replace(TOOL, id="tool-3", name=name, tool_type="letta_builtin")
    edited = msgspec.structs.replace(TOOL, source_code="def pay(a, b): pass")
    other = msgspec.structs.replace(TOOL, id="tool-4", name="other")
    assert (
        fingerprint(runner, (), [runner, TOOL]) == fingerprint(runner, (), [TOOL]) != fingerprint(runner, (), [edited])
    )
    assert fingerprint(runner, (), [TOOL, other]) == fingerprint(runner, (), [other, TOOL]) != fingerprint(runner, ())
    assert fingerprint(runner, ("A",), [TOOL]) != fingerprint(runner, (), [TOOL])
    assert fingerprint(TOOL, (), [other]) == fingerprint(TOOL, ())
    assert identity_of(runner, (), [TOOL]).fingerprint == fingerprint(runner, (), [TOOL])


def test_a_tool_of_an_mcp_server_is_bound_to_the_server_and_not_to_its_name() -> None:
    of_server = msgspec.structs.replace(
        TOOL, tool_type="external_mcp", mcp_server_id="mcp_server-1", mcp_name="pay", tags=("mcp:harbour",)
    )
    elsewhere = msgspec.structs.replace(of_server, mcp_server_id="mcp_server-2")
    renamed = msgspec.structs.replace(of_server, tags=("mcp:port",))
    repeatable = msgspec.structs.replace(of_server, tags=("mcp:harbour", "retry-safe"))
    assert fingerprint(of_server, ()) == fingerprint(renamed, ()) != fingerprint(elsewhere, ())
    assert fingerprint(of_server, ()) != fingerprint(repeatable, ())
    assert fingerprint(of_server, ("KEY",)) != fingerprint(of_server, ())

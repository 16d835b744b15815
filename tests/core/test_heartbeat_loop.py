"""Agents that speak through a tool: what their models are shown, what becomes of a call, and whether a run goes on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from holdfast.core import heartbeat_loop
from holdfast.core.arguments import ArgumentStream
from holdfast.core.calls import judge, resume
from holdfast.core.deltas import Reply
from holdfast.core.events import JudgedCall, ModelReplied, ToolReturned
from holdfast.core.hold import HeldCall, Hold
from holdfast.core.messages import (
    Approve,
    ClientReturn,
    Message,
    OmittedReasoning,
    Reasoning,
    Status,
    Text,
    Thoughts,
    ToolCall,
    ToolReturn,
)
from holdfast.core.model_history import HistoryBuilder, HistoryKey
from holdfast.core.records import StopReason
from holdfast.core.run import CallModel, Done, Phase, RunState, apply, plan
from holdfast.core.spec import (
    HeartbeatLoop,
    RunSpec,
    Speaking,
    only_confirms_speech,
    speaking_in,
    spoken_text,
    visible_text,
)
from holdfast.core.tool_rules import Children, Choice, Conditional, ContinueLoop, ExitLoop, RequiredBeforeExit, Rule
from holdfast.core.usage import Usage
from holdfast.errors import ToolFailed

from .machine import after, judged, resumed, spec, started_tools

LOOP = HeartbeatLoop(thinking=True, speaking=Speaking())
EVERYTHING = Choice(("note", "lookup", "remember", "guarded", "camera", "finish"), forced=True)


def looping(*rules: Rule, **fields: Any) -> RunSpec:
    return spec(*rules, heartbeats=LOOP, **fields)


def made(name: str, *, heartbeat: bool | None = None, **arguments: Any) -> ToolCall:
    flag = {} if heartbeat is None else {"request_heartbeat": heartbeat}
    return ToolCall(f"c-{name}", name, json.dumps({**arguments, **flag}))


def judge_one(given: RunSpec, call: ToolCall) -> JudgedCall:
    (verdict,) = judge(given, EVERYTHING, [call], parallel=False)
    return verdict


def one_call(given: RunSpec, call: ToolCall, status: Status = "success") -> RunState:
    """A run whose model made this call, and it came back."""
    verdict = judge_one(given, call)
    state = after(ModelReplied("message-out", (verdict,), "tool_calls", Usage(9, 1)), given=given)
    if verdict.verdict == "allowed":
        state = apply(state, started_tools(call.name))
    return apply(state, ToolReturned(call.id, status, "fine"))


# --- what a model is shown -------------------------------------------------------------------------------------------


def test_thinking_comes_first_and_the_heartbeat_last_and_both_are_required() -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    shown = heartbeat_loop.with_arguments(parameters, thinking=True, heartbeat=True)
    assert list(shown["properties"]) == ["thinking", "x", "request_heartbeat"]
    assert shown["required"] == ["thinking", "x", "request_heartbeat"]
    assert parameters["required"] == ["x"], "the tool's own schema stays as it is"


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_tool_that_brings_such_arguments_itself_is_asked_for_them_once(heartbeat: bool) -> None:
    names = ["request_heartbeat", "x", "thinking"]
    parameters = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    shown = heartbeat_loop.with_arguments(parameters, thinking=True, heartbeat=heartbeat)
    expected = ["thinking", "x", *(["request_heartbeat"] if heartbeat else [])]
    assert list(shown["properties"]) == expected
    assert shown["required"] == expected


def test_a_model_that_reasons_and_a_tool_that_ends_the_turn_get_neither() -> None:
    assert heartbeat_loop.with_arguments({"type": "object"}, thinking=False, heartbeat=False) == {
        "type": "object",
        "properties": {},
        "required": [],
    }


@pytest.mark.parametrize(
    ("wanted", "shape"),
    [
        ({"type": "json_object"}, {"type": "object", "additionalProperties": True, "properties": {}}),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_schema", "json_schema": {"type": "array"}}, {"type": "array"}),
        ({"type": "text"}, {"type": "string"}),
    ],
)
def test_the_shape_of_answers_is_that_of_the_message(wanted: dict[str, Any], shape: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"message": {"type": "string", "description": "What to say."}}}
    shown = heartbeat_loop.with_shaped_message(parameters, wanted)["properties"]["message"]
    assert shown == {"description": "What to say."} | shape


def test_what_a_shape_refers_to_is_found_at_the_root() -> None:
    parameters = {"type": "object", "properties": {"message": {"type": "string"}}, "$defs": {"A": {"type": "null"}}}
    shape = {"$ref": "#/$defs/B", "$defs": {"B": {"type": "array"}}, "definitions": 5}
    shown = heartbeat_loop.with_shaped_message(parameters, {"type": "json_schema", "json_schema": {"schema": shape}})
    assert shown["$defs"] == {"A": {"type": "null"}, "B": {"type": "array"}}
    assert shown["properties"]["message"] == {"description": "", "$ref": "#/$defs/B", "definitions": 5}


@pytest.mark.parametrize(
    ("written", "expected"),
    [('{"a": 1}', '{"a":1}'), ("5", "5"), ("null", ""), ("[1 2]", ""), ('"so"', "so")],
)
def test_thoughts_are_read_while_they_are_written_or_when_they_are_whole(written: str, expected: str) -> None:
    stream, reader = ArgumentStream(), heartbeat_loop.ThoughtReader()
    text = f'{{"thinking": {written}, "x": 1}}'
    pieces = [piece for character in text for piece in stream.feed(character) if piece.name == "thinking"]
    assert "".join(map(reader.read, pieces)) == expected


def test_the_flag_of_the_last_step_says_that_there_is_no_other() -> None:
    note = ToolCall("c", "note", '{"request_heartbeat": true}')
    (going_on,) = judge(looping(), EVERYTHING, [note], parallel=False)
    (last,) = judge(looping(), EVERYTHING, [note], parallel=False, is_last_step=True)
    assert (going_on.call.arguments, going_on.heartbeat) == ('{"request_heartbeat":true}', True)
    assert (last.call.arguments, last.heartbeat) == ('{"request_heartbeat":false}', True)


def test_one_call_is_required_and_no_more_than_one() -> None:
    intent = plan(after(given=looping()))
    assert isinstance(intent, CallModel)
    assert intent.choice.forced
    assert not intent.parallel
    assert not plan_without_tools().choice.forced


def plan_without_tools() -> CallModel:
    intent = plan(after(given=msgspec.structs.replace(looping(), tools=())))
    assert isinstance(intent, CallModel)
    return intent


# --- what is kept of a reply -----------------------------------------------------------------------------------------


def test_thoughts_leave_the_arguments_and_the_flag_says_what_the_loop_makes_of_it() -> None:
    kept = judge_one(looping(ContinueLoop(tool_name="note")), made("note", thinking="hm", x="ü\0"))
    assert kept.call.arguments == '{"x":"ü\\u0000","request_heartbeat":true}'
    assert not kept.heartbeat, "the model did not ask for it"


@pytest.mark.parametrize(
    ("written", "meant"), [(True, True), ("true", True), (" TRUE ", True), ("no", False), (0, False)]
)
def test_a_heartbeat_may_be_written_as_text(written: object, meant: bool) -> None:
    assert heartbeat_loop.heartbeat_arguments(json.dumps({"request_heartbeat": written})).heartbeat is meant


def test_thoughts_that_are_not_a_text_are_kept_as_json() -> None:
    assert heartbeat_loop.heartbeat_arguments('{"thinking": ["a", 1]}').thoughts == '["a",1]'


def test_arguments_that_cannot_be_read_are_refused_as_they_are_and_the_model_goes_on() -> None:
    broken = ToolCall("c-note", "note", '{"x": "cut')
    assert judge_one(looping(), broken).call == broken
    state = one_call(looping(), broken, "error")
    assert (state.phase, state.heartbeat) == (Phase.THINKING, "Continuing: tool rule violation.")


def test_a_call_that_asks_for_approval_keeps_what_the_model_asked_for() -> None:
    held = judge_one(looping(ContinueLoop(tool_name="guarded")), made("guarded", heartbeat=False))
    assert (held.verdict, held.call.arguments) == ("held", '{"request_heartbeat":false}')


@pytest.mark.parametrize("decision", [Approve("c-note"), ClientReturn("c-note", "done")])
def test_a_decided_call_goes_on_as_it_asked_before(decision: Approve | ClientReturn) -> None:
    hold = Hold("message-1", "step-1", (HeldCall(made("note", heartbeat=True), asks=True, client=False, version=0),))
    (verdict,) = resume(hold, [decision])
    assert verdict.heartbeat


def test_text_is_thoughts_unless_the_model_was_given_an_argument_for_them() -> None:
    reply = Reply((Reasoning("r"), Text("aside"), made("note", thinking="hm")), "tool_calls", None)
    assert heartbeat_loop.reply_parts(LOOP, reply) == (Reasoning("r"), Thoughts("hm"))
    assert heartbeat_loop.reply_parts(HeartbeatLoop(), reply) == (Reasoning("r"), Thoughts("aside"))
    assert heartbeat_loop.reply_parts(LOOP, Reply((Text("aside"),), "length", None)) == ()
    assert heartbeat_loop.reply_parts(LOOP, Reply((ToolCall("c", "note", "{"),), "tool_calls", None)) == ()


def test_of_a_call_that_was_cut_off_its_thoughts_and_words_are_kept() -> None:
    begun = '{"thinking": "I greet", "message": "Hel\\u006c'
    reply = Reply((OmittedReasoning(), Text("aside"), ToolCall("c", "send_message", begun)), None, None)
    assert heartbeat_loop.partial_parts(looping(), LOOP, reply) == (
        OmittedReasoning(),
        Thoughts("I greet"),
        Text("Hell"),
    )
    silent = HeartbeatLoop(speaking=None)
    assert heartbeat_loop.partial_parts(looping(), silent, reply) == (OmittedReasoning(), Thoughts("aside"))
    assert heartbeat_loop.partial_parts(looping(), LOOP, Reply((), None, None)) == ()


def test_of_a_call_that_was_cut_off_no_words_are_kept_that_nobody_was_shown() -> None:
    before_thoughts = Reply((ToolCall("c", "send_message", '{"message": "one", "thinking": "I'),), None, None)
    assert heartbeat_loop.partial_parts(looping(), LOOP, before_thoughts) == (Thoughts("I"),)
    asks = HeartbeatLoop(speaking=Speaking("guarded", "message"))
    asking = Reply((ToolCall("c", "guarded", '{"message": "one'),), None, None)
    assert heartbeat_loop.partial_parts(looping(), asks, asking) == ()


def test_what_a_reader_sees_of_a_message_includes_the_words_of_send_message() -> None:
    row = Message(id="m", role="assistant", parts=(Thoughts("hm"), made("send_message", message="hi")), created_us=1)
    assert visible_text(row).strip() == "hi"


def test_a_return_confirms_words_only_if_they_were_shown() -> None:
    answer = ToolReturn("c", "send_message", "success", "Sent message successfully.")
    assert only_confirms_speech(answer, Speaking())
    assert not only_confirms_speech(answer, None)
    assert not only_confirms_speech(msgspec.structs.replace(answer, status="error"), Speaking())
    assert not only_confirms_speech(msgspec.structs.replace(answer, was_asked=True), Speaking())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"message": "hi"}', "hi"),
        ('{"message": {"a": 1}}', '{\n  "a": 1\n}'),
        ('{"other": 1}', None),
        ('{"message": null}', None),
        ("{", None),
    ],
)
def test_words_of_a_speaking_call(arguments: str, words: str | None) -> None:
    assert spoken_text(ToolCall("c", "send_message", arguments), Speaking()) == words
    assert spoken_text(ToolCall("c", "note", arguments), Speaking()) is None
    assert spoken_text(ToolCall("c", "send_message", arguments), None) is None


# --- whether a run goes on -------------------------------------------------------------------------------------------

GOES_ON = [
    ((), "note", True, "success", "Function called using request_heartbeat=true, returning control"),
    ((), "note", True, "error", "Function call failed, returning control"),
    ((ContinueLoop(tool_name="note"),), "note", False, "success", "Continuing: continue tool rule."),
    ((Children(tool_name="note", children=("lookup",)),), "note", False, "success", "Continuing: child tool rule."),
    (
        (Conditional(tool_name="note", child_output_mapping={"yes": "lookup"}),),
        "note",
        False,
        "success",
        "Continuing: child tool rule.",
    ),
    (
        (ExitLoop(tool_name="finish"), RequiredBeforeExit(tool_name="lookup")),
        "finish",
        True,
        "success",
        "Continuing, user expects these tools: [lookup] to be called still.",
    ),
    ((), "unknown", False, "error", "Continuing: tool rule violation."),
]


@pytest.mark.parametrize(("rules", "name", "asked", "status", "reason"), GOES_ON)
def test_it_goes_on_and_the_model_is_told_why(
    rules: tuple[Rule, ...], name: str, asked: bool, status: Status, reason: str
) -> None:
    given = looping(*rules)
    state = one_call(given, made(name, heartbeat=asked), status)
    assert (state.phase, state.heartbeat) == (Phase.THINKING, reason)
    stored = json.loads(judge_one(given, made(name, heartbeat=asked)).call.arguments)
    assert stored["request_heartbeat"] is True, "what is stored is what the loop decided"


@pytest.mark.parametrize(
    ("rules", "name", "asked", "stop_reason"),
    [
        ((), "note", False, "end_turn"),
        ((), "note", None, "end_turn"),
        ((ExitLoop(tool_name="finish"),), "finish", False, "end_turn"),
        ((ExitLoop(tool_name="finish"),), "finish", True, "tool_rule"),
        ((RequiredBeforeExit(tool_name="note"),), "note", False, "end_turn"),
    ],
)
def test_it_ends(rules: tuple[Rule, ...], name: str, asked: bool | None, stop_reason: StopReason) -> None:
    assert plan(one_call(looping(*rules), made(name, heartbeat=asked))) == Done(stop_reason)


def test_a_failed_call_that_asked_for_nothing_ends_the_turn() -> None:
    assert plan(one_call(looping(), made("note", heartbeat=False), "error")) == Done("end_turn")


def test_max_steps_is_the_reason_only_when_another_step_was_wanted() -> None:
    wanted = one_call(looping(max_steps=1), made("note", heartbeat=True))
    assert (plan(wanted), wanted.heartbeat) == (Done("max_steps"), None)
    assert plan(one_call(looping(max_steps=1), made("note", heartbeat=False))) == Done("end_turn")


def test_a_denied_call_goes_on_and_the_model_is_told_why() -> None:
    state = resumed(judged("guarded", "denied"), given=looping())
    state = apply(state, ToolReturned("c-guarded", "error", "no"))
    assert (state.phase, state.heartbeat) == (Phase.THINKING, "Continuing: user denied request to call tool.")


def test_messages_that_came_with_an_approval_are_answered_without_a_heartbeat() -> None:
    state = resumed(judged("guarded"), given=looping(), return_position=3)
    state = apply(apply(state, started_tools("guarded")), ToolReturned("c-guarded", "success", "done"))
    assert (state.phase, state.heartbeat) == (Phase.THINKING, None)


def test_the_reason_is_forgotten_with_the_next_reply() -> None:
    given = looping()
    state = one_call(given, made("note", heartbeat=True))
    verdict = judge_one(given, ToolCall("c-2", "note", "{}"))
    assert apply(state, ModelReplied("message-2", (verdict,), "tool_calls", Usage(9, 1))).heartbeat is None


# --- what a model is shown of earlier calls --------------------------------------------------------------------------


def told(call: ToolCall | None, *, thinking: bool) -> tuple[Any, ...]:
    parts = (Thoughts("hm"), call) if call else (Thoughts("hm"),)
    rows = [
        Message(id="m0", role="user", parts=(Text("go"),), created_us=1),
        Message(id="m1", role="assistant", parts=parts, created_us=2, model="holdfast/offline"),
    ]
    if call:
        answer = ToolReturn(call.id, call.name, "success", "done")
        rows.append(Message(id="m2", role="tool", parts=(answer,), created_us=3))
    turns = HistoryBuilder().build(rows, HistoryKey("holdfast/offline", 1_000, thinking=thinking)).turns
    return turns[1].parts


def test_thoughts_are_an_argument_again_where_calls_have_one() -> None:
    (shown,) = told(made("note", x=1), thinking=True)
    assert shown.arguments == '{"thinking":"hm","x":1}'


def test_thoughts_are_text_where_calls_have_no_argument_for_them() -> None:
    call = made("note", x=1)
    assert told(call, thinking=False) == (Text("hm"), call)
    assert told(None, thinking=True) == (Text("hm"),)


def test_thoughts_beside_arguments_that_nobody_can_read_are_text() -> None:
    broken = ToolCall("c", "note", "{")
    with pytest.raises(ToolFailed):
        heartbeat_loop.arguments_with_thoughts(broken.arguments, "hm")
    assert told(broken, thinking=True) == (Text("hm"), broken)


@pytest.mark.parametrize(
    ("config", "speaking"),
    [
        ({}, Speaking("send_message", "message")),
        ({"assistant_message_tool_name": None, "assistant_message_tool_kwarg": None}, Speaking()),
        ({"assistant_message_tool_name": "say", "assistant_message_tool_kwarg": "words"}, Speaking("say", "words")),
        ({"use_assistant_message": False, "assistant_message_tool_name": "say"}, None),
    ],
)
def test_a_request_may_name_the_tool_that_speaks(config: dict[str, Any], speaking: Speaking | None) -> None:
    assert speaking_in(config) == speaking

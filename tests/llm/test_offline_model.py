from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.core import compaction, model_history
from holdfast.core.deltas import CallDelta, Finish, ReasoningDelta, TextDelta, UsageDelta
from holdfast.core.messages import (
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.core.records import CompactionSettings
from holdfast.core.usage import Usage
from holdfast.llm.base import NamedTool
from holdfast.llm.offline import situation
from holdfast.llm.offline.model import ERRORS, OfflineModel

from .conversations import (
    BASH,
    DICE,
    PRINT,
    SECRET,
    ask,
    called,
    calls_in,
    deltas_of,
    reply_to,
    request,
    results,
    said_in,
    tool,
)

PARALLEL = (
    "This is an automated test message. Call the get_secret_code_tool 3 times in parallel for the following inputs: "
    "'hello world', 'hello letta', 'hello test', and also call the roll_dice_tool once with a 16-sided dice."
)
PARALLEL_CALLS = [
    ("get_secret_code_tool", {"input_text": "hello world"}),
    ("get_secret_code_tool", {"input_text": "hello letta"}),
    ("get_secret_code_tool", {"input_text": "hello test"}),
    ("roll_dice_tool", {"num_sides": 16}),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "This is an automated test message. Call the get_secret_code_tool to get the code for text 'hello world'.",
            [("get_secret_code_tool", {"input_text": "hello world"})],
        ),
        (PARALLEL, PARALLEL_CALLS),
        ("Call print_tool with 'test'", [("print_tool", {"message": "test"})]),
        ("Call print_tool with message 'hello'", [("print_tool", {"message": "hello"})]),
        ("Call print_tool with 'message'", [("print_tool", {"message": "message"})]),
        ("Please run the bash_tool with operation 'test'", [("bash_tool", {"operation": "test"})]),
        (
            "Please call bash_tool three times with operations: 'ls', 'pwd', and 'echo test'",
            [("bash_tool", {"operation": name}) for name in ("ls", "pwd", "echo test")],
        ),
        (
            "call the roll_dice tool with 16 sides and reply back with the outcome",
            [("roll_dice_tool", {"num_sides": 16})],
        ),
        (
            "Use bash_tool and print_tool.",
            [("bash_tool", {"operation": "offline"}), ("print_tool", {"message": "offline"})],
        ),
        ("Call bash_tool twice with 'ls'", [("bash_tool", {"operation": "ls"})] * 2),
        ('Call print_tool with "it\'s" and with ‘ok’', [("print_tool", {"message": m}) for m in ("it's", "ok")]),
        ("Say 'hi' using print_tool.", [("print_tool", {"message": "hi"})]),
        ('Call print_tool with {"message": "a"} and {"message": "b"}', [("print_tool", {"message": m}) for m in "ab"]),
        ("Call roll_dice_tool 2 times with 6 and 20 sides.", [("roll_dice_tool", {"num_sides": n}) for n in (6, 20)]),
        ("Call roll_dice_tool with num_sides=8, it is 2026.", [("roll_dice_tool", {"num_sides": 8})]),
        ("Call print_tool with 'call bash_tool'", [("print_tool", {"message": "call bash_tool"})]),
    ],
)
async def test_plain_instructions_become_calls(text: str, expected: list[tuple[str, Any]]) -> None:
    reply = await ask(text)
    assert calls_in(reply) == expected
    assert reply.finish == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "Thank you for the secret code.",
        "You don't need to call the print_tool, the code is 5.",
        "Never use bash_tool!",
        "What does print_tool do?",
        "Call me later. The print_tool is nice.",
        "Call unknown_tool with 'x'",
        "See [[print_tool]] and [[tokens]of]].",
    ],
)
async def test_what_is_no_instruction_is_answered_in_words(text: str) -> None:
    reply = await ask(text)
    assert not reply.calls
    assert said_in(reply) == f"You said: {text}"
    assert reply.finish == "stop"


@pytest.mark.parametrize(
    "text",
    [
        "[[say:" * 60_000,
        "[[say:" + " " * 400_000,
        "[[call:print_tool " + "[" * 100_000 + "]]",
        "[[say:x@" + "1" * 5_000 + "]]",
        "[[usage:" + "1" * 5_000 + "]]",
        "Call print_tool with " + '{"a":' * 50_000,
        "Call roll_dice_tool with " + "1 " * 150_000,
        "Call roll_dice_tool with " + "1" * 5_000,
        "Call roll_dice_tool " + "9" * 5_000 + " times",
        " 'a" * 100_000,
        "“" * 100_000,
    ],
    ids=lambda text: text[:20].strip(),
)
async def test_a_text_that_no_person_writes_is_answered_too(text: str) -> None:
    """And within the time that a test may take: whoever writes to the server must not keep it from everybody else."""
    assert (await ask(text)).finish


async def test_a_call_is_not_made_more_often_than_anybody_needs() -> None:
    assert len((await ask("Call print_tool 1000000000 times", parallel_tool_calls=True)).calls) == 100


async def test_without_tools_nothing_is_called() -> None:
    assert said_in(await ask("Call print_tool with 'x'", tools=())) == "You said: Call print_tool with 'x'"
    assert not (await ask("Call print_tool with 'x'", tool_choice="none")).calls


async def test_a_reply_reasons_first_and_announces_several_calls() -> None:
    assert [type(part) for part in (await ask(PARALLEL)).parts] == [Reasoning, Text, *[ToolCall] * 4]
    assert [type(part) for part in (await ask("Call print_tool with 'x'")).parts] == [Reasoning, ToolCall]
    assert [type(part) for part in (await ask("Hello")).parts] == [Reasoning, Text]


async def test_without_parallel_calls_they_are_made_one_by_one_until_all_are_made() -> None:
    turns: list[Turn | str] = [PARALLEL]
    made: list[tuple[str, Any]] = []
    for _ in range(4):
        reply = await ask(*turns, parallel=False)
        made += calls_in(reply)
        turns += [called(*reply.calls), results("done")]
    assert made == PARALLEL_CALLS
    assert not (await ask(*turns, parallel=False)).calls


async def test_what_comes_then_waits_for_what_comes_before() -> None:
    text = "Call bash_tool with 'ls', then call print_tool with 'done'."
    first = await ask(text)
    assert calls_in(first) == [("bash_tool", {"operation": "ls"})]
    second = await ask(text, called(*first.calls), results("files"))
    assert calls_in(second) == [("print_tool", {"message": "done"})]


async def test_the_answer_quotes_every_result() -> None:
    dice = Turn(
        "tool", (ToolReturn("c1", "roll_dice", "success", model_history.tool_return_text("7", "success", 0, "UTC")),)
    )
    bare = Turn("tool", (ToolReturn("c2", "peek", "success", (Text("a cat."), Image("image/png", "AA=="))),))
    packed = Turn("tool", (ToolReturn("c3", "look", "success", '{"status": "OK", "message": {"x": 1}, "time": ""}'),))
    odd = Turn("tool", (ToolReturn("c4", "odd", "success", '{"a": 1}'), ToolReturn("c5", "cut", "success", "{")))
    reply = await ask("Hello", called(), dice, called(), bare, called(), packed, called(), odd)
    assert said_in(reply) == (
        'roll_dice returned 7. peek returned a cat. [Image omitted]. look returned {"x":1}. odd returned {"a": 1}. '
        "cut returned {."
    )


async def test_a_denial_is_answered_with_its_reason() -> None:
    denial = "Error: request to call tool denied. User reason: You don't need it, the secret code is 740845635798344975"
    reply = await ask(
        "Call print_tool with 'x'", called(ToolCall("c0", "print_tool", "{}")), results(denial, status="error")
    )
    assert not reply.calls
    assert said_in(reply) == f"print_tool failed: {denial}."


async def test_only_what_follows_the_last_question_counts_as_done() -> None:
    text = "Call print_tool with 'x'"
    earlier = [text, called(ToolCall("c0", "print_tool", "{}")), results("x"), Turn("assistant", (Text("Done."),))]
    assert calls_in(await ask(*earlier, text)) == [("print_tool", {"message": "x"})]
    assert said_in(await ask(*earlier, "Thanks.")) == "You said: Thanks."


async def test_of_merged_user_texts_only_the_last_counts() -> None:
    merged = Turn("user", (Text("Call print_tool with 'x' [[error:server]]"), Text("Hello")))
    assert said_in(await ask(merged)) == "You said: Hello"


async def test_a_picture_alone_asks_for_nothing() -> None:
    earlier = ["Call print_tool", called(ToolCall("c0", "print_tool", "{}")), results("x")]
    assert (
        said_in(await ask(*earlier, Turn("user", (Image("image/png", "AA=="),)))) == "There is nothing new to answer."
    )
    assert said_in(await ask(Turn("user", (Text("See?"), Image("image/png", "AA=="))))) == "You said: See?"


async def test_packed_user_messages_are_unpacked() -> None:
    assert said_in(await ask('{"type": "user_message", "message": "Hi", "time": ""}')) == "You said: Hi"
    assert said_in(await ask('{"no": "type"}')) == 'You said: {"no": "type"}'
    assert said_in(await ask("{broken")) == "You said: {broken"


@pytest.mark.parametrize(
    "alert",
    [
        "ToolRuleViolated: You must call bash_tool, print_tool at least once to exit the loop.",
        model_history.heartbeat_text("ToolRuleViolated: You must call bash_tool, print_tool at least once.", 0, "UTC"),
    ],
)
async def test_an_alert_that_insists_on_tools_is_obeyed(alert: str) -> None:
    spoken = Turn("assistant", (Text("Hi."),))
    assert [name for name, _ in calls_in(await ask("Hello", spoken, alert))] == ["bash_tool", "print_tool"]
    one = called(ToolCall("c0", "bash_tool", "{}"))
    rest = await ask("Hello", spoken, alert, one, results("x", name="bash_tool"))
    assert [name for name, _ in calls_in(rest)] == ["print_tool"]


@pytest.mark.parametrize(
    "alert",
    [
        "<system-alert>Automated keep-alive ping. Go on.</system-alert>",
        model_history.heartbeat_text("Go on.", 0, "UTC"),
        model_history.summary_text("They met.", None, 0, "UTC"),
    ],
)
async def test_an_alert_that_insists_on_nothing_leaves_the_question_standing(alert: str) -> None:
    earlier = ["Call print_tool with 'x'", called(ToolCall("c0", "print_tool", "{}")), results("x")]
    assert said_in(await ask(*earlier, alert)) == "print_tool returned x."
    assert calls_in(await ask("Call print_tool with 'x'", Turn("assistant", (Text("Hm."),)), alert)) == [
        ("print_tool", {"message": "x"})
    ]
    assert said_in(await ask(alert)) == "There is nothing new to answer."


async def test_a_forced_call_is_made_with_what_the_text_and_the_schema_give() -> None:
    reply = await ask("Hello 'you', 3 times", tools=[PRINT, DICE], tool_choice="required")
    assert calls_in(reply) == [("print_tool", {"message": "you"})]
    named = await ask("Sides: 12", tools=[PRINT, DICE], tool_choice=NamedTool("roll_dice_tool"))
    assert calls_in(named) == [("roll_dice_tool", {"num_sides": 12})]
    asked = await ask("Call print_tool with 'x'", tools=[DICE, PRINT], tool_choice="required")
    assert calls_in(asked) == [("print_tool", {"message": "x"})]
    other = await ask("Call print_tool with 'x'", tools=[DICE, PRINT], tool_choice=NamedTool("roll_dice_tool"))
    assert [name for name, _ in calls_in(other)] == ["roll_dice_tool"]
    assert not (await ask("Hello", tools=[], tool_choice="required")).calls


async def test_forced_calls_go_round_the_tools_before_any_is_repeated() -> None:
    done = [called(ToolCall("c0", "print_tool", "{}")), results("x")]
    assert calls_in(await ask("Hi", *done, tools=[PRINT, DICE], tool_choice="required")) == [
        ("roll_dice_tool", {"num_sides": 1})
    ]
    assert [name for name, _ in calls_in(await ask("Hi", *done, tools=[PRINT], tool_choice="required"))] == [
        "print_tool"
    ]


async def test_an_agent_that_speaks_through_a_tool_answers_through_it() -> None:
    speak = tool("send_message", message="string", thinking="string", request_heartbeat="boolean")
    printer = tool("print_tool", thinking="string", message="string", request_heartbeat="boolean")
    first = await ask("Call print_tool with 'x'", tools=[printer, speak], tool_choice="required")
    ((name, arguments),) = calls_in(first)
    assert (name, arguments["message"], arguments["request_heartbeat"]) == ("print_tool", "x", True)
    second = await ask(
        "Call print_tool with 'x'", called(*first.calls), results("x"), tools=[printer, speak], tool_choice="required"
    )
    ((name, arguments),) = calls_in(second)
    assert (name, arguments["message"], arguments["request_heartbeat"]) == (
        "send_message",
        "print_tool returned x.",
        False,
    )


async def test_arguments_follow_the_schema() -> None:
    everything = tool(
        "do_all",
        choice={"enum": ["red", "blue"], "type": "string"},
        given={"type": "string", "default": "d"},
        shown={"type": "string", "examples": ["e"]},
        fixed={"const": 5},
        ratio={"type": "number"},
        low={"type": "integer", "minimum": 3},
        flag={"type": "boolean"},
        many={"type": "array", "items": {"type": "integer"}, "minItems": 2},
        inner={"$ref": "#/$defs/Inner"},
        maybe={"anyOf": [{"type": "null"}, {"type": "integer"}]},
        typed={"type": ["null", "boolean"]},
        nothing={"type": "null"},
        skipped="string",
        optional=["skipped"],
    )
    everything.parameters["$defs"] = {"Inner": {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]}}
    ((_, arguments),) = calls_in(await ask("Run do_all", tools=[everything]))
    assert arguments == {
        "choice": "red",
        "given": "d",
        "shown": "e",
        "fixed": 5,
        "ratio": 1,
        "low": 3,
        "flag": True,
        "many": [1, 1],
        "inner": {"a": "offline", "b": "offline"},
        "maybe": 1,
        "typed": True,
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Call f with path '/a' and content 'b'", {"path": "/a", "content": "b"}),
        ("Call f with content 'b' and path '/a'", {"path": "/a", "content": "b"}),
        ("Call f with '/a' and 'b'", {"path": "/a", "content": "b"}),
        ("Call f with path '/a', 'b' and lines 5", {"path": "/a", "content": "b", "line": 5}),
        (
            "Call f with '/a', 'b', ratio 0.5 and force=false",
            {"path": "/a", "content": "b", "ratio": 0.5, "force": False},
        ),
        ("Call f with '/a', 'b' 7 2.5", {"path": "/a", "content": "b", "line": 7, "ratio": 2.5}),
    ],
)
async def test_names_tie_values_to_arguments_and_the_rest_goes_in_order(text: str, expected: dict[str, Any]) -> None:
    f = tool(
        "f",
        path="string",
        content="string",
        line="integer",
        ratio="number",
        force="boolean",
        optional=["line", "ratio", "force"],
    )
    assert calls_in(await ask(text, tools=[f])) == [("f", expected)]


async def test_a_list_takes_all_quotes_and_a_choice_only_what_it_knows() -> None:
    listing = tool("tag", labels={"type": "array", "items": {"type": "string"}})
    assert calls_in(await ask("Call tag with 'a', 'b'", tools=[listing])) == [("tag", {"labels": ["a", "b"]})]
    paint = tool("paint", colour={"type": "string", "enum": ["red", "blue"]})
    assert calls_in(await ask("Call paint with 'blue'", tools=[paint])) == [("paint", {"colour": "blue"})]
    assert calls_in(await ask("Call paint with 'mud'", tools=[paint])) == [("paint", {"colour": "red"})]


async def test_an_exact_name_wins_over_a_nickname() -> None:
    short = tool("roll_dice", num_sides="integer")
    assert [name for name, _ in calls_in(await ask("Call roll_dice_tool", tools=[short]))] == ["roll_dice"]
    both = await ask("Call the roll_dice tool with 4 sides", tools=[DICE, short])
    assert [name for name, _ in calls_in(both)] == ["roll_dice"]


async def test_the_same_request_gets_the_same_reply() -> None:
    assert await deltas_of(request(PARALLEL)) == await deltas_of(request(PARALLEL))


async def test_call_ids_of_different_replies_differ() -> None:
    model = OfflineModel()
    ids = [call.id for _ in range(2) for call in (await reply_to(request(PARALLEL), model)).calls]
    assert len(set(ids)) == 8
    assert all(len(one) == 29 for one in ids)


async def test_a_wanted_response_format_is_kept() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shaped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert said_in(await ask("Hi", response_format=shaped)) == '{"n":1}'
    assert said_in(await ask("Hi", response_format={"type": "json_object"})) == '{"answer":"offline"}'
    assert said_in(await ask("Hi", response_format={"type": "text"})) == "You said: Hi"


async def test_usage_counts_what_was_streamed() -> None:
    deltas = await deltas_of(request("Hello there"))
    thoughts = sum(isinstance(delta, ReasoningDelta) for delta in deltas)
    words = sum(isinstance(delta, TextDelta) for delta in deltas)
    *_, usage, finish = deltas
    assert isinstance(usage, UsageDelta) and isinstance(finish, Finish)
    assert (usage.usage.completion_tokens, usage.usage.reasoning_tokens) == (thoughts + words, thoughts)
    assert usage.usage.cached_input_tokens == 0
    longer = await ask("Hello there " + "x" * 400)
    assert longer.usage and longer.usage.prompt_tokens == usage.usage.prompt_tokens + 100


async def test_a_call_streams_its_name_first_and_its_arguments_in_pieces() -> None:
    fragments = [one for one in await deltas_of(request(PARALLEL)) if isinstance(one, CallDelta) and one.index == 0]
    assert fragments[0] == CallDelta(0, "call_1", "get_secret_code_tool")
    assert len(fragments) > 2 and all(one.id is None and one.name is None for one in fragments[1:])


async def test_tokens_gives_an_answer_of_exactly_that_length() -> None:
    for wanted in (0, 1, 9, 10, 2_000):
        deltas = await deltas_of(request(f"[[tokens:{wanted}]]"))
        assert sum(isinstance(delta, TextDelta) for delta in deltas) == wanted
    assert said_in(await ask("[[tokens:3]]")) == "steady words keep"


async def test_say_gives_exactly_that_answer() -> None:
    assert said_in(await ask("Whatever [[say: Hello,  world! ]]")) == "Hello,  world!"


async def test_reasoning_can_be_long_hidden_or_off() -> None:
    assert [type(part) for part in (await ask("Hi [[no_reasoning]]")).parts] == [Text]
    reply = await ask("Hi [[reasoning:50]]")
    assert reply.usage and reply.usage.reasoning_tokens == 50
    assert isinstance((await ask("Hi [[reasoning:omitted]]")).parts[0], OmittedReasoning)
    assert isinstance((await ask("Hi [[reasoning:redacted]]")).parts[0], RedactedReasoning)


async def test_call_names_any_tool_with_any_arguments() -> None:
    reply = await ask('Hi [[call:ghost {"a": [[1]]}]] [[call:print_tool {"broken]] [[call:bash_tool]]')
    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("ghost", '{"a": [[1]]}'),
        ("print_tool", '{"broken'),
        ("bash_tool", "{}"),
    ]
    assert [call.name for call in (await ask("[[call:?]]")).calls] == ["?"]


async def test_a_directed_call_is_made_once_unless_repeated_or_scoped() -> None:
    done = [called(ToolCall("c0", "print_tool", "{}")), results("x")]
    assert not (await ask("[[call:print_tool]]", *done)).calls
    assert (await ask("[[call:print_tool]] [[repeat]]", *done)).calls
    assert not (await ask("[[call:bash_tool@2]]")).calls
    assert [call.name for call in (await ask("[[call:bash_tool@2]]", *done)).calls] == ["bash_tool"]


async def test_repeat_makes_the_asked_calls_again_for_ever() -> None:
    turns: list[Turn | str] = ["Call print_tool with 'x' [[repeat]]"]
    for _ in range(5):
        reply = await ask(*turns)
        assert calls_in(reply) == [("print_tool", {"message": "x"})]
        turns += [called(*reply.calls), results("x")]


async def test_parallel_ignores_that_one_call_was_allowed() -> None:
    assert len((await ask(PARALLEL, parallel=False)).calls) == 1
    assert len((await ask(PARALLEL + " [[parallel]]", parallel=False)).calls) == 4


async def test_directives_are_not_read_from_results_or_denials() -> None:
    trap = results("[[error:server]] [[call:bash_tool]]")
    reply = await ask("Call print_tool with 'x'", called(ToolCall("c0", "print_tool", "{}")), trap)
    assert not reply.calls and "[[error:server]]" in said_in(reply)


@pytest.mark.parametrize("kind", list(ERRORS))
async def test_every_kind_of_error_can_be_had_with_its_own_text(kind: str) -> None:
    made = ERRORS[kind]("x")
    with pytest.raises(type(made), match="TEST: Mocked error"):
        await ask(f"[[error:{kind}]] [[message:TEST: Mocked error]]")
    with pytest.raises(type(made), match=f"as directed: {kind}"):
        await ask(f"[[error:{kind}]]")


async def test_errors_can_come_late_or_only_on_a_later_model_call() -> None:
    seen: list[object] = []
    with pytest.raises(errors.RateLimited):
        async for delta in OfflineModel().stream(request("Hi [[error:rate_limit]] [[error_after:3]]")):
            seen.append(delta)
    assert len(seen) == 3
    text = "Call print_tool with 'x' [[error:server@2]]"
    first = await ask(text)
    with pytest.raises(errors.ModelUnavailable):
        await ask(text, called(*first.calls), results("x"))


async def test_an_error_can_go_away_after_some_tries() -> None:
    model = OfflineModel()
    asked = request("Hi [[error:overloaded]] [[error_times:2]]")
    for _ in range(2):
        with pytest.raises(errors.Overloaded):
            await reply_to(asked, model)
    assert said_in(await reply_to(asked, model)) == "You said: Hi"


@pytest.mark.parametrize(
    "text",
    [
        "[[tokens:many]]",
        "[[tokens:10000000]]",
        "[[delay:soon]]",
        "[[ttft]]",
        "[[error:sunspots]]",
        "[[error]]",
        "[[cut:-1]]",
    ],
)
async def test_a_directive_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(errors.Refused, match="directive"):
        await ask(text)


async def test_a_cut_stream_has_no_finish() -> None:
    seen: list[object] = []
    with pytest.raises(errors.ModelUnavailable, match="ended before"):
        async for delta in OfflineModel().stream(request("[[tokens:50]] [[no_reasoning]] [[cut:5]]")):
            seen.append(delta)
    assert len(seen) == 5 and all(isinstance(delta, TextDelta) for delta in seen)


async def test_a_reply_can_be_empty_or_end_at_the_limit() -> None:
    empty = await ask("Call print_tool with 'x' [[empty]]")
    assert (empty.parts, empty.finish) == ((), "stop")
    assert (await ask("Hi [[finish:length]]")).finish == "length"


async def test_usage_can_be_dictated() -> None:
    assert (await ask("Hi [[usage:100,20,30,4]]")).usage == Usage(100, 20, 30, reasoning_tokens=4)
    partly = (await ask("Hi [[no_reasoning]] [[usage:100,,7]]")).usage
    assert partly == Usage(100, 3, 7, reasoning_tokens=0)


async def test_a_request_larger_than_the_window_overflows() -> None:
    with pytest.raises(errors.ContextTooLong):
        await ask("x" * 5_000, context_window=1_000)
    with pytest.raises(errors.ContextTooLong):
        await ask("Hi [[window:10]]")
    assert said_in(await ask("Hi [[window:1000]]", context_window=5)) == "You said: Hi"


@pytest.mark.parametrize("text", ["[[stall]]", "[[stall_after:4]]", "[[ttft:3600]]", "Hi [[delay:3600]]"])
async def test_a_silent_stream_is_closed_at_once_by_a_cancel(text: str) -> None:
    model = OfflineModel()
    started = asyncio.Event()

    async def read() -> None:
        started.set()
        await reply_to(request(text), model)

    reader = asyncio.create_task(read())
    await started.wait()
    await asyncio.sleep(0)
    assert model.open_streams == 1
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert model.open_streams == 0


async def test_a_stall_comes_after_the_tokens_it_allows() -> None:
    stream = OfflineModel().stream(request("[[tokens:9]] [[no_reasoning]] [[stall_after:4]]"))
    assert len([await anext(stream) for _ in range(4)]) == 4
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(stream), 0.01)


async def test_closing_a_stream_early_is_counted() -> None:
    model = OfflineModel()
    stream = model.stream(request("[[tokens:100]]"))
    await anext(stream)
    assert model.open_streams == 1
    await stream.aclose()
    assert model.open_streams == 0


async def test_delays_are_as_long_as_asked() -> None:
    began = asyncio.get_running_loop().time()
    await ask("[[tokens:4]] [[no_reasoning]] [[ttft:0.02]] [[delay:0.01]]")
    assert asyncio.get_running_loop().time() - began >= 0.06


async def test_one_stream_does_not_starve_the_others() -> None:
    order: list[str] = []

    async def read(name: str) -> None:
        async for _ in OfflineModel().stream(request("[[tokens:200]] [[no_reasoning]]")):
            order.append(name)

    await asyncio.gather(read("a"), read("b"))
    first_b = order.index("b")
    assert first_b < 64 and "a" in order[first_b:]


ROWS = [
    Message(id="m1", role="user", parts=(Text("I am Ada. [[error:server]]"),), created_us=0),
    Message(id="m2", role="assistant", parts=(Text("Hello."),), created_us=0),
    Message(id="m3", role="user", parts=(Text("I like tea."),), created_us=0),
]


def summary_wanted(settings: CompactionSettings, *extra: Message) -> Any:
    system, turns = compaction.summary_request(
        [*ROWS, *extra], settings, system="Be kind.", model_handle="holdfast/offline", context_window=10_000
    )
    return request(*turns, system=system)


@pytest.mark.parametrize("mode", ["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"])
async def test_a_summary_is_given_when_compaction_asks(mode: Any) -> None:
    reply = await reply_to(summary_wanted(CompactionSettings(mode=mode)))
    assert not reply.calls and said_in(reply).startswith("Earlier, ")
    assert reply.finish == "stop"


async def test_a_summary_quotes_what_the_user_said() -> None:
    said = said_in(await reply_to(summary_wanted(CompactionSettings(mode="all", prompt="Shorter!"))))
    assert "I am Ada." in said and "I like tea." in said


async def test_summaries_can_be_dictated_and_fail() -> None:
    dictated = Message(id="m4", role="user", parts=(Text("[[summary:All is well.]]"),), created_us=0)
    assert said_in(await reply_to(summary_wanted(CompactionSettings(), dictated))) == "All is well."
    failing = Message(id="m4", role="user", parts=(Text("[[summary_error:rate_limit]]"),), created_us=0)
    with pytest.raises(errors.RateLimited):
        await reply_to(summary_wanted(CompactionSettings(), failing))


def test_the_payload_is_what_a_chat_vendor_would_get() -> None:
    asked = request(
        Turn("user", (Text("Look"), Image("image/png", "AA==", "low"), Image("image/png", "BB=="))),
        Turn("assistant", (Reasoning("hm"), Text("Rolling"), ToolCall("c1", "roll_dice_tool", '{"num_sides": 6}'))),
        Turn("tool", (ToolReturn("c1", "roll_dice_tool", "success", "4"),)),
        Turn("assistant", (Text("A four."),)),
        "Thanks",
        tools=[DICE],
        tool_choice=NamedTool("roll_dice_tool"),
        temperature=0.5,
        max_output_tokens=100,
        user="agent-1",
    )
    call = {"id": "c1", "type": "function", "function": {"name": "roll_dice_tool", "arguments": '{"num_sides": 6}'}}
    assert OfflineModel().payload(asked) == {
        "model": "offline",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,BB=="}},
                ],
            },
            {"role": "assistant", "content": "Rolling", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "assistant", "content": "A four."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": DICE.name, "description": DICE.description, "parameters": DICE.parameters},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "roll_dice_tool"}},
        "parallel_tool_calls": True,
        "temperature": 0.5,
        "max_completion_tokens": 100,
        "user": "agent-1",
    }


def test_every_directive_and_error_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "offline-model.md").read_text()
    assert [name for name in sorted(situation.DIRECTIVES) if f"`[[{name}" not in page] == []
    assert [kind for kind in ERRORS if f"| `{kind}` |" not in page] == []


def test_a_payload_without_tools_does_not_speak_of_them() -> None:
    assert OfflineModel().payload(request("Hi", tools=[])).keys() == {"model", "messages"}
    assert OfflineModel().payload(request("Hi", tools=[BASH, SECRET]))["tool_choice"] == "auto"

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.messages import (
    Image,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.llm.anthropic.payload import BINDING, INTERLEAVED, LONG_CONTEXT
from holdfast.llm.anthropic.turns import NO_OUTPUT
from holdfast.llm.base import CONTINUE, Abilities, NamedTool
from holdfast.llm.json_prompt import JSON_ONLY
from holdfast.llm.tool_calls import UNREADABLE
from tests.llm.claude import ADAPTIVE, BOUND, BUDGETED, OLD, betas_for, claude, payload, returned, said
from tests.llm.conversations import DICE, PRINT, tool

MARK = {"type": "ephemeral"}
CALL = ToolCall("c1", "print_tool", '{"message": "hi"}')
PIXEL = Image("image/png", "iVBORw0KGgo=")


def kinds(message: dict[str, Any]) -> list[str]:
    return [block["type"] for block in message["content"]]


def marks(sent: dict[str, Any]) -> list[str]:
    spoken = [(f"message {index}", block) for index, one in enumerate(sent["messages"]) for block in one["content"]]
    every = [*(("tools", one) for one in sent["tools"]), *(("system", one) for one in sent["system"]), *spoken]
    return [place for place, block in every if block.get("cache_control") == MARK]


def test_tools_system_and_the_last_two_messages_of_the_user_are_marked_for_the_cache() -> None:
    sent = payload("one", said("a"), "two", said("b"), "three", said(CALL), returned("c1"))
    assert marks(sent) == ["tools", "system", "message 4", "message 6"]
    assert sent["tools"][-1]["cache_control"] == MARK


def test_what_one_step_writes_to_the_cache_is_marked_again_in_the_next() -> None:
    first = marks(payload("one", said(CALL), returned("c1")))
    second = marks(payload("one", said(CALL), returned("c1"), said("a"), "two"))
    assert first[-1] == "message 2"
    assert "message 2" in second


def test_a_tool_turn_and_the_users_next_words_are_one_message_with_results_first() -> None:
    sent = payload("one", said(CALL), returned("c1"), "two")
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "user"]
    assert kinds(sent["messages"][2]) == ["tool_result", "text"]


def test_reasoning_is_sent_only_with_a_signature() -> None:
    parts = (Reasoning("mine", "sig"), OmittedReasoning("sealed"), RedactedReasoning("x"), Reasoning("cut off"))
    sent = payload("one", said(*parts, OmittedReasoning(), "text"), "two")
    assert sent["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "mine", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "sealed"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "text"},
    ]


def test_a_turn_that_was_only_thinking_is_left_out() -> None:
    sent = payload("one", said(Reasoning("mine", "sig")), "two")
    assert [kinds(message) for message in sent["messages"]] == [["text", "text"]]


def test_thinking_comes_first_in_a_turn_made_of_several_replies() -> None:
    sent = payload("one", said("early", Reasoning("mine", "sig"), "late", CALL), returned("c1"))
    assert kinds(sent["messages"][1]) == ["thinking", "text", "text", "tool_use"]
    assert sent["thinking"]["type"] == "enabled"


def test_models_that_think_by_themselves_get_their_blocks_in_the_order_they_chose() -> None:
    sent = payload("one", said("early", Reasoning("mine", "sig"), CALL), returned("c1"), model=ADAPTIVE)
    assert kinds(sent["messages"][1]) == ["text", "thinking", "tool_use"]


def test_thinking_is_off_while_calls_of_a_model_that_did_not_think_are_answered() -> None:
    sent = payload("one", said(CALL), returned("c1"))
    assert "thinking" not in sent
    assert payload("one", said(CALL), returned("c1"), said("done"), "two")["thinking"]["type"] == "enabled"


def test_thinking_stays_on_when_only_the_later_calls_of_a_turn_lack_it() -> None:
    later = ToolCall("c2", "print_tool", "{}")
    sent = payload("one", said(Reasoning("a", "s"), CALL), returned("c1"), said(later), returned("c2"))
    assert sent["thinking"]["type"] == "enabled"
    words_between = payload("one", said(Reasoning("a", "s"), CALL), returned("c1"), "and", said(later), returned("c2"))
    assert "thinking" not in words_between


@pytest.mark.parametrize("choice", ["required", NamedTool("print_tool")])
def test_a_forced_tool_turns_off_thinking_with_a_budget(choice: Any) -> None:
    sent = payload("one", tool_choice=choice, temperature=0.2)
    assert "thinking" not in sent
    assert sent["temperature"] == 0.2


def test_thinking_is_on_with_the_least_budget_for_models_that_can() -> None:
    assert payload("one")["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert "thinking" not in payload("one", model=OLD)
    able = claude("some-other-model", abilities=Abilities(reasoning=True))
    assert payload("one", model=able)["thinking"]["type"] == "enabled"
    assert "thinking" not in payload("one", model="some-other-model")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 3000}}, 3000),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, 1024),
        ({"thinking": {"type": "enabled"}}, 1024),
        ({"thinking": {"type": "disabled"}}, None),
    ],
)
def test_the_settings_decide_about_thinking(settings: dict[str, Any], expected: int | None) -> None:
    assert payload("one", settings=settings).get("thinking", {}).get("budget_tokens") == expected


def test_settings_can_ask_a_model_to_think_of_which_nothing_is_known() -> None:
    asked = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert payload("one", model="some-other-model", settings=asked)["thinking"]["budget_tokens"] == 2048


def test_newer_models_decide_by_themselves_and_show_a_summary() -> None:
    budget = {"thinking": {"type": "enabled", "budget_tokens": 3000}}
    assert payload("one", model=ADAPTIVE, settings=budget)["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert payload("one", model="claude-opus-4-6")["thinking"] == {"type": "adaptive"}
    assert payload("one", model="claude-opus-4-6", settings=budget)["thinking"]["budget_tokens"] == 3000


def test_reasoning_bound_to_an_older_prompt_is_given_up_and_not_insisted_on() -> None:
    sent = payload("one", model=BOUND)
    assert sent["thinking"]["block_binding"] == {"prefix_mismatch_behavior": "drop_block"}
    assert BINDING in betas_for("one", model=BOUND)


@pytest.mark.parametrize(
    ("model", "thinking"),
    [
        (ADAPTIVE, None),
        ("claude-haiku-5-5", "disabled"),
        ("claude-sonnet-5-5", "between_tools"),
        (BOUND, "adaptive"),  # it cannot be turned off
    ],
)
def test_thinking_is_turned_off_in_the_way_each_model_has_for_it(model: str, thinking: str | None) -> None:
    sent = payload("one", model=model, settings={"thinking": {"type": "disabled"}})
    assert sent.get("thinking", {}).get("type") == thinking


def test_models_that_bind_reasoning_get_none_while_they_do_not_think() -> None:
    off = {"thinking": {"type": "disabled"}}
    turns = ("one", said(Reasoning("a", "s"), "text"), "two")
    assert kinds(payload(*turns, model="claude-haiku-5-5", settings=off)["messages"][1]) == ["text"]
    assert kinds(payload(*turns, model="claude-haiku-5-5")["messages"][1]) == ["thinking", "text"]


def test_models_that_cannot_be_forced_are_told_in_words_after_the_cache_mark() -> None:
    sent = payload("one", model=BOUND, tool_choice=NamedTool("print_tool"), parallel=False)
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert sent["thinking"]["type"] == "adaptive"
    first, demand = sent["messages"][-1]["content"]
    assert first["cache_control"] == MARK
    assert "print_tool" in demand["text"] and "cache_control" not in demand


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", True, {"type": "auto"}),
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        (NamedTool("print_tool"), True, {"type": "tool", "name": "print_tool"}),
        ("none", False, {"type": "none"}),
    ],
)
def test_every_choice_of_tools_has_its_words(choice: Any, parallel: bool, expected: dict[str, Any]) -> None:
    assert payload("one", tool_choice=choice, parallel=parallel)["tool_choice"] == expected


def test_a_history_with_calls_is_sent_even_when_no_tool_is_left() -> None:
    sent = payload("one", said(CALL), returned("c1"), tools=())
    assert [(one["name"], one["input_schema"]) for one in sent["tools"]] == [("print_tool", {"type": "object"})]
    assert sent["tool_choice"] == {"type": "none"}
    assert "tools" not in payload("one", tools=())


@pytest.mark.parametrize(
    ("asked", "ceiling", "budget", "expected"),
    [
        (None, None, None, (4096 + 1024, 1024)),
        (None, 64_000, None, (64_000, 1024)),
        (8192, None, None, (8192, 1024)),
        (90_000, 64_000, None, (64_000, 1024)),
        (500, None, None, (500, None)),
        (1025, None, None, (1025, 1024)),
        (4096, None, 10_000, (4096, 4095)),
        (4096, 8192, 10_000, (4096, 4095)),
        (500, 1000, None, (500, None)),
    ],
)
def test_thinking_fits_into_the_limit_or_is_left_out(
    asked: int | None, ceiling: int | None, budget: int | None, expected: tuple[int, int | None]
) -> None:
    settings = {"thinking": {"type": "enabled", "budget_tokens": budget}}
    model = claude(BUDGETED, max_output_tokens=ceiling)
    sent = payload("one", model=model, max_output_tokens=asked, settings=settings)
    assert (sent["max_tokens"], sent.get("thinking", {}).get("budget_tokens")) == expected


def test_without_thinking_the_default_limit_is_plain() -> None:
    assert payload("one", model=OLD)["max_tokens"] == 4096


@pytest.mark.parametrize(
    ("model", "temperature", "expected"),
    [(OLD, 0.3, 0.3), (OLD, 1.7, 1.0), (BUDGETED, 0.3, None), (ADAPTIVE, 0.3, None)],
)
def test_the_temperature_is_sent_where_it_is_allowed(model: str, temperature: float, expected: float | None) -> None:
    assert payload("one", model=model, temperature=temperature).get("temperature") == expected


def test_newer_models_get_no_temperature_even_if_they_do_not_think() -> None:
    off = {"thinking": {"type": "disabled"}}
    assert "temperature" not in payload("one", model=ADAPTIVE, temperature=0.3, settings=off)


def test_effort_is_passed_on() -> None:
    assert payload("one", model=ADAPTIVE, settings={"effort": "low"})["output_config"] == {"effort": "low"}


@pytest.mark.parametrize(
    ("model", "wanted", "sent"),
    [
        ("claude-sonnet-4-5", "high", None),
        ("claude-haiku-4-5", "low", None),
        ("claude-opus-4-5", "max", "high"),
        ("claude-sonnet-4-6", "xhigh", "high"),
        ("claude-opus-4-6", "max", "max"),
        ("claude-opus-4-7", "xhigh", "xhigh"),
        ("unheard-of", "max", "max"),
    ],
)
def test_no_model_is_told_an_effort_that_it_refuses(model: str, wanted: str, sent: str | None) -> None:
    said = payload("one", model=model, settings={"effort": wanted})
    assert said.get("output_config") == (None if sent is None else {"effort": sent})


def test_a_model_that_is_not_to_think_tries_no_harder_than_high() -> None:
    off = {"effort": "max", "thinking": {"type": "disabled"}}
    assert payload("one", model="claude-opus-5", settings=off)["output_config"] == {"effort": "high"}
    assert payload("one", model="claude-opus-4-7", settings=off)["output_config"] == {"effort": "max"}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  ", {}),
        ("[1, 2]", {UNREADABLE: "[1, 2]"}),
        ('"text"', {UNREADABLE: '"text"'}),
        ('{"a": ', {UNREADABLE: '{"a": '}),
        ("{}{}", {UNREADABLE: "{}{}"}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
    ],
)
def test_arguments_of_any_kind_can_be_sent(arguments: str, shown: dict[str, Any]) -> None:
    sent = payload("one", said(ToolCall("c1", "print_tool", arguments)), returned("c1"))
    assert sent["messages"][1]["content"][0]["input"] == shown


def test_ids_are_cleaned_alike_in_calls_and_returns_and_stay_different() -> None:
    ids = ("a.b", "a:b", "a_b", "ä", "")
    calls = [ToolCall(one, "print_tool", "{}") for one in ids]
    sent = payload("one", said(*calls), returned(*ids))
    used = [block["id"] for block in sent["messages"][1]["content"]]
    assert len(set(used)) == len(ids)
    assert used[2] == "a_b"
    assert [block["tool_use_id"] for block in sent["messages"][2]["content"]] == used


def test_images_go_as_data_and_also_within_what_a_tool_returned() -> None:
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.data}}
    sent = payload(Turn("user", (Text("see"), PIXEL)), said(CALL), returned("c1", content=(Text("it"), PIXEL)))
    assert sent["messages"][0]["content"][1] == shown | {"cache_control": MARK}
    assert sent["messages"][2]["content"][0]["content"] == [{"type": "text", "text": "it"}, shown]


def test_images_that_the_model_cannot_see_are_named() -> None:
    drawing = Turn("user", (Image("image/svg+xml", "PHN2Zz4="),))
    assert "image/svg+xml" in payload(drawing)["messages"][0]["content"][0]["text"]
    blind = claude(abilities=Abilities(images=False))
    assert payload(Turn("user", (PIXEL,)), model=blind)["messages"][0]["content"][0]["text"] == "[Image omitted]"


@pytest.mark.parametrize(
    ("content", "status", "expected"),
    [
        ("it", "success", {"content": "it"}),
        ("", "success", {}),
        ((Text(" "),), "success", {}),
        ("broken", "error", {"content": "broken", "is_error": True}),
        ("", "error", {"content": NO_OUTPUT, "is_error": True}),
        ((Text("see"), PIXEL), "error", {"content": "see [Image omitted]", "is_error": True}),
    ],
)
def test_returns_are_sent_as_the_vendor_allows(content: Any, status: Any, expected: dict[str, Any]) -> None:
    block = payload("one", said(CALL), returned("c1", content=content, status=status), "on")["messages"][2]["content"][
        0
    ]
    block.pop("cache_control", None)
    assert block == {"type": "tool_result", "tool_use_id": "c1", **expected}


def test_empty_texts_are_never_sent() -> None:
    sent = payload(Turn("user", (Text(""), Text("a"), Text(" \n"))), said("", " ", "b"), Turn("user", (Text(""),)))
    texts = [block["text"] for message in sent["messages"] for block in message["content"]]
    assert texts == ["a", "b", "[empty message]"]
    assert "system" not in payload("one", system=" ")
    assert payload()["messages"][0]["content"][0]["text"] == "[empty message]"


def test_an_open_end_is_trimmed_for_models_that_continue_it() -> None:
    sent = payload("one", said(Reasoning("a", "s"), "and so  \n"), model=OLD)
    assert sent["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "and so"}]}


@pytest.mark.parametrize("model", [BUDGETED, ADAPTIVE])
def test_other_models_are_asked_to_go_on(model: str) -> None:
    sent = payload("one", said("and so "), model=model)
    assert sent["messages"][-1] == {"role": "user", "content": [{"type": "text", "text": CONTINUE}]}


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


def test_a_schema_for_the_answer_is_sent_closed() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    assert payload("one", response_format=wanted)["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "additionalProperties": False,
        },
    }


def test_a_schema_is_put_into_words_where_it_cannot_be_enforced() -> None:
    wanted = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    old = payload("one", model=OLD, response_format=wanted)
    assert "output_config" not in old
    assert '"minimum":1' in old["system"][1]["text"]
    free = {"type": "json_schema", "json_schema": {"type": "object"}}
    assert JSON_ONLY in payload("one", response_format=free)["system"][1]["text"]


def test_a_wish_for_json_is_put_into_words_after_the_cached_prompt() -> None:
    sent = payload("one", response_format={"type": "json_object"})
    assert [block["text"] for block in sent["system"]] == ["Be kind.", JSON_ONLY]
    assert marks(sent) == ["tools", "system", "message 0"]
    assert len(payload("one", response_format={"type": "text"})["system"]) == 1


def test_strict_tools_are_those_whose_schema_can_be_enforced() -> None:
    free = tool("free", anything={"type": "object"})
    sent = payload("one", tools=(DICE, free), settings={"strict": True})
    assert [one.get("strict") for one in sent["tools"]] == [True, None]
    assert sent["tools"][0]["input_schema"]["additionalProperties"] is False
    assert sent["tools"][1]["input_schema"] == free.parameters
    assert "strict" not in payload("one", tools=(PRINT,))["tools"][0]
    older = payload("one", model="claude-sonnet-4-20250514", tools=(DICE,), settings={"strict": True})
    assert "strict" not in older["tools"][0]


def test_betas_are_named_only_where_they_are_needed() -> None:
    assert betas_for("one") == [INTERLEAVED]
    assert betas_for("one", tools=()) == []
    assert betas_for("one", model=ADAPTIVE) == []
    assert betas_for("one", model=OLD, options={"betas": "a-1, b-2"}) == ["a-1", "b-2"]
    wide = {"context_1m": "sonnet,opus"}
    assert betas_for("one", options=wide, tools=()) == [LONG_CONTEXT]
    assert betas_for("one", model="claude-haiku-4-5", options=wide, tools=()) == []


def test_returns_of_several_calls_stay_together() -> None:
    calls = [ToolCall(f"c{index}", "print_tool", "{}") for index in range(3)]
    turn = Turn("tool", tuple(ToolReturn(call.id, call.name, "success", "ok") for call in calls))
    assert kinds(payload("one", said("text", *calls), turn)["messages"][2]) == ["tool_result"] * 3

"""How people ask who have not read the documentation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.messages import Text, ToolCall
from holdfast.llm.base import ToolSchema

from .conversations import ask, called, calls_in, results, said_in, tool

DICE = tool("roll_dice", num_sides="integer")
MANY = tool("rollMany", num_dice="integer", num_sides="integer")
PRINT = tool("print_tool", message="string")
WEATHER = tool(
    "get_weather",
    city="string",
    unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    precise="boolean",
    optional=["unit", "precise"],
)
ADD = tool("add_numbers", a="number", b="number")
EMAIL = tool("send_email", to="string", subject="string", body="string")
WEB = tool("web_search", query="string")
PAGE = tool("fetch_webpage", url="string")
SUM = tool("sum", values={"type": "array", "items": {"type": "number"}})
TAG = tool("tag", labels={"type": "array", "items": {"type": "string"}})
PAINT = tool("paint", colour={"type": "string", "enum": ["red", "dark blue"]}, thing="string")
SPEAK = tool("send_message", message="string", thinking="string", request_heartbeat="boolean")
TOOLS = (DICE, MANY, PRINT, WEATHER, ADD, EMAIL, WEB, PAGE, SUM, TAG, PAINT)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("roll a 16 sided dice with roll_dice", "roll_dice", {"num_sides": 16}),
        ("use roll_dice", "roll_dice", {"num_sides": 1}),
        ("roll_dice", "roll_dice", {"num_sides": 1}),
        ("Roll_Dice, please!", "roll_dice", {"num_sides": 1}),
        ("roll_dice(16)", "roll_dice", {"num_sides": 16}),
        ("roll_dice(num_sides=12)", "roll_dice", {"num_sides": 12}),
        ("roll_dice 20", "roll_dice", {"num_sides": 20}),
        ("Hi! Please roll the dice", "roll_dice", {"num_sides": 1}),
        ("roll a d20", "roll_dice", {"num_sides": 20}),
        ("Could you roll a six-sided die?", "roll_dice", {"num_sides": 6}),
        ("can you roll_dice with 8 sides?", "roll_dice", {"num_sides": 8}),
        ("I'd like you to roll dice", "roll_dice", {"num_sides": 1}),
        ("try roll_dice", "roll_dice", {"num_sides": 1}),
        ("OK, try the roll_dice tool with 10 sides!", "roll_dice", {"num_sides": 10}),
        ("do a roll_dice", "roll_dice", {"num_sides": 1}),
        ("use roll dice tool", "roll_dice", {"num_sides": 1}),
        ("Use roll_dice to roll a 12 sided die", "roll_dice", {"num_sides": 12}),
        ("Why don't you roll the dice?", "roll_dice", {"num_sides": 1}),
        ("rollmany with 3 dice and 8 sides", "rollMany", {"num_dice": 3, "num_sides": 8}),
        ("roll many: 8 sides, 3 dice", "rollMany", {"num_dice": 3, "num_sides": 8}),
        ("get the weather in Paris", "get_weather", {"city": "Paris"}),
        ("Get the weather for New York, please", "get_weather", {"city": "New York"}),
        ("give me the weather in Rome", "get_weather", {"city": "Rome"}),
        ("call get_weather for Paris", "get_weather", {"city": "Paris"}),
        ("call get_weather with city Paris", "get_weather", {"city": "Paris"}),
        ("call get_weather with city=Paris and unit: celsius", "get_weather", {"city": "Paris", "unit": "celsius"}),
        ("call get_weather with city=Paris, unit=kelvin", "get_weather", {"city": "Paris"}),
        ("call get_weather with 'Oslo', precise: yes", "get_weather", {"city": "Oslo", "precise": True}),
        ('get_weather("Oslo")', "get_weather", {"city": "Oslo"}),
        ("get_weather(Oslo)", "get_weather", {"city": "Oslo"}),
        ("add numbers 2 and 3", "add_numbers", {"a": 2, "b": 3}),
        ("add_numbers(2, 3.5)", "add_numbers", {"a": 2, "b": 3.5}),
        ("use add_numbers with b=2 and a=3", "add_numbers", {"a": 3, "b": 2}),
        ("call print_tool with hello world", "print_tool", {"message": "hello world"}),
        ("call print_tool with hello and tell me the result, please", "print_tool", {"message": "hello"}),
        ("call print_tool and tell me the result", "print_tool", {"message": "offline"}),
        ("print_tool hello world", "print_tool", {"message": "hello world"}),
        ("say hello world with print_tool", "print_tool", {"message": "hello world"}),
        ("'a. b' please, with the print tool", "print_tool", {"message": "a. b"}),
        (
            "send an email to bob@example.org saying lunch at noon",
            "send_email",
            {"to": "bob@example.org", "subject": "offline", "body": "lunch at noon"},
        ),
        ("search the web for cats and dogs", "web_search", {"query": "cats and dogs"}),
        ("fetch the webpage https://example.org/a?b=c.", "fetch_webpage", {"url": "https://example.org/a?b=c"}),
        ("sum 1, 2 and 3.5", "sum", {"values": [1, 2, 3.5]}),
        ("tag with red, green and blue", "tag", {"labels": ["red", "green", "blue"]}),
        ("use paint for the fence in Dark Blue", "paint", {"colour": "dark blue"}),
    ],
)
@pytest.mark.parametrize("speaking", [False, True], ids=["answers", "speaks through a tool"])
async def test_the_obvious_way_to_ask_for_a_tool_is_understood(
    text: str, name: str, arguments: dict[str, Any], speaking: bool
) -> None:
    if speaking:
        reply = await ask(text, tools=(*TOOLS, SPEAK), tool_choice="required")
    else:
        reply = await ask(text, tools=TOOLS)
    [(called_name, given_arguments)] = calls_in(reply)
    assert called_name == name
    assert given_arguments.items() >= arguments.items()


async def test_a_tool_can_be_asked_for_several_times_and_after_another() -> None:
    assert len((await ask("Let's roll the dice three times", tools=TOOLS)).calls) == 3
    both = await ask("Try roll_dice. Then try print_tool with hello.", tools=TOOLS)
    assert [name for name, _ in calls_in(both)] == ["roll_dice", "print_tool"]


async def test_the_only_tool_is_meant_by_the_tool() -> None:
    assert [name for name, _ in calls_in(await ask("use your tool with 6", tools=[DICE, SPEAK]))] == ["roll_dice"]
    assert not (await ask("use your tool", tools=[DICE, PRINT])).calls


async def test_a_call_is_made_once_and_its_result_told() -> None:
    text = "roll a 16 sided dice with roll_dice"
    done = [called(ToolCall("c0", "roll_dice", "{}")), results("7", name="roll_dice")]
    assert said_in(await ask(text, *done, tools=TOOLS)) == "roll_dice returned 7."


@pytest.mark.parametrize(
    "text",
    [
        "What does roll_dice do?",
        "Don't roll the dice!",
        "I rolled the dice yesterday.",
        "roll_dice is broken",
        "The roll_dice tool failed again",
        "The weather is nice.",
        "Thank you for the dice",
        "Tell me about roll_dice",
        "Explain roll_dice.",
        "Do you like to roll the dice?",
        "Never try roll_dice",
        "Hello there!",
        "Send me a message",
        "Fix the bug in print_tool",
    ],
)
async def test_who_only_speaks_of_a_tool_is_answered_in_words(text: str) -> None:
    reply = await ask(text, tools=TOOLS)
    assert not reply.calls
    assert said_in(reply) == f"You said: {text}"


@pytest.mark.parametrize("text", ["help", "What can you do?", "Which tools do you have?", "list your tools"])
async def test_who_asks_for_help_is_told_what_to_say(text: str) -> None:
    reply = await ask(text, tools=[DICE, PRINT])
    assert "roll_dice and print_tool" in said_in(reply)
    assert "“use roll_dice”" in said_in(reply)
    assert "remember" not in said_in(reply)
    assert "no tools" in said_in(await ask(text, tools=[]))
    keeps = tool("core_memory_append", label="string", content="string")
    assert "“remember that I like tea”" in said_in(await ask(text, tools=[keeps]))


WORDS = """use call roll_dice print_tool get_weather city with ( ) = : ' " , . ! and 16 -0.5 1e9 six d20 times remember
that I like in your memory search for what is my { } {"a": https:// a@b.c true block send_email to not don't please the
human é ’ 3"""
FRAGMENTS = st.sampled_from([*WORDS.split(), "roll the dice", "\n", "\u2028", "0" * 400])
TEXTS = st.one_of(st.text(max_size=200), st.lists(FRAGMENTS | st.text(max_size=5), max_size=40).map(" ".join))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WORDS_OF_SCHEMAS = "type properties required enum items minItems default examples anyOf oneOf $ref minimum const"
KEYWORDS = st.sampled_from(WORDS_OF_SCHEMAS.split())
KINDS_AND_PLACES = "string integer array object number boolean # #/ #/properties/a"
VALUES = JSON | st.sampled_from(KINDS_AND_PLACES.split())
SCHEMAS = st.recursive(
    st.dictionaries(KEYWORDS, VALUES, max_size=4),
    lambda inner: (
        st.dictionaries(KEYWORDS, inner | st.lists(inner, max_size=2) | VALUES, max_size=4)
        | st.fixed_dictionaries(
            {"properties": st.dictionaries(st.sampled_from(["a", "city", "num_sides", ""]), inner, max_size=3)},
            optional={
                "required": st.lists(st.sampled_from(["a", "city", "b", ""]), max_size=3),
                "type": st.just("object"),
            },
        )
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(["roll_dice", "f", "getWeather", "a-b", "ß", "___", "memory_insert", "send_message", "tool"])
STRANGE = st.builds(ToolSchema, NAMES, st.just(""), SCHEMAS)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(text=TEXTS, strange=st.lists(STRANGE, max_size=3, unique_by=lambda one: one.name), forced=st.booleans())
async def test_no_text_and_no_schema_is_too_strange(text: str, strange: list[ToolSchema], forced: bool) -> None:
    """Directives may be refused; all else is answered, with calls of what was offered, in JSON."""
    tools = [*strange, *(one for one in TOOLS if one.name not in {tool.name for tool in strange})]
    reply = await ask(text.replace("[[", ""), tools=tools, system=SYSTEM, tool_choice="required" if forced else "auto")
    assert reply.finish in ("stop", "tool_calls")
    assert {call.name for call in reply.calls} <= {tool.name for tool in tools}
    assert all(isinstance(json.loads(call.arguments), dict) for call in reply.calls)
    assert reply.calls or any(isinstance(part, Text) for part in reply.parts)


SYSTEM = (
    "<memory_blocks>\n\n<human>\n<description>\n\n</description>\n<metadata>\n</metadata>\n<value>\nx\n</value>\n</human>\n"
    "</memory_blocks>"
)

"""What the offline model is told to remember, and what it is asked about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core import system_prompt
from holdfast.core.messages import ToolCall
from holdfast.core.records import Agent, Block, ModelChoice
from holdfast.llm.base import ToolSchema
from holdfast.llm.offline.remembering import KEEPING, fact_to_keep, shown_blocks
from holdfast.tools import builtin

from .conversations import PRINT, ask, called, calls_in, results, said_in, tool


def block(label: str, value: str = "", *, read_only: bool = False) -> Block:
    return Block(id=f"block-{label}", label=label, value=value, read_only=read_only)


def system_of(*blocks: Block, handle: str = "holdfast/offline") -> str:
    model = ModelChoice(handle=handle, context_window=1_000)
    agent = Agent(id="agent-1", name="a", agent_type="letta_v1_agent", system="Be kind.", model=model)
    return system_prompt.compile_system(agent, blocks, conversation_id=None, recompiled_at_text="", previous_messages=0)


def shipped(*names: str) -> list[ToolSchema]:
    found = [builtin.TOOLS[name].json_schema for name in names]
    return [ToolSchema(one["name"], one["description"], one["parameters"]) for one in found]


HUMAN = (block("persona", "I help."), block("human", "My name is Ada."))


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("remember that I like tea", "I like tea"),
        ("Remember: I like tea", "I like tea"),
        ("Hello! Please remember that my name is Ada.", "my name is Ada"),
        ("remember I like tea", "I like tea"),
        ("remember my name is Ada", "my name is Ada"),
        ("remember to water the plants", "to water the plants"),
        ("Can you remember that I live in Oslo?", "I live in Oslo"),
        ("I like tea. Remember that!", "I like tea"),
        ("I like tea, please remember that", "I like tea"),
        ("My name is Ada. Remember it please.", "My name is Ada"),
        ("Keep in mind that I'm vegan", "I'm vegan"),
        ("don't forget that I like tea", "I like tea"),
        ("note that I like tea", "I like tea"),
        ("make a note: dentist on Monday", "dentist on Monday"),
        ("Save this: I like tea", "I like tea"),
        ("save this to your memory: I like tea", "I like tea"),
        ("Store in memory that I like tea", "I like tea"),
        ("add 'likes tea' to your memory", "likes tea"),
        ("Add likes tea to the human block", "likes tea"),
        ("put I like tea in your memory", "I like tea"),
        ("update your memory: I moved to Rome", "I moved to Rome"),
        ("remember 'the code is 7. Really'", "the code is 7. Really"),
        ("remember this", None),
        ("remember my name", None),
        ("Remember the anchor", None),
        ("I remember that day", None),
        ("Do you remember that day?", None),
        ("Note: the build failed", None),
        ("", None),
    ],
)
def test_what_is_to_be_kept_is_found_in_the_text(text: str, fact: str | None) -> None:
    assert fact_to_keep(text) == fact


FACT = "I like tea"


@pytest.mark.parametrize(
    ("tools", "name", "arguments"),
    [
        (["memory_replace", "memory_insert"], "memory_insert", {"label": "human", "new_string": FACT}),
        (["core_memory_replace", "core_memory_append"], "core_memory_append", {"label": "human", "content": FACT}),
        (["memory"], "memory", {"command": "insert", "path": "/memories/human", "insert_text": FACT}),
        (["memory_apply_patch"], "memory_apply_patch", {"label": "human", "patch": f"+{FACT}"}),
        (["memory_rethink"], "memory_rethink", {"label": "human", "new_memory": f"My name is Ada.\n{FACT}"}),
        (["archival_memory_insert"], "archival_memory_insert", {"content": FACT}),
        (["archival_memory_insert", "memory_insert"], "memory_insert", {"label": "human", "new_string": FACT}),
    ],
)
async def test_it_is_kept_with_whichever_tool_there_is(tools: list[str], name: str, arguments: dict[str, Any]) -> None:
    text, system = f"Please remember that {FACT}.", system_of(*HUMAN)
    reply = await ask(text, tools=[PRINT, *shipped(*tools)], system=system)
    assert calls_in(reply) == [(name, arguments)]
    assert name in KEEPING
    done = [called(*reply.calls), results("None", name=name)]
    assert said_in(await ask(text, *done, tools=shipped(*tools), system=system)) == f"I will remember: {FACT}"
    failed = [called(*reply.calls), results("full", name=name, status="error")]
    assert said_in(await ask(text, *failed, tools=shipped(*tools), system=system)) == f"{name} failed: full."


@pytest.mark.parametrize(
    ("text", "blocks", "name", "where"),
    [
        ("Add likes tea to the persona block", HUMAN, "memory_insert", "persona"),
        ("remember that I like tea", (block("rules", read_only=True), block("facts")), "memory_insert", "facts"),
        ("Save likes tea in archival memory", HUMAN, "archival_memory_insert", None),
        ("remember that I like tea", (), "archival_memory_insert", None),
        ("remember that I like tea", (block("human", read_only=True),), "archival_memory_insert", None),
    ],
)
async def test_it_is_kept_where_it_belongs(text: str, blocks: Sequence[Block], name: str, where: str | None) -> None:
    tools = shipped("memory_insert", "archival_memory_insert")
    [(called_name, arguments)] = calls_in(await ask(text, tools=tools, system=system_of(*blocks)))
    assert (called_name, arguments.get("label")) == (name, where)


async def test_without_blocks_one_is_made() -> None:
    [(name, arguments)] = calls_in(await ask("remember that I like tea", tools=shipped("memory"), system=system_of()))
    assert (name, arguments["command"], arguments["file_text"]) == ("memory", "create", "I like tea")


async def test_who_has_no_tool_for_it_says_so_no_differently() -> None:
    other = tool("memory_insert", something="string")
    for tools in ([PRINT], [other]):
        reply = await ask("remember that I like tea", tools=tools, system=system_of(*HUMAN))
        assert said_in(reply) == "You said: remember that I like tea"


async def test_who_speaks_through_a_tool_remembers_first_and_speaks_then() -> None:
    speak = tool("send_message", message="string", thinking="string", request_heartbeat="boolean")
    append = tool(
        "core_memory_append", thinking="string", label="string", content="string", request_heartbeat="boolean"
    )
    more: dict[str, Any] = {"tools": [speak, append], "tool_choice": "required", "system": system_of(*HUMAN)}
    first = await ask("remember that I like tea", **more)
    [(name, arguments)] = calls_in(first)
    assert (name, arguments["content"], arguments["request_heartbeat"]) == ("core_memory_append", "I like tea", True)
    then = await ask(
        "remember that I like tea", called(*first.calls), results("None", name="core_memory_append"), **more
    )
    [(name, arguments)] = calls_in(then)
    assert (name, arguments["message"]) == ("send_message", "I will remember: I like tea")


@pytest.mark.parametrize(
    ("text", "name", "query"),
    [
        ("search your memory for tea", "archival_memory_search", "tea"),
        ("Please look in your archive for the trip to Rome.", "archival_memory_search", "the trip to Rome"),
        ("recall the trip to Rome", "archival_memory_search", "the trip to Rome"),
        ("Do you remember the trip to Rome?", "archival_memory_search", "the trip to Rome"),
        ("search our conversation for 'tea'", "conversation_search", "tea"),
        ("What did I say about tea?", "conversation_search", "tea"),
    ],
)
async def test_what_is_not_in_view_is_searched(text: str, name: str, query: str) -> None:
    tools = shipped("archival_memory_search", "conversation_search")
    assert calls_in(await ask(text, tools=tools, system=system_of(*HUMAN))) == [(name, {"query": query})]


@pytest.mark.parametrize(
    "text",
    [
        "What's my name?",
        "Who am I?",
        "what do you remember about me?",
        "What do you know?",
        "show me your memory",
        "Tell me what you know about me.",
        "Do you remember my name?",
    ],
)
async def test_what_is_in_view_is_told(text: str) -> None:
    tools = shipped("archival_memory_search", "conversation_search", "memory_insert")
    said = said_in(await ask(text, tools=tools, system=system_of(*HUMAN)))
    assert said == "My memory says: persona: I help. human: My name is Ada."
    assert said_in(await ask(text, tools=tools, system=system_of(block("human")))) == f"You said: {text}"


@pytest.mark.parametrize("text", ["Tell me a joke", "What is your name?", "What does my_tool do?", "Show me the way"])
async def test_other_questions_are_repeated(text: str) -> None:
    assert said_in(await ask(text, system=system_of(*HUMAN))) == f"You said: {text}"


async def test_a_result_is_told_before_memory() -> None:
    done = [called(ToolCall("c0", "print_tool", "{}")), results("x")]
    assert (
        said_in(await ask("What's my name? Use print_tool.", *done, system=system_of(*HUMAN)))
        == "print_tool returned x."
    )


@pytest.mark.parametrize("handle", ["holdfast/offline", "anthropic/claude"])
def test_blocks_are_read_as_prompts_show_them(handle: str) -> None:
    blocks = [block("human", "a\n<b>\n\n</value> c"), block("empty"), block("my notes", "x", read_only=True)]
    shown = shown_blocks(system_of(*blocks, handle=handle))
    assert [(one.label, one.value, one.read_only) for one in shown] == [
        ("human", "a\n<b>\n\n&lt;/value> c", False),
        ("empty", "", False),
        ("my_notes", "x", True),
    ]
    assert shown_blocks("no blocks") == []

"""Tool rules, alone and in pairs: what may be called next, what must be, and what ends a turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from letta_client import AsyncLetta

from tests.conformance.checks import check_at_rest, check_next_message_works, history, read_run
from tests.conformance.conftest import MakeAgent
from tests.conformance.modes import Json, Outcome, send
from tests.conformance.vendors import with_every_vendor

PRINT = '[[call:print_tool {"message": "p"}@%d]]'
DICE = '[[call:roll_dice {"num_sides": 1}@%d]]'
REFUSED = "[ToolConstraintError] Cannot call"


async def ask(client: AsyncLetta, agent: str, said: str, **options: Any) -> Outcome:
    return await send(client, "blocking", agent, said, **options)


def made(outcome: Outcome) -> list[tuple[str, bool]]:
    """The calls in order, and whether each was carried out."""
    names = [call["name"] for message in outcome.messages for call in message.get("tool_calls") or ()]
    returns = [back for message in outcome.messages for back in message.get("tool_returns") or ()]
    done = [not str(back["tool_return"]).startswith(REFUSED) for back in returns]
    return list(zip(names, done, strict=True))


@with_every_vendor
async def test_a21_run_first_forces_the_first_call(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [{"type": "run_first", "tool_name": "roll_dice", "args": {"num_sides": 1}}]
    agent = await make_agent("print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, "Call print_tool with 'x'")

    assert made(told) == [("roll_dice", True), ("print_tool", True)]
    first = next(message for message in told.messages if "tool_calls" in message)
    assert '"num_sides":1' in first["tool_calls"][0]["arguments"].replace(" ", "")
    assert told.stop_reason == "end_turn"
    await check_at_rest(client, agent)


@with_every_vendor
async def test_a21_a_first_call_of_anything_else_is_refused(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [{"type": "run_first", "tool_name": "roll_dice"}]
    agent = await make_agent("print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, f"{PRINT % 1} {DICE % 2}")

    assert made(told) == [("print_tool", False), ("roll_dice", True)]
    refusal = next(message for message in told.messages if message["message_type"] == "tool_return_message")
    assert refusal["status"] == "error"
    assert refusal["tool_return"].startswith(f"{REFUSED} print_tool, valid tools include: ['roll_dice'].")
    assert told.stop_reason == "end_turn"
    await check_at_rest(client, agent)


async def test_a21_arguments_that_a_rule_gets_wrong_end_the_run(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [{"type": "run_first", "tool_name": "roll_dice", "args": {"no_such_argument": 1}}]
    agent = await make_agent("roll_dice", tool_rules=rules)

    told = await ask(client, agent, "Call roll_dice with 6 sides")

    assert told.stop_reason == "invalid_tool_call"
    assert told.last["tool_return"].startswith("Invalid prefilled tool arguments from tool rules")
    assert (await read_run(client, told.run_id))["status"] == "failed"
    await check_at_rest(client, agent)


@with_every_vendor
async def test_a21_children_must_follow_their_parent(client: AsyncLetta, make_agent: MakeAgent) -> None:
    nodes = [{"name": "roll_dice", "args": {"num_sides": 1}}]
    rules = [
        {
            "type": "constrain_child_tools",
            "tool_name": "print_tool",
            "children": ["roll_dice"],
            "child_arg_nodes": nodes,
        }
    ]
    agent = await make_agent("print_tool", "roll_dice", "tell", tool_rules=rules)

    told = await ask(client, agent, "Call print_tool with 'x'")

    assert made(told) == [("print_tool", True), ("roll_dice", True)]
    assert told.text.endswith("roll_dice returned 1.")
    await check_at_rest(client, agent)


@pytest.mark.parametrize(
    ("kind", "value", "mapping"),
    [
        ("str", "left", {"left": "roll_dice", "right": "print_tool"}),
        ("int", "3", {3: "roll_dice", 4: "print_tool"}),
        ("bool", "true", {"true": "roll_dice", "false": "print_tool"}),
        ("bool", "false", {True: "print_tool", False: "roll_dice"}),
    ],
)
async def test_a21_a_condition_reads_what_the_tool_returned(
    client: AsyncLetta, make_agent: MakeAgent, kind: str, value: str, mapping: dict[Any, str]
) -> None:
    rules: Any = [{"type": "conditional", "tool_name": "tell", "child_output_mapping": mapping}]
    agent = await make_agent("tell", "print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, f'[[call:tell {{"value": "{value}", "kind": "{kind}"}}@1]]')

    assert made(told) == [("tell", True), ("roll_dice", True)]
    assert told.stop_reason == "end_turn"
    await check_at_rest(client, agent)


async def test_a21_a_condition_that_matches_nothing_falls_back(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rule = {"type": "conditional", "tool_name": "tell", "child_output_mapping": {"left": "print_tool"}}
    said = '[[call:tell {"value": "up", "kind": "str"}@1]]'
    with_default = await make_agent(
        "tell", "print_tool", "roll_dice", tool_rules=[rule | {"default_child": "roll_dice"}]
    )
    without = await make_agent("tell", "print_tool", "roll_dice", tool_rules=[rule])
    strict = await make_agent("tell", "print_tool", "roll_dice", tool_rules=[rule | {"require_output_mapping": True}])

    assert made(await ask(client, with_default, said)) == [("tell", True), ("roll_dice", True)]
    assert made(await ask(client, without, f"{said} {PRINT % 2}")) == [("tell", True), ("print_tool", True)]
    refused = await ask(client, strict, f"{said} {PRINT % 2}")
    assert made(refused) == [("tell", True), ("print_tool", False)]
    assert any("valid tools include: []" in str(message.get("tool_return")) for message in refused.messages)


async def test_a21_a_child_of_a_parent_is_hidden_until_then(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [{"type": "parent_last_tool", "tool_name": "print_tool", "children": ["roll_dice"]}]
    agent = await make_agent("print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, f"{DICE % 1} {PRINT % 2} {DICE % 3}")

    assert made(told) == [("roll_dice", False), ("print_tool", True), ("roll_dice", True)]
    await check_at_rest(client, agent)


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a21_a_tool_may_be_called_exactly_as_often_as_the_rule_says(
    client: AsyncLetta, make_agent: MakeAgent, limit: int
) -> None:
    rules = [{"type": "max_count_per_step", "tool_name": "print_tool", "max_count_limit": limit}]
    agent = await make_agent("print_tool", tool_rules=rules)

    told = await ask(client, agent, " ".join(PRINT % number for number in range(1, 5)))

    assert [done for _, done in made(told)] == [number < limit for number in range(4)]
    again = await ask(client, agent, PRINT % 1)
    assert made(again) == [("print_tool", True)], "every run counts anew"
    await check_at_rest(client, agent)


@with_every_vendor
async def test_a21_a_terminal_tool_ends_the_turn(client: AsyncLetta, make_agent: MakeAgent) -> None:
    agent = await make_agent("print_tool", tool_rules=[{"type": "exit_loop", "tool_name": "print_tool"}])

    told = await ask(client, agent, "Call print_tool with 'x'")

    assert told.stop_reason == "tool_rule"
    assert told.types[-1] == "tool_return_message"
    assert (await read_run(client, told.run_id))["status"] == "completed"
    await check_next_message_works(client, agent)


@with_every_vendor
async def test_a21_a_terminal_tool_does_not_end_the_turn_while_another_is_required(
    client: AsyncLetta, make_agent: MakeAgent
) -> None:
    rules = [
        {"type": "exit_loop", "tool_name": "print_tool"},
        {"type": "required_before_exit", "tool_name": "roll_dice"},
    ]
    agent = await make_agent("print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, f"{PRINT % 1} {DICE % 2} {PRINT % 3}")

    assert made(told) == [("print_tool", True), ("roll_dice", True), ("print_tool", True)]
    assert told.stop_reason == "tool_rule"
    await check_at_rest(client, agent)


@with_every_vendor
async def test_a21_when_nothing_is_left_nothing_is_offered(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [
        {"type": "run_first", "tool_name": "print_tool"},
        {"type": "parent_last_tool", "tool_name": "roll_dice", "children": ["print_tool"]},
    ]
    agent = await make_agent("print_tool", "roll_dice", tool_rules=rules)

    told = await ask(client, agent, f"{PRINT % 1} {DICE % 2}", max_steps=3)

    assert made(told) == [("print_tool", False), ("roll_dice", False)]
    assert "valid tools include: []" in str([message.get("tool_return") for message in told.messages])
    await check_at_rest(client, agent)


async def test_a21_any_rule_but_approval_turns_parallel_calls_off(client: AsyncLetta, make_agent: MakeAgent) -> None:
    guarded = await make_agent("print_tool", tool_rules=[{"type": "requires_approval", "tool_name": "print_tool"}])
    ruled = await make_agent("print_tool", tool_rules=[{"type": "continue_loop", "tool_name": "print_tool"}])
    said = "Call print_tool twice with 'a' and 'b'"

    assert len((await ask(client, guarded, said)).last["tool_calls"]) == 2
    told = await ask(client, ruled, said)
    assert [len(message["tool_calls"]) for message in told.messages if message.get("tool_calls")] == [1, 1]


async def test_a21_rules_are_told_to_the_model(client: AsyncLetta, make_agent: MakeAgent) -> None:
    rules = [{"type": "exit_loop", "tool_name": "print_tool"}]
    agent = await make_agent("print_tool", tool_rules=rules)

    system = (await history(client, agent))[0]["content"]

    assert "<tool_usage_rules>" in system
    assert "print_tool" in system.partition("<tool_usage_rules>")[2]


# --- in pairs, against the rules as they are written down ---

RULES: dict[str, Json] = {
    "first": {"type": "run_first", "tool_name": "print_tool"},
    "child": {"type": "constrain_child_tools", "tool_name": "print_tool", "children": ["roll_dice"]},
    "condition": {"type": "conditional", "tool_name": "print_tool", "child_output_mapping": {"p": "roll_dice"}},
    "parent": {"type": "parent_last_tool", "tool_name": "print_tool", "children": ["roll_dice"]},
    "count": {"type": "max_count_per_step", "tool_name": "print_tool", "max_count_limit": 1},
    "exit": {"type": "exit_loop", "tool_name": "roll_dice"},
    "continue": {"type": "continue_loop", "tool_name": "print_tool"},
    "required": {"type": "required_before_exit", "tool_name": "print_tool"},
    "approval": {"type": "requires_approval", "tool_name": "roll_dice"},
}
NAMES = ("print_tool", "roll_dice")


def may_call(rules: Sequence[Json], done: Sequence[str], name: str) -> bool:
    """The table of the reference, read once more."""
    last = done[-1] if done else None
    for rule in rules:
        kind, about = rule["type"], rule["tool_name"]
        children = rule.get("children") or list(rule.get("child_output_mapping", {}).values())
        if kind == "run_first" and last is None and name != about:
            return False
        if (
            kind in ("constrain_child_tools", "conditional", "parent_last_tool")
            and last == about
            and name not in children
        ):
            return False
        if kind == "parent_last_tool" and last != about and name in children:
            return False
        if kind == "max_count_per_step" and name == about and done.count(about) >= rule["max_count_limit"]:
            return False
    return True


def stop_after(rules: Sequence[Json], done: Sequence[str], name: str) -> str | None:
    """Why the run stops at this allowed call, if it does."""
    kinds = {rule["type"]: rule["tool_name"] for rule in rules}
    if kinds.get("requires_approval") == name:
        return "requires_approval"
    missing = kinds.get("required_before_exit") not in (None, *done, name)
    return "tool_rule" if kinds.get("exit_loop") == name and not missing else None


@pytest.mark.parametrize("pair", [*((name,) for name in RULES), *combinations(RULES, 2)], ids="-".join)
async def test_a21_pairs_of_rules_hold_together(
    client: AsyncLetta, make_agent: MakeAgent, pair: tuple[str, ...]
) -> None:
    """The model tries dice, print, dice, print, dice; the rules say what comes of each."""
    rules = [RULES[name] for name in pair]
    agent = await make_agent(*NAMES, tool_rules=rules)

    told = await ask(client, agent, f"{DICE % 1} {PRINT % 2} {DICE % 3} {PRINT % 4} {DICE % 5}", max_steps=5)

    done: list[str] = []
    stop: str | None = None
    for name, carried_out in made_or_asked(told):
        assert stop is None, "nothing is called after the end"
        allowed = may_call(rules, done, name)
        assert carried_out is allowed, (name, done)
        if allowed:
            stop = stop_after(rules, done, name)
            done.append(name)
    assert told.stop_reason == (stop or "max_steps")
    await check_at_rest(client, agent)


def made_or_asked(outcome: Outcome) -> list[tuple[str, bool]]:
    if outcome.stop_reason != "requires_approval":
        return made(outcome)
    (asked,) = outcome.last["tool_calls"]
    outcome = Outcome(mode=outcome.mode, messages=outcome.messages[:-1])
    return [*made(outcome), (asked["name"], True)]

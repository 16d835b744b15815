from __future__ import annotations

from itertools import combinations

import msgspec
import pytest

from holdfast.core import tool_rules
from holdfast.core.tool_rules import (
    Called,
    ChildArguments,
    Children,
    Choice,
    Conditional,
    ContinueLoop,
    ExitLoop,
    MaxCount,
    Parent,
    RequiredBeforeExit,
    RequiresApproval,
    Rule,
    RunFirst,
)

TOOLS = ("a", "b", "c", "d")
HISTORIES: tuple[list[str], ...] = ([], ["a"], ["b"], ["a", "b"], ["b", "a"], ["a", "a"])
RULES: tuple[Rule, ...] = (
    RunFirst(tool_name="a"),
    Children(tool_name="a", children=("b", "c")),
    Conditional(tool_name="a", child_output_mapping={"ok": "b"}, default_child="c"),
    Conditional(tool_name="a", child_output_mapping={"no": "b"}, require_output_mapping=True),
    Parent(tool_name="a", children=("c", "d")),
    MaxCount(tool_name="a", max_count_limit=2),
    ExitLoop(tool_name="a"),
    ContinueLoop(tool_name="b"),
    RequiredBeforeExit(tool_name="c"),
    RequiresApproval(tool_name="d"),
)


def made(names: list[str], returned: str = "ok") -> list[Called]:
    return [Called(name, returned) for name in names]


def choose(rules: list[Rule], *names: str, returned: str = "ok") -> Choice:
    return tool_rules.choose(rules, TOOLS, made(list(names), returned))


def test_without_rules_everything_may_be_called_and_nothing_must() -> None:
    assert choose([]) == Choice(TOOLS, False)


def test_a_first_tool_is_forced_until_any_tool_was_called() -> None:
    rules: list[Rule] = [RunFirst(tool_name="a", args={"x": 1}), RunFirst(tool_name="b")]
    assert choose(rules) == Choice(("a", "b"), True, {"a": {"x": 1}})
    assert choose(rules, "c") == Choice(TOOLS, False)


def test_children_are_forced_right_after_their_parent_with_their_arguments() -> None:
    nodes = (ChildArguments("c", {"x": 1}), ChildArguments("b"))
    rule = Children(tool_name="a", children=("c", "b"), child_arg_nodes=nodes)
    assert choose([rule]) == Choice(TOOLS, False)
    assert choose([rule], "a") == Choice(("b", "c"), True, {"c": {"x": 1}})
    assert choose([rule], "a", "b") == Choice(TOOLS, False)


@pytest.mark.parametrize(
    ("key", "returned", "same"),
    [
        ("ok", "ok", True),
        ("ok", "OK", False),
        ("ok", "not ok", False),
        ("true", "True", True),
        ("True", "true", True),
        ("false", " False ", True),
        ("true", "false", False),
        ("true", "1", False),
        ("1", "1", True),
        ("1", "1.0", True),
        ("1.5", "1.5", True),
        ("1", "2", False),
        ("1", "one", False),
    ],
)
def test_a_conditional_compares_the_key_with_what_the_tool_returned(key: str, returned: str, same: bool) -> None:
    rule = Conditional(tool_name="a", child_output_mapping={key: "b"}, default_child="c")
    assert choose([rule], "a", returned=returned) == Choice(("b" if same else "c",), True)


def test_a_conditional_looks_at_the_last_call_only() -> None:
    rule = Conditional(tool_name="a", child_output_mapping={"ok": "b"})
    assert choose([rule]) == Choice(TOOLS, False)
    assert choose([rule], "a", "c") == Choice(TOOLS, False)


def test_a_conditional_without_a_match_allows_all_or_by_wish_nothing() -> None:
    lenient = Conditional(tool_name="a", child_output_mapping={"ok": "b"})
    strict = Conditional(
        tool_name="a", child_output_mapping={"ok": "b"}, default_child="c", require_output_mapping=True
    )
    assert choose([lenient], "a", returned="else") == Choice(TOOLS, False)
    assert choose([strict], "a", returned="else") == Choice((), False)


def test_some_tools_are_shown_only_right_after_their_parent() -> None:
    rule = Parent(tool_name="a", children=("b",))
    assert choose([rule]) == Choice(("a", "c", "d"), False)
    assert choose([rule], "a") == Choice(("b",), True)
    assert choose([rule], "a", "b") == Choice(("a", "c", "d"), False)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_allows_exactly_that_many_calls(limit: int) -> None:
    rule = MaxCount(tool_name="a", max_count_limit=limit)
    for count in range(limit):
        assert "a" in choose([rule], *["a", "b"] * count).allowed
    assert choose([rule], *["a"] * limit).allowed == ("b", "c", "d")


@pytest.mark.parametrize("rule", RULES[6:])
def test_rules_about_ending_and_approval_hide_nothing(rule: Rule) -> None:
    for names in HISTORIES:
        assert choose([rule], *names) == Choice(TOOLS, False)


@pytest.mark.parametrize(("left", "right"), list(combinations(RULES, 2)))
def test_two_rules_leave_what_both_allow(left: Rule, right: Rule) -> None:
    for names in HISTORIES:
        alone, other, both = (choose(rules, *names) for rules in ([left], [right], [left, right]))
        assert both.allowed == tuple(name for name in alone.allowed if name in other.allowed)
        assert both.forced == ((alone.forced or other.forced) and bool(both.allowed))
        assert choose([right, left], *names) == both


def test_when_rules_leave_nothing_nothing_is_offered_and_nothing_forced() -> None:
    rules: list[Rule] = [
        Children(tool_name="a", children=("b",)),
        Conditional(tool_name="a", child_output_mapping={"ok": "c"}),
    ]
    assert choose(rules, "a") == Choice((), False)
    assert choose([RunFirst(tool_name="not attached")]) == Choice((), False)


def test_only_tools_with_the_rule_need_approval() -> None:
    assert tool_rules.approval_names([RequiresApproval(tool_name="a"), ExitLoop(tool_name="b")]) == {"a"}


def test_only_terminal_tools_end_the_turn() -> None:
    assert tool_rules.any_ends_turn([ExitLoop(tool_name="a")], ["b", "a"])
    assert not tool_rules.any_ends_turn([ExitLoop(tool_name="a"), ContinueLoop(tool_name="b")], ["b"])


def test_required_tools_are_named_once_while_attached_and_uncalled() -> None:
    rules = [RequiredBeforeExit(tool_name=name) for name in ("c", "a", "c", "gone")]
    assert tool_rules.uncalled_required(rules, TOOLS, []) == ("c", "a")
    assert tool_rules.uncalled_required(rules, TOOLS, made(["a"])) == ("c",)


@pytest.mark.parametrize("rule", RULES)
def test_any_rule_but_approval_forbids_parallel_calls(rule: Rule) -> None:
    assert tool_rules.allows_parallel_calls([rule]) is isinstance(rule, RequiresApproval)
    assert tool_rules.allows_parallel_calls([])


def test_the_model_is_told_the_rules_it_can_follow() -> None:
    assert tool_rules.explain(RULES).splitlines() == [
        "- a must be the first tool you call.",
        "- After a you must call one of: b, c.",
        "- c, d may be called only right after a.",
        "- Calling a ends your turn.",
        "- Calling b does not end your turn.",
    ]
    assert tool_rules.explain([]) == ""


@pytest.mark.parametrize("name", TOOLS)
def test_rules_follow_a_tool_that_is_renamed(name: str) -> None:
    nodes = (ChildArguments("b", {"x": 1}), ChildArguments("c"))
    rules = (*RULES, Children(tool_name="d", children=("b", "c"), child_arg_nodes=nodes))
    renamed = tool_rules.with_renamed(rules, name, "new")
    assert f'"{name}"' not in msgspec.json.encode(renamed).decode()
    assert tool_rules.with_renamed(renamed, "new", name) == rules


def test_tools_whose_calls_are_counted_or_ordered_are_bound() -> None:
    assert tool_rules.bound_names([]) == frozenset()
    rules = [
        RunFirst(tool_name="first"),
        RequiresApproval(tool_name="asking"),
        Parent(tool_name="parent", children=("child",)),
        Children(tool_name="before", children=("free",)),
        Conditional(tool_name="asked", child_output_mapping={"1": "free"}),
        MaxCount(tool_name="counted", max_count_limit=1),
    ]
    assert tool_rules.bound_names(rules) == {"parent", "child", "before", "asked", "counted"}

"""Which tools may or must be called next, and when a call ends the turn.

A pure function of the agent's rules, the attached tools and the calls already made in this run. Several restricting
rules intersect; if nothing is left, nothing is offered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec


class RuleBase(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    tool_name: str
    prompt_template: str | None = None


class RunFirst(RuleBase, frozen=True, tag="run_first"):
    args: dict[str, Any] | None = None


class ChildArguments(msgspec.Struct, frozen=True):
    name: str
    args: dict[str, Any] | None = None


class Children(RuleBase, frozen=True, tag="constrain_child_tools"):
    children: tuple[str, ...]
    child_arg_nodes: tuple[ChildArguments, ...] | None = None


class Conditional(RuleBase, frozen=True, tag="conditional"):
    child_output_mapping: dict[str, str]
    default_child: str | None = None
    require_output_mapping: bool = False


class Parent(RuleBase, frozen=True, tag="parent_last_tool"):
    children: tuple[str, ...]


class MaxCount(RuleBase, frozen=True, tag="max_count_per_step"):
    max_count_limit: int


class ExitLoop(RuleBase, frozen=True, tag="exit_loop"):
    pass


class ContinueLoop(RuleBase, frozen=True, tag="continue_loop"):
    pass


class RequiredBeforeExit(RuleBase, frozen=True, tag="required_before_exit"):
    pass


class RequiresApproval(RuleBase, frozen=True, tag="requires_approval"):
    pass


Rule = (
    RunFirst
    | Children
    | Conditional
    | Parent
    | MaxCount
    | ExitLoop
    | ContinueLoop
    | RequiredBeforeExit
    | RequiresApproval
)


class Called(msgspec.Struct, frozen=True):
    """A call that was carried out in this run, and what it returned."""

    name: str
    returned: str


class Choice(msgspec.Struct, frozen=True):
    allowed: tuple[str, ...]
    forced: bool  # the model must call one of them
    prefilled: dict[str, dict[str, Any]] = {}


def with_renamed(rules: Iterable[Rule], old: str, new: str) -> tuple[Rule, ...]:
    """The same rules for a tool that has another name now."""
    return tuple(_renamed(rule, {old: new}) for rule in rules)


def _renamed(rule: Rule, names: Mapping[str, str]) -> Rule:
    def name(each: str) -> str:
        return names.get(each, each)

    changes: dict[str, Any] = {"tool_name": name(rule.tool_name)}
    match rule:
        case Children(children=children, child_arg_nodes=nodes):
            changes["children"] = tuple(map(name, children))
            changes["child_arg_nodes"] = nodes and tuple(ChildArguments(name(node.name), node.args) for node in nodes)
        case Parent(children=children):
            changes["children"] = tuple(map(name, children))
        case Conditional(child_output_mapping=mapping, default_child=default):
            changes["child_output_mapping"] = {output: name(child) for output, child in mapping.items()}
            changes["default_child"] = default and name(default)
        case _:
            pass
    return msgspec.structs.replace(rule, **changes)


def choose(rules: Sequence[Rule], attached: Sequence[str], history: Sequence[Called]) -> Choice:
    """The rules narrow down one set, which is put into the order of `attached` once: rules and tools may be many."""
    if not rules:
        return Choice(tuple(attached), forced=False)
    allowed, forced, prefilled = set(attached), False, dict[str, dict[str, Any]]()
    firsts = [rule for rule in rules if isinstance(rule, RunFirst)]
    if firsts and not history:
        allowed.intersection_update(rule.tool_name for rule in firsts)
        forced = True
        prefilled |= {rule.tool_name: rule.args for rule in firsts if rule.args}
    counts = Counter(call.name for call in history)
    for rule in rules:
        only = _only_next(rule, history)
        if only is not None:
            allowed.intersection_update(only)
            forced = True
            if isinstance(rule, Children):
                prefilled |= {node.name: node.args for node in rule.child_arg_nodes or () if node.args}
        allowed.difference_update(_hidden(rule, history, counts))
    return Choice(tuple(name for name in attached if name in allowed), forced and bool(allowed), prefilled)


def approval_names(rules: Iterable[Rule]) -> frozenset[str]:
    """The tools of which each call needs an approval."""
    return frozenset(rule.tool_name for rule in rules if isinstance(rule, RequiresApproval))


def bound_names(rules: Iterable[Rule]) -> frozenset[str]:
    """The tools whose calls are counted, or which have to come after or before others: each call must be known."""
    bound: set[str] = set()
    for rule in rules:
        match rule:
            case Parent():
                bound.update((rule.tool_name, *rule.children))
            case Children() | Conditional() | MaxCount():
                bound.add(rule.tool_name)
            case _:
                pass
    return frozenset(bound)


def any_ends_turn(rules: Iterable[Rule], tool_names: Iterable[str]) -> bool:
    ending = {rule.tool_name for rule in rules if isinstance(rule, ExitLoop)}
    return any(name in ending for name in tool_names)


def uncalled_required(rules: Iterable[Rule], attached: Iterable[str], history: Iterable[Called]) -> tuple[str, ...]:
    called = {call.name for call in history}
    present = set(attached)
    required = (rule.tool_name for rule in rules if isinstance(rule, RequiredBeforeExit))
    return tuple(name for name in dict.fromkeys(required) if name in present and name not in called)


def allows_parallel_calls(rules: Iterable[Rule]) -> bool:
    """Every rule but approval is about the order of calls, so it needs one call at a time."""
    return all(isinstance(rule, RequiresApproval) for rule in rules)


def explain(rules: Iterable[Rule]) -> str:
    """The rules as text for the model; empty when there are none to explain."""
    return "\n".join(line for rule in rules if (line := _sentence(rule)))


def _only_next(rule: Rule, history: Sequence[Called]) -> Sequence[str] | None:
    """The tools this rule limits the next call to, or None when it has no say now."""
    last = history[-1] if history else None
    if last is None or last.name != rule.tool_name:
        return None
    match rule:
        case Children() | Parent():
            return rule.children
        case Conditional():
            return _conditional_children(rule, last.returned)
        case _:
            return None


def _conditional_children(rule: Conditional, returned: str) -> Sequence[str] | None:
    for key, child in rule.child_output_mapping.items():
        if _same_value(key, returned):
            return (child,)
    if rule.require_output_mapping:
        return ()
    return (rule.default_child,) if rule.default_child else None


def _hidden(rule: Rule, history: Sequence[Called], counts: Mapping[str, int]) -> Sequence[str]:
    match rule:
        case Parent() if not history or history[-1].name != rule.tool_name:
            return rule.children
        case MaxCount() if counts.get(rule.tool_name, 0) >= rule.max_count_limit:
            return (rule.tool_name,)
        case _:
            return ()


def _same_value(key: str, returned: str) -> bool:
    """Keys arrive as text; a boolean or a number equals any spelling of itself."""
    if key == returned:
        return True
    if key.lower() in ("true", "false"):
        return key.lower() == returned.strip().lower()
    try:
        return float(key) == float(returned)
    except ValueError:
        return False


def _sentence(rule: Rule) -> str | None:
    match rule:
        case RunFirst():
            return f"- {rule.tool_name} must be the first tool you call."
        case Children():
            return f"- After {rule.tool_name} you must call one of: {', '.join(rule.children)}."
        case Parent():
            return f"- {', '.join(rule.children)} may be called only right after {rule.tool_name}."
        case ContinueLoop():
            return f"- Calling {rule.tool_name} does not end your turn."
        case ExitLoop():
            return f"- Calling {rule.tool_name} ends your turn."
        case _:
            return None

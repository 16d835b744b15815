"""Tool rules as clients write them. A rule refuses keys it does not know: a misspelt rule must not be half a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from holdfast.core import tool_rules
from holdfast.wire.bounds import MAX_ITEMS, MAX_NAME, JsonObject, Many

MAX_RULE_NAMES: Final = 10_000  # that all the rules of one agent speak of
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]


class RuleModel(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tool_name: Name
    prompt_template: str | None = None


class InitToolRule(RuleModel):
    type: Literal["run_first"]
    args: JsonObject | None = None


class ToolCallNode(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    args: JsonObject | None = None


class ChildToolRule(RuleModel):
    type: Literal["constrain_child_tools"]
    children: Many[Name]
    child_arg_nodes: Many[ToolCallNode] | None = None

    @model_validator(mode="after")
    def _nodes_are_children(self) -> ChildToolRule:
        children = set(self.children)
        strangers = [node.name for node in self.child_arg_nodes or () if node.name not in children]
        if strangers:
            raise ValueError(f"child_arg_nodes names {', '.join(strangers)}, which is not among the rule's children")
        return self


class ConditionalToolRule(RuleModel):
    type: Literal["conditional"]
    child_output_mapping: Annotated[dict[str, Name], Field(max_length=MAX_ITEMS)]
    default_child: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    require_output_mapping: bool = False

    @field_validator("child_output_mapping", mode="before")
    @classmethod
    def _keys_as_text(cls, mapping: object) -> object:
        """JSON has only text keys; callers in this process may hand over real booleans and numbers."""
        if not isinstance(mapping, dict):
            return mapping
        if not mapping:
            raise ValueError("child_output_mapping must map at least one output to a tool")
        return {_key_text(key): child for key, child in mapping.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


class ParentToolRule(RuleModel):
    type: Literal["parent_last_tool"]
    children: Many[Name]


class TerminalToolRule(RuleModel):
    type: Literal["exit_loop"]


class ContinueToolRule(RuleModel):
    type: Literal["continue_loop"]


class RequiredBeforeExitToolRule(RuleModel):
    type: Literal["required_before_exit"]


class MaxCountPerStepToolRule(RuleModel):
    type: Literal["max_count_per_step"]
    max_count_limit: Annotated[int, Field(ge=0, le=1_000_000)]


class RequiresApprovalToolRule(RuleModel):
    type: Literal["requires_approval"]


ToolRule = Annotated[
    InitToolRule
    | ChildToolRule
    | ConditionalToolRule
    | ParentToolRule
    | TerminalToolRule
    | ContinueToolRule
    | RequiredBeforeExitToolRule
    | MaxCountPerStepToolRule
    | RequiresApprovalToolRule,
    Field(discriminator="type"),
]


def _not_too_many_names(rules: list[ToolRule]) -> list[ToolRule]:
    """Each is looked at before each call of a model, so it is their sum that counts."""
    names = sum(_names_in(rule) for rule in rules)
    if names > MAX_RULE_NAMES:
        raise ValueError(f"the rules name {names} tools in all; at most {MAX_RULE_NAMES} are accepted")
    return rules


def _names_in(rule: ToolRule) -> int:
    match rule:
        case ChildToolRule():
            return len(rule.children) + len(rule.child_arg_nodes or ())
        case ParentToolRule():
            return len(rule.children)
        case ConditionalToolRule():
            return len(rule.child_output_mapping)
        case _:
            return 1


ToolRules = Annotated[Many[ToolRule], AfterValidator(_not_too_many_names)]


def rules_of(sent: Sequence[ToolRule]) -> tuple[tool_rules.Rule, ...]:
    """The rules as the core knows them; a rule sent twice is one rule.

    Two are the same when they are written the same, whatever the order of their keys.
    """
    converted = (msgspec.convert(rule.model_dump(), tool_rules.Rule) for rule in sent)
    distinct: dict[bytes, tool_rules.Rule] = {}
    for rule in converted:
        distinct.setdefault(msgspec.json.encode(rule, order="deterministic"), rule)
    return tuple(distinct.values())


def rules_view(rules: Sequence[tool_rules.Rule]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(rule) for rule in rules]


def _key_text(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)

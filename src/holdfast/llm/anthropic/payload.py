"""A request in the shape of Anthropic's Messages API.

Cache marks. A request is cached up to each mark, and at most four are allowed. One stands after the tools and one
after the system prompt: these stay when the conversation is compacted. Two stand in the conversation, at the ends of
the last two user messages: the later one writes what the next step will read, the earlier one reads what the last step
wrote, however many blocks lie between them (a mark alone finds an older one only within twenty blocks).

Thinking. Newer models decide how long to think; older ones are given a budget, which must be smaller than `max_tokens`
and excludes a forced choice of tools. What is not allowed together is decided here in favour of the tools: an agent's
rules are promises, its thinking is not.

Schemas. Anthropic enforces a narrow form while a model writes. Every object must be closed, and constraints that a
grammar cannot express are refused; they are left out, which lets through a little more than was asked for. A schema
that needs an open object cannot be put into this form at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from typing_extensions import TypeIs

from holdfast.llm.anthropic.traits import (
    DEFAULT_BUDGET,
    LEAST_BUDGET,
    Traits,
    accepted_effort,
    family_and_version,
    traits_of,
)
from holdfast.llm.anthropic.turns import (
    Block,
    Message,
    call_names,
    is_thinking,
    messages_of,
    put_thinking_first,
    text,
    thinks_in_this_turn,
)
from holdfast.llm.base import CONTINUE, ModelInfo, ModelRequest, NamedTool, ToolSchema
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.json_prompt import json_in_words, schema_in
from holdfast.llm.tool_calls import sent_name

DEFAULT_MAX_TOKENS: Final = 4_096
INTERLEAVED: Final = "interleaved-thinking-2025-05-14"
BINDING: Final = "thinking-binding-controls-2026-08-01"
LONG_CONTEXT: Final = "context-1m-2025-08-07"
_MARK: Final = {"type": "ephemeral"}
_REFUSED: Final = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
    }
)
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_NAMED: Final = ("properties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


class Thinking(msgspec.Struct, frozen=True):
    """What is said about it; `budget` only for models that are given one."""

    config: dict[str, Any] | None = None
    budget: int = 0

    @property
    def is_on(self) -> bool:
        return self.config is not None and self.config["type"] in ("enabled", "adaptive")


def messages_payload(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    traits = traits_of(info.name)
    forced = request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)
    thinking = _wanted_thinking(request, info, traits)
    if thinking.budget and forced:
        thinking = Thinking()
    messages = messages_of(
        request.turns,
        with_thinking=thinking.is_on or not traits.binds_thinking,
        with_images=info.abilities.images,
    )
    if thinking.budget:
        put_thinking_first(messages)
        thinking = thinking if thinks_in_this_turn(messages) else Thinking()
    max_tokens, thinking = _limits(request, info, thinking)
    payload: dict[str, Any] = {"model": info.name, "max_tokens": max_tokens, "stream": True}
    payload |= _output(request, traits, thinking) | _tools(request, traits, forced)
    payload["messages"] = _ended(messages, request, traits, forced=forced, thinking=thinking)
    if thinking.config is not None:
        payload["thinking"] = thinking.config
    if request.temperature is not None and traits.sampling and not thinking.is_on:
        payload["temperature"] = min(request.temperature, 1.0)
    if request.user is not None:
        payload["metadata"] = {"user_id": request.user}
    return payload


def betas(endpoint: Endpoint, info: ModelInfo, payload: dict[str, Any]) -> list[str]:
    """What of the request needs a header. `betas` names more of them; `context_1m` the families with long windows."""
    found = [name.strip() for name in endpoint.options.get("betas", "").split(",") if name.strip()]
    family, version = family_and_version(info.name)
    if version and version[0] == 4 and family in endpoint.options.get("context_1m", "").split(","):
        found.append(LONG_CONTEXT)
    thinking: dict[str, Any] = payload.get("thinking") or {}
    if thinking.get("type") == "enabled" and payload.get("tools") and traits_of(info.name).interleaves_if_asked:
        found.append(INTERLEAVED)
    if "block_binding" in thinking:
        found.append(BINDING)
    return found


def _wanted_thinking(request: ModelRequest, info: ModelInfo, traits: Traits) -> Thinking:
    thinking: dict[str, Any] = request.settings.get("thinking") or {}
    budget, wanted = thinking.get("budget_tokens"), thinking.get("type")
    if wanted == "disabled" and traits.off != "never":
        return Thinking() if traits.off == "unmentioned" else Thinking({"type": traits.off})
    if wanted is None and not (traits.thinks or info.abilities.reasoning):
        return Thinking()
    if traits.adaptive and not (budget and traits.budgets):
        return Thinking(_adaptive(traits))
    return Thinking({"type": "enabled"}, max(LEAST_BUDGET, budget or DEFAULT_BUDGET))


def _adaptive(traits: Traits) -> dict[str, Any]:
    config: dict[str, Any] = {"type": "adaptive"}
    if traits.hides_thinking:
        config["display"] = "summarized"
    if traits.binds_thinking:
        # An agent edits its memory, and with it the prompt that its earlier reasoning is bound to. Better to lose that
        # reasoning than to be refused for the rest of the conversation.
        config["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    return config


def _limits(request: ModelRequest, info: ModelInfo, thinking: Thinking) -> tuple[int, Thinking]:
    """`max_tokens` counts the thinking too, and is never more than was asked for: the thinking has to fit in."""
    requested, ceiling = request.max_output_tokens, info.max_output_tokens
    most = requested or ceiling or DEFAULT_MAX_TOKENS + thinking.budget
    if ceiling is not None:
        most = min(most, ceiling)
    if not thinking.budget:
        return most, thinking
    budget = min(thinking.budget, most - 1)
    if budget < LEAST_BUDGET:
        return most, Thinking()
    return most, Thinking({"type": "enabled", "budget_tokens": budget}, budget)


def _output(request: ModelRequest, traits: Traits, thinking: Thinking) -> dict[str, Any]:
    system = [text(request.system) | {"cache_control": _MARK}] if request.system.strip() else []
    config: dict[str, Any] = {}
    is_off = thinking.config is not None and not thinking.is_on
    wanted = request.settings.get("effort")
    if wanted and (effort := accepted_effort(wanted, traits, is_off=is_off)):
        config["effort"] = effort
    shape = request.response_format or {}
    if shape.get("type") == "json_schema" and traits.structured and enforceable(schema := schema_in(shape)):
        config["format"] = {"type": "json_schema", "schema": closed(schema)}
    elif words := json_in_words(shape):
        # After the mark, so that the prompt before it stays cached.
        system.append(text(words))
    found: dict[str, Any] = {"system": system} if system else {}
    return found | {"output_config": config} if config else found


def _tools(request: ModelRequest, traits: Traits, forced: bool) -> dict[str, Any]:
    strict = request.settings.get("strict") is True and traits.structured
    tools = [_tool(tool, strict) for tool in request.tools]
    choice = request.tool_choice
    if not tools:
        # A history with calls in it is refused unless their tools are described.
        tools = [_tool(ToolSchema(name, "No longer available.", {}), False) for name in call_names(request.turns)]
        choice = "none"
    if not tools:
        return {}
    tools[-1]["cache_control"] = _MARK
    if choice == "none":
        return {"tools": tools, "tool_choice": {"type": "none"}}
    shown: dict[str, Any] = {"type": "auto"}
    if forced and traits.forced_choice:
        shown = {"type": "tool", "name": sent_name(choice.name)} if isinstance(choice, NamedTool) else {"type": "any"}
    if not request.parallel_tool_calls:
        shown["disable_parallel_tool_use"] = True
    return {"tools": tools, "tool_choice": shown}


def _tool(tool: ToolSchema, strict: bool) -> Block:
    schema = {"type": "object", **tool.parameters}
    shown: Block = {"name": sent_name(tool.name)}
    if tool.description:
        shown["description"] = tool.description
    if strict and enforceable(schema):
        return shown | {"input_schema": closed(schema), "strict": True}
    return shown | {"input_schema": schema}


def _ended(
    messages: list[Message], request: ModelRequest, traits: Traits, *, forced: bool, thinking: Thinking
) -> list[Message]:
    """The conversation with its cache marks, and with an end that the model accepts."""
    of_users = [message for message in messages if message["role"] == "user"]
    for message in of_users[-2:]:
        message["content"][-1]["cache_control"] = _MARK
    last = messages[-1]
    if last["role"] == "assistant":
        if thinking.is_on or not traits.prefill:
            messages.append({"role": "user", "content": [text(CONTINUE)]})
        else:
            _open_end(last)
    if forced and request.tools and not traits.forced_choice:
        messages[-1]["content"].append(text(_demand(request)))
    return messages


def _open_end(last: Message) -> None:
    """Words for the model to continue: they may neither end in white space nor contain thinking."""
    last["content"] = [block for block in last["content"] if not is_thinking(block)]
    end = last["content"][-1]
    if end["type"] == "text":
        end["text"] = end["text"].rstrip()


def _demand(request: ModelRequest) -> str:
    """In words, for models that cannot be forced. After the marks: it is not part of the history."""
    choice = request.tool_choice
    which = f"the tool {sent_name(choice.name)}" if isinstance(choice, NamedTool) else "one of your tools"
    return f"[You must now call {which}. Do not answer in any other way.]"


def enforceable(schema: dict[str, Any]) -> bool:
    """Whether closing its objects would leave it the same schema."""
    if schema.get("additionalProperties") not in (None, False):
        return False
    if schema.get("type") == "object" and "properties" not in schema and schema.get("additionalProperties") is None:
        return False
    return all(enforceable(part) for part in _parts(schema))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in schema.items() if key not in _REFUSED}
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            shown[key] = {name: _closed(part) for name, part in schema[key].items()}
    for key in _LISTED:
        if isinstance(schema.get(key), list):
            shown[key] = [_closed(part) for part in schema[key]]
    if "items" in schema:
        shown["items"] = _closed(schema["items"])
    if "oneOf" in shown:
        shown["anyOf"] = shown.pop("oneOf")
    if shown.get("format") not in _FORMATS:
        shown.pop("format", None)
    if shown.get("minItems", 0) > 1:
        del shown["minItems"]
    if shown.get("type") == "object":
        shown["additionalProperties"] = False
    return shown


def _closed(part: Any) -> Any:
    return closed(part) if _is_schema(part) else part


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found: list[Any] = [schema.get("items")]
    for key in _NAMED:
        found += dict[str, Any](schema.get(key) or {}).values()
    for key in _LISTED:
        found += list[Any](schema.get(key) or ())
    return filter(_is_schema, found)


def _is_schema(part: Any) -> TypeIs[dict[str, Any]]:
    """`true` and `false` are schemas too; there is nothing to close in them."""
    return isinstance(part, dict)

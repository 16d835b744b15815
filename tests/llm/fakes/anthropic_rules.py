"""What Anthropic's Messages API refuses, in about its own words. Nothing of this is shared with the adapter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import msgspec

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_THINKING = ("thinking", "redacted_thinking")


class Source(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["base64"]
    media_type: str
    data: str


class Block(msgspec.Struct):
    type: Literal["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: str = ""
    source: Source | None = None
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None
    tool_use_id: str = ""
    content: str | list[Block] | None = None
    is_error: bool = False
    thinking: str = ""
    signature: str = ""
    data: str = ""
    cache_control: dict[str, Any] | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        return [Block("text", self.content)] if isinstance(self.content, str) else self.content

    def of(self, *kinds: str) -> list[Block]:
        return [block for block in self.blocks if block.type in kinds]


class Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str = ""
    strict: bool = False
    cache_control: dict[str, Any] | None = None


class Choice(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = "disabled"
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    block_binding: dict[str, Any] | None = None


class Format(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class Output(msgspec.Struct, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    max_tokens: int
    messages: list[Message]
    system: str | list[Block] = msgspec.field(default_factory=list[Block])
    tools: list[Tool] = msgspec.field(default_factory=list[Tool])
    tool_choice: Choice = msgspec.field(default_factory=Choice)
    thinking: Thinking = msgspec.field(default_factory=Thinking)
    output_config: Output = msgspec.field(default_factory=Output)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    service_tier: str | None = None

    @property
    def system_blocks(self) -> list[Block]:
        return [Block("text", self.system)] if isinstance(self.system, str) else self.system

    @property
    def is_thinking(self) -> bool:
        return self.thinking.type in ("enabled", "adaptive")


def read(body: dict[str, object]) -> Body:
    return msgspec.convert(body, Body)


def complaint(body: dict[str, object], is_genuine: Callable[[Block], bool]) -> str | None:
    """The first thing that is wrong. `is_genuine` knows which thinking was really thought."""
    try:
        asked = read(body)
    except msgspec.ValidationError as error:
        return str(error)
    for rule in (_order, _blocks, _pairs, _tools, _marks, _limits, _last):
        for found in rule(asked):
            return found
    return next(_thoughts(asked, is_genuine), None)


def _order(asked: Body) -> Iterator[str]:
    if not asked.messages:
        yield "messages: at least one message is required"
    elif asked.messages[0].role != "user":
        yield "messages: first message must use the `user` role"
    if any(one.role == two.role for one, two in pairwise(asked.messages)):
        yield "messages: roles must alternate between `user` and `assistant`"


def _blocks(asked: Body) -> Iterator[str]:
    if any(block.type != "text" or not block.text.strip() for block in asked.system_blocks):
        yield "system: text content blocks must be non-empty"
    for index, message in enumerate(asked.messages):
        allowed = ("text", "image", "tool_result") if message.role == "user" else ("text", "tool_use", *_THINKING)
        if not message.blocks:
            yield "messages: all messages must have non-empty content"
        for block in message.blocks:
            if block.type not in allowed:
                yield f"messages.{index}: `{block.type}` blocks are not allowed for the role `{message.role}`"
            yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    inner = block.content if isinstance(block.content, list) else []
    if block.type == "text" and not block.text.strip():
        yield "messages: text content blocks must contain non-whitespace text"
    if block.type == "image" and (block.source is None or block.source.media_type not in _MEDIA):
        yield f"messages: image source media_type: Input should be one of {_MEDIA}"
    if block.type == "tool_use" and not _TOOL_NAME.fullmatch(block.name):
        yield "messages: tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
    if block.type == "tool_use" and block.input is None:
        yield "messages: tool_use.input: Field required"
    if block.is_error and any(one.type != "text" for one in inner):
        yield 'messages: all content must be type "text" if "is_error" is true'
    if block.is_error and not block.content:
        yield "messages: tool_result: content cannot be empty if `is_error` is true"
    for one in inner:
        yield from _block(one)


def _pairs(asked: Body) -> Iterator[str]:
    seen: set[str] = set()
    for index, message in enumerate(asked.messages):
        called = [block.id for block in message.of("tool_use")]
        for call_id in called:
            if not _ID.fullmatch(call_id):
                yield f"messages.{index}: tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if call_id in seen:
                yield f"messages.{index}: `tool_use` ids must be unique"
            seen.add(call_id)
        after = asked.messages[index + 1].blocks if index + 1 < len(asked.messages) else []
        opening = {block.tool_use_id for block in after[: len(called)] if block.type == "tool_result"}
        if missing := [call_id for call_id in called if call_id not in opening]:
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}"
            )
        before = {block.id for block in asked.messages[index - 1].of("tool_use")} if index else set[str]()
        answered = [block.tool_use_id for block in message.of("tool_result")]
        if stray := [call_id for call_id in answered if call_id not in before]:
            yield f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(stray)}"
        if len(set(answered)) != len(answered):
            yield f"messages.{index}: each tool_use must have a single result"


def _tools(asked: Body) -> Iterator[str]:
    names = [tool.name for tool in asked.tools]
    if any(not _TOOL_NAME.fullmatch(name) for name in names):
        yield "tools: name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
    if len(set(names)) != len(names):
        yield "tools: Tool names must be unique."
    if any(tool.input_schema.get("type") != "object" for tool in asked.tools):
        yield "tools: input_schema.type: Field required"
    schemas = [tool.input_schema for tool in asked.tools if tool.strict]
    schemas += [asked.output_config.format.schema] if asked.output_config.format else []
    if any(schema.get("type") == "object" and schema.get("additionalProperties") is not False for schema in schemas):
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if not names and any(message.of("tool_use", "tool_result") for message in asked.messages):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
    choice = asked.tool_choice
    if choice.type in ("any", "tool") and asked.thinking.type == "enabled":
        yield "Thinking may not be enabled when tool_choice forces tool use."
    if choice != Choice() and not names:
        yield "tool_choice may only be specified while providing tools"
    if choice.type == "tool" and choice.name not in names:
        yield f"Tool '{choice.name}' not found in provided tools"


def _marks(asked: Body) -> Iterator[str]:
    spoken = [block for message in asked.messages for block in message.blocks]
    marked = [one for one in (*asked.tools, *asked.system_blocks, *spoken) if one.cache_control is not None]
    if len(marked) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    if any(block.cache_control is not None and block.type in _THINKING for block in spoken):
        yield "cache_control cannot be set on thinking blocks"


def _limits(asked: Body) -> Iterator[str]:
    if asked.max_tokens < 1:
        yield "max_tokens: must be greater than or equal to 1"
    if asked.temperature is not None and not 0 <= asked.temperature <= 1:
        yield "temperature: range: 0..1"
    if asked.is_thinking and asked.temperature not in (None, 1):
        yield "`temperature` may only be set to 1 when thinking is enabled."
    if asked.thinking.type == "enabled":
        budget = asked.thinking.budget_tokens
        if budget is None or budget < 1024:
            yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
        elif asked.max_tokens <= budget:
            yield "`max_tokens` must be greater than `thinking.budget_tokens`."


def _last(asked: Body) -> Iterator[str]:
    last = asked.messages[-1]
    if last.role == "user":
        return
    if asked.is_thinking:
        yield "This request does not support assistant message prefill. The conversation must end with a user message."
    if last.of(*_THINKING):
        yield "When `thinking` is disabled, an `assistant` message in the final position cannot contain `thinking`."
    if last.blocks[-1].type == "text" and last.blocks[-1].text != last.blocks[-1].text.rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


def _thoughts(asked: Body, is_genuine: Callable[[Block], bool]) -> Iterator[str]:
    for index, message in enumerate(asked.messages):
        for place, block in enumerate(message.of(*_THINKING)):
            if block.type == "thinking" and not block.signature:
                yield f"messages.{index}.content.{place}.thinking.signature: Field required"
            elif not is_genuine(block):
                yield f"messages.{index}.content.{place}: Invalid `signature` in `thinking` block"
        if message.blocks[-1].type in _THINKING:
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."
        if asked.thinking.type == "enabled" and _opens_the_current_turn(asked.messages, index):
            kind = message.blocks[0].type
            if kind not in _THINKING:
                yield (
                    f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. "
                    "When `thinking` is enabled, a final `assistant` message must start with a thinking block"
                )


def _opens_the_current_turn(messages: list[Message], index: int) -> bool:
    """Whether it is the first message of the assistant since the user last said something, and called for tools."""
    message = messages[index]
    if message.role != "assistant" or not message.of("tool_use"):
        return False
    rest = messages[index + 1 :]
    going_on = all(one.of("tool_result", "tool_use") for one in rest)
    begins = any(block.type != "tool_result" for block in messages[index - 1].blocks)
    return going_on and begins

"""What Amazon's Converse API refuses, with Claude behind it: the shapes of its requests, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import msgspec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")


class Shape(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Source(Shape):
    bytes: str


class Image(Shape):
    format: Literal["png", "jpeg", "gif", "webp"]
    source: Source


class ToolUse(Shape):
    tool_use_id: str
    name: str
    input: dict[str, Any]


class Shown(Shape):
    """A piece of what a tool returned."""

    text: str | None = None
    image: Image | None = None


class ToolResult(Shape):
    tool_use_id: str
    content: list[Shown]
    status: Literal["success", "error"] = "success"


class ReasoningText(Shape):
    text: str
    signature: str | None = None


class ReasoningContent(Shape):
    reasoning_text: ReasoningText | None = None
    redacted_content: str | None = None


class Block(Shape):
    """One of these."""

    text: str | None = None
    image: Image | None = None
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None
    reasoning_content: ReasoningContent | None = None


class Message(Shape):
    role: Literal["user", "assistant"]
    content: list[Block]

    @property
    def calls(self) -> list[ToolUse]:
        return [one.tool_use for one in self.content if one.tool_use is not None]

    @property
    def returns(self) -> list[ToolResult]:
        return [one.tool_result for one in self.content if one.tool_result is not None]


class Schema(Shape):
    json: dict[str, Any]


class ToolSpec(Shape):
    name: str
    input_schema: Schema
    description: str = ""
    strict: bool = False


class Tool(Shape):
    tool_spec: ToolSpec


class Named(Shape):
    name: str


class Choice(Shape):
    auto: dict[str, Any] | None = None
    any: dict[str, Any] | None = None
    tool: Named | None = None


class ToolConfig(Shape):
    tools: list[Tool]
    tool_choice: Choice | None = None


class Inference(Shape):
    max_tokens: int | None = None
    temperature: float | None = None


class Body(Shape):
    messages: list[Message]
    system: list[Block] = msgspec.field(default_factory=list[Block])
    inference_config: Inference = msgspec.field(default_factory=Inference)
    tool_config: ToolConfig | None = None
    additional_model_request_fields: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    output_config: dict[str, Any] | None = None

    @property
    def specs(self) -> list[ToolSpec]:
        return [one.tool_spec for one in self.tool_config.tools] if self.tool_config else []


def read(body: dict[str, object]) -> Body:
    return msgspec.convert(body, Body)


def complaint(body: dict[str, object], is_genuine: Callable[[ReasoningContent], bool]) -> str | None:
    """The first thing that is wrong. `is_genuine` knows which reasoning was really thought."""
    try:
        asked = read(body)
    except msgspec.ValidationError as error:
        return str(error)
    for rule in (_order, _blocks, _pairs, _tools):
        for found in rule(asked):
            return found
    thoughts = [one.reasoning_content for message in asked.messages for one in message.content if one.reasoning_content]
    return None if all(is_genuine(one) for one in thoughts) else "Invalid `signature` in `thinking` block"


def _order(asked: Body) -> Iterator[str]:
    if not asked.messages or asked.messages[0].role != "user":
        yield "A conversation must start with a user message. Try again with a conversation that starts with one."
    if any(one.role == two.role for one, two in pairwise(asked.messages)):
        yield "A conversation must alternate between user and assistant roles."
    if asked.messages and asked.messages[-1].role == "assistant":
        said = asked.messages[-1].content[-1].text
        if said is not None and said != said.rstrip():
            yield "messages: final assistant content cannot end with trailing whitespace"


def _blocks(asked: Body) -> Iterator[str]:
    for index, message in enumerate(asked.messages):
        if not message.content:
            yield f"The content field in the Message object at messages.{index} is empty."
        for place, block in enumerate(message.content):
            at = f"messages.{index}.content.{place}"
            kinds = [name for name in block.__struct_fields__ if getattr(block, name) is not None]
            if len(kinds) != 1:
                yield f"{at}: a content block is one of its kinds"
            if block.text is not None and not block.text.strip():
                yield f"The text field in the ContentBlock object at {at} is blank. Add text to the text field."
            ours = ("tool_result", "image") if message.role == "user" else ("tool_use", "reasoning_content")
            if kinds[0] not in ("text", *ours):
                yield f"{at}: {kinds[0]} is not allowed for the role {message.role}"
        if message.content and message.content[-1].reasoning_content is not None:
            yield f"messages.{index}: The final block in an assistant message cannot be `thinking`."
    if any(not (one.text or "").strip() for one in asked.system):
        yield "The text field in the SystemContentBlock object is blank."


def _pairs(asked: Body) -> Iterator[str]:
    seen: set[str] = set()
    for index, message in enumerate(asked.messages):
        called = [call.tool_use_id for call in message.calls]
        for call_id in called:
            if not _ID.fullmatch(call_id):
                yield f"Value at 'messages.{index}.toolUse.toolUseId' failed to satisfy constraint: {call_id!r}"
            if call_id in seen:
                yield "`tool_use` ids must be unique"
            seen.add(call_id)
        after = asked.messages[index + 1].returns if index + 1 < len(asked.messages) else []
        if missing := set(called) - {one.tool_use_id for one in after}:
            yield f"Expected toolResult blocks at messages.{index + 1} for the following Ids: {', '.join(missing)}"
        before = {one.tool_use_id for one in asked.messages[index - 1].calls} if index else set[str]()
        returned = [one.tool_use_id for one in message.returns]
        if len(returned) > len(before) or not before.issuperset(returned):
            yield f"The number of toolResult blocks at messages.{index} exceeds the number of toolUse blocks"
        yield from (wrong for one in message.returns for wrong in _result(one))


def _result(result: ToolResult) -> Iterator[str]:
    if not result.content:
        yield "toolResult.content is empty"
    if any(one.text is not None and not one.text.strip() for one in result.content):
        yield "The text field in the ToolResultContentBlock object is blank."
    if result.status == "error" and any(one.image is not None for one in result.content):
        yield 'all content must be type "text" if "is_error" is true'


def _tools(asked: Body) -> Iterator[str]:
    names = [spec.name for spec in asked.specs]
    if asked.tool_config is not None and not names:
        yield "toolConfig.tools: at least one tool is required"
    if any(not _NAME.fullmatch(name) for name in names) or len(set(names)) != len(names):
        yield "toolConfig.tools: names must be unique and match [a-zA-Z0-9_-]{1,64}"
    if any(not _NAME.fullmatch(call.name) for message in asked.messages for call in message.calls):
        yield "toolUse.name must match [a-zA-Z0-9_-]{1,64}"
    if any(spec.input_schema.json.get("type") != "object" for spec in asked.specs):
        yield "toolSpec.inputSchema.json.type must be one of the following: object."
    if not names and any(message.calls or message.returns for message in asked.messages):
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    choice = asked.tool_config.tool_choice if asked.tool_config else None
    if choice is not None and choice.tool is not None and choice.tool.name not in names:
        yield f"Tool '{choice.tool.name}' not found in provided tools"

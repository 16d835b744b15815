"""What OpenAI's Responses API refuses, in about its own words. Nothing of this is shared with the adapter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:image/[a-z+.-]+;base64,[A-Za-z0-9+/]+=*")
_MAX_ID = 64
ENCRYPTED = "reasoning.encrypted_content"


class Piece(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["input_text", "input_image", "output_text", "summary_text"]
    text: str = ""
    image_url: str = ""
    detail: Literal["auto", "low", "high"] | None = None
    annotations: list[Any] = msgspec.field(default_factory=list[Any])


class Item(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["message", "reasoning", "function_call", "function_call_output"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Piece] = ""
    id: str = ""
    status: str | None = None
    summary: list[Piece] = msgspec.field(default_factory=list[Piece])
    encrypted_content: str | None = None
    call_id: str = ""
    name: str = ""
    arguments: str | None = None
    output: str | list[Piece] | None = None

    @property
    def pieces(self) -> list[Piece]:
        return [Piece("input_text", self.content)] if isinstance(self.content, str) else self.content

    @property
    def is_the_models(self) -> bool:
        return self.type in ("reasoning", "function_call") or self.role == "assistant"


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str
    parameters: dict[str, Any]
    description: str = ""
    strict: bool = False


class Named(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    name: str


class Think(msgspec.Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class Format(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    format: Format = msgspec.field(default_factory=Format)
    verbosity: Literal["low", "medium", "high"] | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Every field that is ever sent; OpenAI refuses those it does not know."""

    model: str
    input: list[Item]
    instructions: str = ""
    stream: bool = False
    store: bool = True
    include: list[str] = msgspec.field(default_factory=list[str])
    tools: list[Tool] = msgspec.field(default_factory=list[Tool])
    tool_choice: Literal["auto", "required", "none"] | Named = "auto"
    parallel_tool_calls: bool = True
    reasoning: Think = msgspec.field(default_factory=Think)
    text: Shape = msgspec.field(default_factory=Shape)
    max_output_tokens: int | None = None
    temperature: float | None = None
    user: str | None = None


def read(body: dict[str, object]) -> Body:
    return msgspec.convert(body, Body)


def complaint(body: dict[str, object], is_genuine: Callable[[Item], bool], needs: Callable[[str], str]) -> str | None:
    """The first thing that is wrong. `is_genuine` knows which reasoning is the vendor's own, `needs` to which
    reasoning the id of an item belongs."""
    try:
        asked = read(body)
    except msgspec.ValidationError as error:
        return str(error)
    for rule in (_items, _pairs, _tools, _json):
        for found in rule(asked):
            return found
    return next(_reasoning(asked, is_genuine, needs), None)


def _items(asked: Body) -> Iterator[str]:
    if not asked.input:
        yield "Missing required parameter: 'input'."
    for index, item in enumerate(asked.input):
        if item.type == "message":
            yield from _message(index, item)
        elif item.type == "function_call" and (item.arguments is None or not item.name):
            yield f"Missing required parameter: 'input[{index}].arguments'."
        elif item.type == "function_call_output" and item.output is None:
            yield f"Missing required parameter: 'input[{index}].output'."
        if max(len(item.id), len(item.call_id)) > _MAX_ID:
            yield f"Invalid 'input[{index}].call_id': string too long. Expected a string with maximum length {_MAX_ID}"


def _message(index: int, item: Item) -> Iterator[str]:
    if item.role is None:
        yield f"Missing required parameter: 'input[{index}].role'."
    if item.id and item.role != "assistant":
        yield f"Invalid 'input[{index}].id': only messages of the assistant have one."
    allowed = ("output_text", "input_text") if item.role == "assistant" else ("input_text", "input_image")
    for piece in item.pieces:
        if piece.type not in allowed:
            yield f"Invalid value: '{piece.type}'. Supported values are: {allowed}"
        if piece.type == "input_image" and not _DATA_URL.fullmatch(piece.image_url):
            yield f"Invalid 'input[{index}].content.image_url': expected a base64-encoded data URL."


def _pairs(asked: Body) -> Iterator[str]:
    called, answered = set[str](), set[str]()
    for item in asked.input:
        if item.type == "function_call":
            if not item.call_id or item.call_id in called:
                yield f"Duplicate function call: '{item.call_id}'."
            called.add(item.call_id)
        elif item.type == "function_call_output":
            if item.call_id not in called:
                yield f"No tool call found for function call output with call_id {item.call_id}."
            if item.call_id in answered:
                yield f"Duplicate function call output: '{item.call_id}'."
            answered.add(item.call_id)
    if missing := called - answered:
        yield f"No tool output found for function call {sorted(missing)[0]}."


def _tools(asked: Body) -> Iterator[str]:
    names = [tool.name for tool in asked.tools]
    if bad := [name for name in names if not _NAME.fullmatch(name)]:
        yield f"Invalid 'tools[0].name': string does not match pattern: {bad[0]!r}"
    if len(set(names)) != len(names):
        yield "Duplicate tool names."
    for tool in asked.tools:
        if tool.parameters.get("type") != "object":
            yield f"Invalid schema for function '{tool.name}': schema must be of type 'object'."
        properties = set(tool.parameters.get("properties") or {})
        if tool.strict and (
            set(tool.parameters.get("required") or ()) != properties
            or tool.parameters.get("additionalProperties") is not False
        ):
            yield f"Invalid schema for function '{tool.name}': 'required' must list every property in strict mode."
    if isinstance(asked.tool_choice, Named) and asked.tool_choice.name not in names:
        yield f"Tool choice 'function' not found in 'tools' parameter: {asked.tool_choice.name}"
    if asked.tool_choice == "required" and not names:
        yield "Tool choice 'required' must be specified with 'tools' parameter."


def _json(asked: Body) -> Iterator[str]:
    shape = asked.text.format
    if shape.type == "json_schema" and (shape.schema is None or not _NAME.fullmatch(shape.name)):
        yield "Missing required parameter: 'text.format.schema'."
    said = " ".join(piece.text for item in asked.input for piece in item.pieces)
    if shape.type == "json_object" and "json" not in said.lower():
        yield "Response input messages must contain the word 'json' in some form to use 'text.format'."


def _reasoning(asked: Body, is_genuine: Callable[[Item], bool], needs: Callable[[str], str]) -> Iterator[str]:
    shown = set[str]()
    for index, item in enumerate(asked.input):
        if item.type == "reasoning":
            shown.add(item.id)
            if item.encrypted_content is None:
                yield f"Item with id '{item.id}' not found. Items are not persisted when `store` is set to false."
            elif not is_genuine(item):
                yield f"The encrypted content for item {item.id} could not be verified."
            following = asked.input[index + 1] if index + 1 < len(asked.input) else None
            if following is None or not following.is_the_models:
                yield f"Item '{item.id}' of type 'reasoning' was provided without its required following item."
        elif item.id and (needed := needs(item.id)) and needed not in shown:
            yield (
                f"Item '{item.id}' of type '{item.type}' was provided without its required 'reasoning' item: '{needed}'"
            )

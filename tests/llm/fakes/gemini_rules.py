"""What Google's Gemini API refuses, in about its own words. Nothing of this is shared with the adapter."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import msgspec

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
_SNAKE = re.compile(r"_([a-z])")
_FOREIGN = ("args", "response", "parameters", "parametersJsonSchema", "responseJsonSchema")
_MEDIA = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
# What the vendor tells those to send who lost a signature.
UNCHECKED = base64.b64encode(b"skip_thought_signature_validator").decode()


class Blob(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    mime_type: str
    data: str


class Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    args: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    id: str | None = None


class Shown(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    inline_data: Blob


class Return(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    response: dict[str, Any]
    id: str | None = None
    parts: list[Shown] = msgspec.field(default_factory=list[Shown])


class Part(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    text: str | None = None
    thought: bool = False
    thought_signature: str | None = None
    inline_data: Blob | None = None
    function_call: Call | None = None
    function_response: Return | None = None


class Content(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part]
    role: Literal["user", "model"] = "user"

    @property
    def calls(self) -> list[Part]:
        return [part for part in self.parts if part.function_call is not None]

    @property
    def returns(self) -> list[Return]:
        return [part.function_response for part in self.parts if part.function_response is not None]


class Declaration(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    parameters_json_schema: dict[str, Any] | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    function_declarations: list[Declaration]


class Calling(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    mode: Literal["AUTO", "ANY", "NONE", "VALIDATED"] = "AUTO"
    allowed_function_names: list[str] = msgspec.field(default_factory=list[str])


class ToolConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    function_calling_config: Calling = msgspec.field(default_factory=Calling)


class Thinking(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    include_thoughts: bool = False
    thinking_budget: int | None = None
    thinking_level: str | None = None


class Generation(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    temperature: float | None = None
    max_output_tokens: int | None = None
    response_mime_type: str | None = None
    response_json_schema: dict[str, Any] | None = None
    response_modalities: list[str] | None = None
    thinking_config: Thinking = msgspec.field(default_factory=Thinking)


class Body(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Every field that is ever sent; Google refuses those it does not know."""

    contents: list[Content]
    system_instruction: Content | None = None
    tools: list[Tool] = msgspec.field(default_factory=list[Tool])
    tool_config: ToolConfig = msgspec.field(default_factory=ToolConfig)
    generation_config: Generation = msgspec.field(default_factory=Generation)

    @property
    def declarations(self) -> list[Declaration]:
        return [declaration for tool in self.tools for declaration in tool.function_declarations]


def read(body: dict[str, object]) -> Body:
    return msgspec.convert(_in_camel_case(body), Body)


def _in_camel_case(value: object) -> object:
    """The vendor takes its own names in both spellings; what lies below some of them is not its own."""
    if isinstance(value, list):
        return [_in_camel_case(one) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    named = {
        _SNAKE.sub(lambda found: found[1].upper(), name): held
        for name, held in cast("dict[str, object]", value).items()
    }
    return {name: held if name in _FOREIGN else _in_camel_case(held) for name, held in named.items()}


def complaint(body: dict[str, object], is_genuine: Callable[[Part], bool]) -> str | None:
    """The first thing that is wrong. `is_genuine` knows which part each signature was given to."""
    try:
        asked = read(body)
    except msgspec.ValidationError as error:
        return f"Invalid JSON payload received. {error}"
    for rule in (_contents, _pairs, _tools):
        for found in rule(asked):
            return found
    return next(_signatures(asked, is_genuine), None)


def _contents(asked: Body) -> Iterator[str]:
    if not asked.contents:
        yield "* GenerateContentRequest.contents: contents is not specified"
    elif asked.contents[0].role != "user":
        yield "Please ensure that multiturn requests begin with a user turn."
    for content in asked.contents:
        if not content.parts:
            yield "* GenerateContentRequest.contents.parts: must not be empty."
        for part in content.parts:
            data = (part.text, part.inline_data, part.function_call, part.function_response)
            if sum(one is not None for one in data) != 1:
                yield "Required oneof field 'data' must have one initialized field"
            if part.inline_data is not None and part.inline_data.mime_type not in _MEDIA:
                yield f"Unsupported MIME type: {part.inline_data.mime_type}"
            if (part.thought or part.function_call) and content.role != "model":
                yield "Please use a valid role: thoughts and calls are the model's."
            if part.function_response is not None and content.role != "user":
                yield "Please use a valid role: responses of functions are the user's."


def _pairs(asked: Body) -> Iterator[str]:
    for index, content in enumerate(asked.contents):
        after = asked.contents[index + 1] if index + 1 < len(asked.contents) else None
        called = [part.function_call.name for part in content.calls if part.function_call is not None]
        if called and [one.name for one in (after.returns if after is not None else [])] != called:
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        before = asked.contents[index - 1] if index else None
        if content.returns and (before is None or not before.calls):
            yield "Please ensure that function response turn comes immediately after a function call turn."
        if called and before is not None and before.role != "user":
            yield (
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        ids = [part.function_call.id for part in content.calls if part.function_call is not None]
        if after is not None and called and [one.id for one in after.returns] != ids:
            yield "Please ensure that the ids of function responses are those of the function calls."


def _tools(asked: Body) -> Iterator[str]:
    names = [declaration.name for declaration in asked.declarations]
    if any(not _NAME.fullmatch(name) for name in names):
        yield "* GenerateContentRequest.tools.function_declarations.name: Invalid function name."
    if len(set(names)) != len(names):
        yield "Duplicate function declaration found."
    calling = asked.tool_config.function_calling_config
    if calling != Calling() and not names:
        yield "Function calling config is set without function_declarations."
    if calling.allowed_function_names and calling.mode not in ("ANY", "VALIDATED"):
        yield "Allowed function names can only be set when the mode is ANY."
    if unknown := set(calling.allowed_function_names) - set(names):
        yield f"Allowed function names must be declared: {sorted(unknown)}"
    generation = asked.generation_config
    if generation.response_json_schema is not None and generation.response_mime_type != "application/json":
        yield "Response schema is only allowed with mime type 'application/json'."


def _signatures(asked: Body, is_genuine: Callable[[Part], bool]) -> Iterator[str]:
    for content in asked.contents:
        if content.calls and content.calls[0].thought_signature is None:
            yield "Function call is missing a thought_signature in functionCall parts."
        for part in content.parts:
            if part.thought_signature is not None and not is_genuine(part):
                yield "Thought signature is not valid."

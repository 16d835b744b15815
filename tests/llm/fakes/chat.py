"""The chat completions API as OpenAI serves it: its events, its errors, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from holdfast.core.deltas import (
    CallDelta,
    Delta,
    Finish,
    FinishReason,
    OmittedDelta,
    ReasoningDelta,
    RedactedDelta,
    TextDelta,
    UsageDelta,
)
from holdfast.core.messages import AnyPart, Image, Reasoning, Text, ToolCall, ToolReturn, Turn
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from holdfast.llm.chat.payload import FAILED, IMAGE_OF, IMAGES_FOLLOW
from tests.llm.fakes.script import Failure, FailureKind

PATH = "/v1/chat/completions"
MODELS = ("offline", "text-embedding-offline")
# Status, type and code of what OpenAI answers.
REFUSALS: dict[FailureKind, tuple[int, str, str | None]] = {
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "auth": (401, "invalid_request_error", "invalid_api_key"),
    "quota": (429, "insufficient_quota", "insufficient_quota"),
    "overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (503, "service_unavailable_error", "server_is_overloaded"),
    "server": (500, "server_error", None),
    "bad_request": (400, "invalid_request_error", None),
    "timeout": (504, "server_error", "timeout"),
    "permission": (403, "request_forbidden", "unsupported_country_region_territory"),
    "not_found": (404, "invalid_request_error", "model_not_found"),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:(image/[a-z+.-]+);base64,([A-Za-z0-9+/]+=*)")
_MAX_ID = 40


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: Literal["low", "high", "auto"] | None = None


class Piece(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None


class Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class Call(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    type: Literal["function"]
    function: Function


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Piece] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ToolFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any]
    description: str = ""
    strict: bool = False


class OfferedTool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: ToolFunction


class Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Forced(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Named


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """Every field that is ever sent; OpenAI refuses those it does not know."""

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["auto", "required", "none"] | Forced | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    user: str | None = None


class ChatProtocol:
    name = "chat"

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and path.endswith("/chat/completions")

    def listing(self, path: str) -> bytes | None:
        if not path.endswith("/models"):
            return None
        models = [{"id": name, "object": "model", "created": 1, "owned_by": "fake"} for name in MODELS]
        return msgspec.json.encode({"object": "list", "data": models})

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        try:
            asked = msgspec.convert(body, Body)
        except msgspec.ValidationError as error:
            return str(error)
        return next(_complaints(asked), None)

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        asked = msgspec.convert(body, Body)
        return ModelRequest(
            handle=f"openai/{asked.model}",
            system=_texts(asked.messages[0]) if asked.messages[0].role in ("system", "developer") else "",
            turns=_turns(asked.messages),
            tools=tuple(_offered(tool.function) for tool in asked.tools or ()),
            tool_choice=_choice(asked),
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            max_output_tokens=asked.max_completion_tokens or asked.max_tokens,
            temperature=asked.temperature,
            response_format=asked.response_format,
            user=asked.user,
        )

    def rendering(self, path: str, body: dict[str, object]) -> ChatRendering:
        asked = msgspec.convert(body, Body)
        return ChatRendering(asked.model, bool(asked.stream_options and asked.stream_options.include_usage))

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        return REFUSALS[failure.kind][0], msgspec.json.encode(_error(failure))


class ChatRendering:
    """Usage comes in a chunk of its own after the finish reason, and only when it was asked for."""

    def __init__(self, model: str, tells_usage: bool) -> None:
        self._model = model
        self._tells_usage = tells_usage
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text):
                return [self._chunk({"content": text})]
            case ReasoningDelta(text):
                return [self._chunk({"reasoning_content": text})]
            case RedactedDelta() | OmittedDelta():
                return []  # this protocol has no words for them
            case CallDelta():
                return [self._chunk({"tool_calls": [_fragment(delta)]})]
            case UsageDelta(usage):
                self._usage = usage
                return []
            case Finish(reason):
                self._finish = reason
                return []

    def end(self) -> list[bytes]:
        if self._finish is None:
            return []
        events = [self._chunk({}, self._finish)]
        if self._usage is not None and self._tells_usage:
            events.append(event(self._head() | {"choices": [], "usage": usage_object(self._usage)}))
        return [*events, b"data: [DONE]\n\n"]

    def failure(self, failure: Failure) -> list[bytes]:
        return [event(_error(failure))]

    def noise(self) -> list[bytes]:
        return [
            b": still here\n\n",
            b'event: weather\ndata: {"sky":"blue"}\n\n',
            event(self._head() | {"choices": [], "weather": {"sky": "blue"}}),
        ]

    def _chunk(self, delta: dict[str, Any], finish: FinishReason | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(self._head() | {"choices": [choice]} | ({"usage": None} if self._tells_usage else {}))

    def _head(self) -> dict[str, Any]:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self._model,
            "system_fingerprint": "fp_1",
        }


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _error(failure: Failure) -> dict[str, Any]:
    _, kind, code = REFUSALS[failure.kind]
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": code}}


def _fragment(delta: CallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": delta.arguments}
    if delta.name is None:
        return {"index": delta.index, "function": function}
    function["name"] = delta.name
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def usage_object(usage: Usage) -> dict[str, Any]:
    told: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if usage.cached_input_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0}
    if usage.reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def _complaints(asked: Body) -> Iterator[str]:
    if not asked.model or not asked.messages:
        yield "model and messages are required"
    yield from _complaints_about_tools(asked)
    yield from _complaints_about_wishes(asked)
    yield from _complaints_about_messages(asked.messages)


def _complaints_about_tools(asked: Body) -> Iterator[str]:
    names = [tool.function.name for tool in asked.tools or ()]
    if asked.tools == []:
        yield "[] is too short - 'tools'"
    if asked.tools is None and (asked.tool_choice is not None or asked.parallel_tool_calls is not None):
        yield "tool_choice and parallel_tool_calls are only allowed when tools are specified"
    if len(set(names)) < len(names):
        yield "tool names must be unique"
    yield from (f"bad tool name {name!r}" for name in names if not _NAME.fullmatch(name))
    if isinstance(asked.tool_choice, Forced) and asked.tool_choice.function.name not in names:
        yield f"tool choice {asked.tool_choice.function.name!r} is not among the tools"
    for tool in asked.tools or ():
        if tool.function.parameters.get("type") != "object":
            yield f"parameters of {tool.function.name} must be an object"
        if tool.function.strict and not _is_strict(tool.function.parameters):
            yield f"Invalid schema for function {tool.function.name!r}: it is not strict"


def _is_strict(schema: object) -> bool:
    if isinstance(schema, list):
        return all(_is_strict(one) for one in cast("list[object]", schema))
    if not isinstance(schema, dict):
        return True
    known = cast("dict[str, Any]", schema)
    properties: dict[str, Any] = known.get("properties") or {}
    if known.get("type") == "object":
        complete = set(known.get("required") or ()) == properties.keys()
        if not complete or known.get("additionalProperties") is not False or "default" in known:
            return False
    definitions: dict[str, Any] = known.get("$defs") or {}
    inside = [*properties.values(), known.get("items"), known.get("anyOf"), *definitions.values()]
    return all(_is_strict(one) for one in inside)


def _complaints_about_wishes(asked: Body) -> Iterator[str]:
    if asked.stream_options is not None and not asked.stream:
        yield "stream_options is only allowed when stream is enabled"
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        yield "max_tokens and max_completion_tokens cannot both be set"
    if asked.response_format is not None:
        kind, schema = asked.response_format.get("type"), asked.response_format.get("json_schema")
        if kind not in ("text", "json_object", "json_schema"):
            yield "bad response_format"
        if kind == "json_schema" and not (isinstance(schema, dict) and {"name", "schema"} <= schema.keys()):
            yield "response_format.json_schema needs a name and a schema"


def _complaints_about_messages(messages: list[ChatMessage]) -> Iterator[str]:
    waiting: list[str] = []
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                yield f"{at}: a tool message must answer one of the tool_calls before it"
            else:
                waiting.remove(message.tool_call_id)
        elif waiting:
            yield f"{at}: tool_call_ids did not have response messages: {', '.join(waiting)}"
        if message.role in ("system", "developer") and index:
            yield f"{at}: a {message.role} message comes first"
        yield from (f"{at}: {wrong}" for wrong in _complaints_about_content(message))
        calls = message.tool_calls or []
        if calls and message.role != "assistant":
            yield f"{at}: only an assistant message has tool_calls"
        yield from (f"{at}: {wrong}" for wrong in _complaints_about_calls(calls))
        waiting += [call.id for call in calls]
    if waiting:
        yield f"tool_call_ids did not have response messages: {', '.join(waiting)}"


def _complaints_about_content(message: ChatMessage) -> Iterator[str]:
    if message.content is None and not message.tool_calls:
        yield "content is null"
    if message.tool_calls == []:
        yield "tool_calls is empty"
    if message.content == [] or (message.role == "user" and message.content == ""):
        yield "content is empty"
    for piece in message.content if isinstance(message.content, list) else ():
        if piece.type == "text" and not piece.text:
            yield "a text without text"
        if piece.type == "image_url":
            if message.role != "user":
                yield f"no image in a {message.role} message"
            if piece.image_url is None or not _DATA_URL.fullmatch(piece.image_url.url):
                yield "bad image url"


def _complaints_about_calls(calls: list[Call]) -> Iterator[str]:
    ids = [call.id for call in calls]
    if len(set(ids)) < len(ids):
        yield "duplicate tool_call ids"
    for call in calls:
        if not 0 < len(call.id) <= _MAX_ID:
            yield f"the id {call.id!r} must have 1 to {_MAX_ID} characters"
        if not _NAME.fullmatch(call.function.name):
            yield f"bad function name {call.function.name!r}"


def _turns(messages: list[ChatMessage]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for message in messages:
        match message.role:
            case "system" | "developer":
                continue
            case "assistant":
                names |= {call.id: call.function.name for call in message.tool_calls or ()}
                _extend(turns, "assistant", _said(message))
            case "tool":
                _extend(turns, "tool", [_returned(message, names)])
            case "user":
                parts = _without_shown_images(_parts(message), turns)
                if parts:
                    _extend(turns, "user", parts)
    return tuple(turns)


def _extend(turns: list[Turn], role: Literal["user", "assistant", "tool"], parts: list[AnyPart]) -> None:
    if turns and turns[-1].role == role == "tool":
        turns[-1] = Turn("tool", (*turns[-1].parts, *parts))
    else:
        turns.append(Turn(role, tuple(parts)))


def _said(message: ChatMessage) -> list[AnyPart]:
    said: list[AnyPart] = [Reasoning(message.reasoning_content)] if message.reasoning_content else []
    said += _parts(message)
    calls = message.tool_calls or ()
    return [*said, *(ToolCall(call.id, call.function.name, call.function.arguments) for call in calls)]


def _parts(message: ChatMessage) -> list[AnyPart]:
    if not isinstance(message.content, list):
        return [Text(message.content)] if message.content else []
    return [_part(piece) for piece in message.content]


def _part(piece: Piece) -> AnyPart:
    if piece.image_url is None:
        return Text(piece.text or "")
    found = _DATA_URL.fullmatch(piece.image_url.url)
    assert found is not None
    return Image(found[1], found[2], piece.image_url.detail)


def _texts(message: ChatMessage) -> str:
    return "\n".join(part.text for part in _parts(message) if isinstance(part, Text))


def _returned(message: ChatMessage, names: dict[str, str]) -> ToolReturn:
    text, call_id = _texts(message), message.tool_call_id or ""
    failed = text.startswith(('{\n  "status": "Failed"', FAILED))
    return ToolReturn(call_id, names.get(call_id, ""), "error" if failed else "success", text)


def _without_shown_images(parts: list[AnyPart], turns: list[Turn]) -> list[AnyPart]:
    """Images that a tool returned are put back where they came from: nobody has asked anything by showing them."""
    left: list[AnyPart] = []
    shown_for: str | None = None
    for part in parts:
        if isinstance(part, Text) and part.text.startswith(IMAGE_OF):
            shown_for = part.text.removeprefix(IMAGE_OF).removesuffix(":")
        elif shown_for is not None and isinstance(part, Image):
            turns[-1] = Turn("tool", tuple(_showing(one, shown_for, part) for one in turns[-1].parts))
        else:
            shown_for = None
            left.append(part)
    return left


def _showing(part: AnyPart, call_id: str, image: Image) -> AnyPart:
    if not isinstance(part, ToolReturn) or part.call_id != call_id:
        return part
    text = part.content.removesuffix(IMAGES_FOLLOW).removesuffix("\n") if isinstance(part.content, str) else None
    before = ((Text(text),) if text else ()) if text is not None else part.content
    assert not isinstance(before, str)
    return ToolReturn(part.call_id, part.name, part.status, (*before, image))


def _offered(function: ToolFunction) -> ToolSchema:
    return ToolSchema(function.name, function.description, function.parameters)


def _choice(asked: Body) -> ToolChoice:
    if isinstance(asked.tool_choice, Forced):
        return NamedTool(asked.tool_choice.function.name)
    return asked.tool_choice or "auto"

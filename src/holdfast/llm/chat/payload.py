"""A request in the shape of the chat completions API, which most vendors understand.

Strict schemas. A vendor may hold a model to a tool's schema, token by token, if it lists every property as required and
allows no others. One that can say so without meaning anything else is rewritten; any other is sent as it is, and not
called strict: a property that may be left out would become one that the model fills with null, and tools do not expect
that.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from holdfast.core.messages import (
    Content,
    Image,
    Parts,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
    content_text,
    text_of,
)
from holdfast.llm.base import CONTINUE, ModelInfo, ModelRequest, NamedTool, ToolSchema
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.chat.dialects import OPENAI, Dialect, reasons, refuses_parallel_flag, thinks_only_without_tools
from holdfast.llm.json_prompt import json_in_words
from holdfast.llm.tool_calls import plain_id, sent_name, sent_text, short_id

# A tool message holds text only, so what a tool shows is shown by a message of the user, right after the returns.
IMAGES_FOLLOW: Final = "[The next message shows the image of this result.]"
IMAGE_OF: Final = "Image of the result of call "
FAILED: Final = "Error: "
IMAGE_OMITTED: Final = "[Image omitted]"
_ACKNOWLEDGED: Final = "OK"

_Message = dict[str, Any]
_BOUNDS: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
_KEPT: Final = _BOUNDS | {"title", "description", "enum", "const", "pattern", "format", "type", "$ref"}
_UNDERSTOOD: Final = _KEPT | {"properties", "required", "additionalProperties", "items", "anyOf", "$defs"}
_MAX_DEPTH: Final = 10
# Those that a vendor can write token by token; it refuses the request for any other.
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
)


def chat_payload(request: ModelRequest, dialect: Dialect = OPENAI, info: ModelInfo | None = None) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "model": info.name if info else request.handle.partition("/")[2],
        "messages": _messages(request, dialect, info),
    }
    if request.tools and (dialect.none_choice or request.tool_choice != "none"):
        payload |= _tools(request, dialect, info)
    return payload | {name: value for name, value in _wishes(request, dialect, info).items() if value is not None}


def _messages(request: ModelRequest, dialect: Dialect, info: ModelInfo | None) -> list[_Message]:
    developer = dialect.developer and info is not None and reasons(info)
    sees = info is None or info.abilities.images
    messages: list[_Message] = [{"role": "developer" if developer else "system", "content": _system(request, dialect)}]
    for turn in request.turns:
        if turn.role == "assistant":
            messages.append(_assistant(turn, dialect))
        elif turn.role == "tool":
            messages += _returns(turn.parts, sees, dialect)
        elif messages[-1]["role"] == "user":
            # The images of a tool's return stand there. Some servers insist that user and assistant take turns.
            messages[-1] = {"role": "user", "content": _pieces(messages[-1]) + _user_pieces(turn.parts, sees)}
        else:
            messages.append({"role": "user", "content": _user_content(turn.parts, sees)})
    return _with_strict_turns(messages) if dialect.strict_turns else messages


def _with_strict_turns(messages: list[_Message]) -> list[_Message]:
    """For a dialect that checks who speaks after whom."""
    kept: list[_Message] = []
    for message in messages:
        role, before = message["role"], kept[-1]["role"] if kept else None
        if role == "assistant" and not (message.get("tool_calls") or message["content"].strip()):
            continue
        if role == before == "user":
            kept[-1] = {"role": "user", "content": _pieces(kept[-1]) + _pieces(message)}
            continue
        if role == "user" and before == "tool":
            kept.append({"role": "assistant", "content": _ACKNOWLEDGED})
        kept.append(message)
    return [*kept, {"role": "user", "content": CONTINUE}] if kept[-1]["role"] == "assistant" else kept


def _sent_id(call_id: str, dialect: Dialect) -> str:
    return short_id(call_id) if dialect.call_id_length is None else plain_id(call_id, dialect.call_id_length)


def _system(request: ModelRequest, dialect: Dialect) -> str:
    """Asked for JSON, vendors insist that the prompt says so; a schema that is not sent is described."""
    wanted = request.response_format or {}
    words = "" if wanted.get("type") == "json_schema" and dialect.json == "schema" else json_in_words(wanted)
    return "\n\n".join(filter(None, (request.system, words)))


def _user_content(parts: Parts, sees: bool) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return _user_pieces(parts, sees)


def _pieces(message: _Message) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _user_pieces(parts: Parts, sees: bool) -> list[dict[str, Any]]:
    pieces: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            pieces.append({"type": "text", "text": part.text})
        elif isinstance(part, Image):
            pieces.append(_image(part) if sees else {"type": "text", "text": IMAGE_OMITTED})
    return pieces


def _image(image: Image) -> dict[str, Any]:
    shown = {"url": f"data:{image.media_type};base64,{image.data}"}
    if image.detail is not None:
        shown["detail"] = image.detail
    return {"type": "image_url", "image_url": shown}


def _assistant(turn: Turn, dialect: Dialect) -> _Message:
    if len(turn.parts) == 1 and isinstance(only := turn.parts[0], Text) and dialect.sends_back is None:
        return {"role": "assistant", "content": only.text}
    calls = [
        {
            "id": _sent_id(part.id, dialect),
            "type": "function",
            "function": {"name": sent_name(part.name), "arguments": sent_text(part.arguments)},
        }
        for part in turn.parts
        if isinstance(part, ToolCall)
    ]
    # A reply of nothing but reasoning still took its turn; null is for replies with calls.
    message: _Message = {"role": "assistant", "content": text_of(turn.parts) or (None if calls else "")}
    if calls:
        message["tool_calls"] = calls
    if dialect.sends_back == "reasoning_content":
        thought = "".join(part.text for part in turn.parts if isinstance(part, Reasoning))
        message["reasoning_content"] = thought or dialect.no_reasoning
    elif dialect.sends_back == "reasoning_details":
        message |= _details(turn.parts)
    return message


def _details(parts: Parts) -> _Message:
    """Reasoning as OpenRouter wants it back: what was signed or encrypted as it came, anything else as text."""
    details: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, RedactedReasoning):
            details.append(_object_or(part.data, "reasoning.encrypted", "data"))
        elif isinstance(part, Reasoning) and part.signature:
            details.append({**_object_or(part.signature, "reasoning.text", "signature"), "text": part.text})
    if details:
        return {"reasoning_details": details}
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    return {"reasoning": reasoning} if reasoning else {}


def _object_or(text: str, kind: str, field: str) -> dict[str, Any]:
    """The detail that was kept whole in a signature; one from elsewhere is but the signature."""
    try:
        return cast("dict[str, Any]", msgspec.json.decode(text, type=dict))
    except NOT_JSON:
        return {"type": kind, field: text}


def _returns(parts: Parts, sees: bool, dialect: Dialect) -> list[_Message]:
    messages: list[_Message] = []
    shown: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, ToolReturn):
            continue
        call_id, content = _sent_id(part.call_id, dialect), part.content
        images = [one for one in content if isinstance(one, Image)] if sees and not isinstance(content, str) else []
        if images:
            shown.append({"type": "text", "text": f"{IMAGE_OF}{call_id}:"})
            shown += [_image(image) for image in images]
        text = _return_text(content, bool(images))
        # Text alone comes in an envelope that says whether it is an error; several parts do not.
        if part.status == "error" and not isinstance(content, str):
            text = f"{FAILED}{text}"
        messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
    return [*messages, {"role": "user", "content": shown}] if shown else messages


def _return_text(content: Content, images_follow: bool) -> str:
    if isinstance(content, str) or not images_follow:
        return content_text(content)
    return "\n".join([*(part.text for part in content if isinstance(part, Text)), IMAGES_FOLLOW])


def _tools(request: ModelRequest, dialect: Dialect, info: ModelInfo | None) -> dict[str, Any]:
    wanted = request.settings.get("strict")
    able = info is not None and info.abilities.strict_tools
    strict = dialect.strict and (able if wanted is None else bool(wanted))
    fields: dict[str, Any] = {
        "tools": [{"type": "function", "function": _function(tool, strict)} for tool in request.tools],
        "tool_choice": _tool_choice(request, dialect),
    }
    if dialect.parallel_tool_calls and not (info and refuses_parallel_flag(info)):
        fields["parallel_tool_calls"] = request.parallel_tool_calls
    return fields


def _function(tool: ToolSchema, strict: bool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": sent_name(tool.name), "description": tool.description}
    held_to = strict_schema(tool.parameters) if strict else None
    if held_to is None:
        return function | {"parameters": tool.parameters}
    return function | {"parameters": held_to, "strict": True}


def _tool_choice(request: ModelRequest, dialect: Dialect) -> str | dict[str, Any]:
    choice = request.tool_choice
    if not dialect.forced_choice and choice != "none":
        return "auto"
    if isinstance(choice, NamedTool):
        named = {"type": "function", "function": {"name": sent_name(choice.name)}}
        return named if dialect.named_choice else "required"
    return choice


def _wishes(request: ModelRequest, dialect: Dialect, info: ModelInfo | None) -> dict[str, Any]:
    """How the model is to answer; what is None is not said."""
    settings, thinks = request.settings, info is not None and reasons(info)
    wishes: dict[str, Any] = {
        "temperature": None if thinks and not dialect.temperature_for_reasoners else request.temperature,
        dialect.max_tokens: request.max_output_tokens,
        "response_format": _response_format(request.response_format, dialect),
        "verbosity": settings.get("verbosity") if dialect.verbosity else None,
        "user": request.user if dialect.user else None,
    }
    effort = _part(settings, "reasoning").get("reasoning_effort")
    if dialect.effort == "reasoning_effort" and request.tools and info and thinks_only_without_tools(info):
        wishes["reasoning_effort"] = "none"
    elif effort and thinks and dialect.effort is not None:
        # Clients say it of every model, because it has a default; one that does not reason refuses it.
        wishes[dialect.effort] = {"effort": effort} if dialect.effort == "reasoning" else effort
    switch = _part(settings, "thinking")
    if dialect.thinks_or_obeys and request.tools and request.tool_choice not in ("auto", "none"):
        switch = {"type": "disabled"}  # an agent's rules are promises, its thinking is not
    if dialect.thinking and switch:
        wishes["thinking"] = {key: switch[key] for key in ("type", "clear_thinking") if switch.get(key) is not None}
    return wishes


def _response_format(wanted: dict[str, Any] | None, dialect: Dialect) -> dict[str, Any] | None:
    kind = (wanted or {}).get("type")
    if wanted is None or kind == "text" or dialect.json == "prompt":
        return None
    if kind != "json_schema":
        return wanted
    if dialect.json == "object":
        return {"type": "json_object"}
    schema = _part(wanted, "json_schema")
    if "schema" not in schema:  # the schema itself, without the name that vendors want
        schema = {"name": "response", "schema": schema}
    return {"type": "json_schema", "json_schema": schema if "name" in schema else {"name": "response", **schema}}


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return settings.get(name) or {}


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """None when it cannot be made strict."""
    return _strict(schema, 0) if schema.get("type") == "object" and "anyOf" not in schema else None


def _strict(schema: Any, depth: int) -> dict[str, Any] | None:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    known = cast("dict[str, Any]", schema)
    if not known.keys() <= _UNDERSTOOD or not ("type" in known or "anyOf" in known or "$ref" in known):
        return None
    if known.get("format") not in (None, *_FORMATS):
        return None
    if "$ref" in known:
        return _reference(known)
    made = {key: value for key, value in known.items() if key in _KEPT}
    if _is_of(known, "object"):
        objects = _strict_object(known, depth)
        if objects is None:
            return None
        made |= objects
    if "items" in known or _is_of(known, "array"):
        items = _strict(known.get("items"), depth + 1)
        if items is None:
            return None
        made["items"] = items
    return _with_variants(made, known, depth)


def _is_of(known: dict[str, Any], kind: str) -> bool:
    declared = known.get("type")
    return kind in cast("list[str]", declared) if isinstance(declared, list) else declared == kind


def _reference(known: dict[str, Any]) -> dict[str, Any] | None:
    """It must stand alone. What is said about it is said around it."""
    about = {key: value for key, value in known.items() if key != "$ref"}
    if not about.keys() <= {"title", "description"}:
        return None
    return {**about, "anyOf": [{"$ref": known["$ref"]}]} if about else known


def _strict_object(known: dict[str, Any], depth: int) -> dict[str, Any] | None:
    if depth and "properties" not in known and "additionalProperties" not in known:
        return None  # any object at all; closed, it could only be empty
    properties: dict[str, Any] = known.get("properties") or {}
    required: list[str] = known.get("required") or []
    if known.get("additionalProperties") or not set(required) <= properties.keys():
        return None
    if not all(name in required or _takes_null(value) for name, value in properties.items()):
        return None
    inner = {name: _strict(value, depth + 1) for name, value in properties.items()}
    if any(value is None for value in inner.values()):
        return None
    return {"properties": inner, "required": list(properties), "additionalProperties": False}


def _with_variants(made: dict[str, Any], known: dict[str, Any], depth: int) -> dict[str, Any] | None:
    if "anyOf" in known:
        variants = [_strict(variant, depth + 1) for variant in known["anyOf"]]
        if any(variant is None for variant in variants):
            return None
        made["anyOf"] = variants
    if "$defs" in known:
        named = {name: _strict(value, depth + 1) for name, value in known["$defs"].items()}
        if any(value is None for value in named.values()):
            return None
        made["$defs"] = named
    return made


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    known = cast("dict[str, Any]", schema)
    kinds = known.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    return any(_takes_null(variant) for variant in known.get("anyOf") or ())

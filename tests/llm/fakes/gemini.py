"""Google's Gemini API, as `FakeVendor` speaks it: calls come whole, and the first of a reply is always signed."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

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
from holdfast.core.messages import (
    AnyPart,
    Content,
    Image,
    OmittedReasoning,
    Reasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from tests.llm.fakes import gemini_rules as rules
from tests.llm.fakes.gemini_rules import Body, Part
from tests.llm.fakes.script import Failure, FailureKind

# At the developer's API, and in Google Cloud with a key.
_PATH = re.compile(r"/(?:v1beta|v1beta1/publishers/google)/models/([^/:]+):streamGenerateContent")
_PREFIX = base64.b64encode(b"signed-by-").decode().rstrip("=")[:12]  # how every signature of its own begins
_INVALID_KEY = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
# Status, its name, and what the message begins with.
_REFUSALS: dict[FailureKind, tuple[int, str, str]] = {
    "rate_limit": (429, "RESOURCE_EXHAUSTED", ""),
    "auth": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key. "),
    "quota": (402, "FAILED_PRECONDITION", "You exceeded your current quota, please check your plan: "),
    "overflow": (400, "INVALID_ARGUMENT", "The input token count exceeds the maximum number of tokens allowed: "),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. "),
    "server": (500, "INTERNAL", ""),
    "bad_request": (400, "INVALID_ARGUMENT", ""),
    "timeout": (504, "DEADLINE_EXCEEDED", ""),
    "permission": (403, "PERMISSION_DENIED", ""),
    "not_found": (404, "NOT_FOUND", ""),
}
_FINISHES: dict[FinishReason, str] = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}


class GeminiProtocol:
    name = "gemini"

    def __init__(self) -> None:
        self._signed: dict[str, str] = {}  # by signature, what it was given to
        self._numbers = count(1)

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and _PATH.fullmatch(path) is not None

    def listing(self, path: str) -> bytes | None:
        if path != "/v1beta/models":
            return None
        model = {
            "name": "models/offline",
            "displayName": "Offline",
            "inputTokenLimit": 128_000,
            "outputTokenLimit": 8_192,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }
        return msgspec.json.encode({"models": [model]})

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        return rules.complaint(body, self._is_genuine)

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        asked = rules.read(body)
        found = _PATH.fullmatch(path)
        assert found is not None
        handle = f"google_ai/{found[1]}"
        generation = asked.generation_config
        system = asked.system_instruction.parts if asked.system_instruction else []
        return ModelRequest(
            handle=handle,
            system="\n".join(part.text or "" for part in system),
            turns=_turns(asked.contents, handle),
            tools=tuple(
                ToolSchema(one.name, one.description, one.parameters_json_schema or one.parameters or {})
                for one in asked.declarations
            ),
            tool_choice=_choice(asked),
            parallel_tool_calls=True,  # there is no way to ask for less
            max_output_tokens=generation.max_output_tokens,
            temperature=generation.temperature,
            response_format=_response_format(generation),
        )

    def rendering(self, path: str, body: dict[str, object]) -> GeminiRendering:
        return GeminiRendering(rules.read(body), self._signed, self._numbers)

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        return _REFUSALS[failure.kind][0], msgspec.json.encode(_error(failure))

    def _is_genuine(self, part: Part) -> bool:
        signature = part.thought_signature or ""
        known = self._signed.get(signature)
        # A signature from elsewhere proves nothing either way; one from here must be with what it was given to.
        return not signature.startswith(_PREFIX) if known is None else known == _content(part)


class GeminiRendering:
    """Every chunk is a response of its own, with the parts that are new."""

    def __init__(self, asked: Body, signed: dict[str, str], numbers: count[int]) -> None:
        self._asked = asked
        self._signed = signed
        self._numbers = numbers
        self._said = ""  # all of the text, or thought, that is being said
        self._is_thought = False
        self._calls: dict[int, CallDelta] = {}
        self._has_called = False
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        return []

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text, signature):
                return [*self._called(), *self._words(text, signature, is_thought=False)]
            case ReasoningDelta(text, signature):
                return [*self._called(), *self._words(text, signature, is_thought=True)]
            case OmittedDelta(signature) | RedactedDelta(signature):
                self._said = ""
                return [*self._called(), *self._words("", signature or "b21pdHRlZA==", is_thought=False)]
            case CallDelta():
                return self._call(delta)
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):
                self._finish = reason
        return []

    def end(self) -> list[bytes]:
        events = self._called()
        if self._finish is None:
            return events
        candidate: dict[str, Any] = {
            "content": {"role": "model", "parts": []},
            "finishReason": _FINISHES[self._finish],
            "index": 0,
        }
        told = {} if self._usage is None else {"usageMetadata": counts(self._usage)}
        return [*events, _event({"candidates": [candidate], **told, "modelVersion": "offline"})]

    def failure(self, failure: Failure) -> list[bytes]:
        return [_event(_error(failure))]

    def noise(self) -> list[bytes]:
        return [b": a comment\n\n", b'event: novelty\ndata: {"novelty": ["of a shape that nobody expects"]}\n\n']

    def _words(self, text: str, signature: str | None, *, is_thought: bool) -> list[bytes]:
        if is_thought and not self._asked.generation_config.thinking_config.include_thoughts:
            return []
        if is_thought != self._is_thought:
            self._said, self._is_thought = "", is_thought
        self._said += text
        part = {"text": text} | ({"thought": True} if is_thought else {})
        if signature is None:
            return [_chunk(part)]
        self._signed[signature] = self._said
        self._said = ""
        return [_chunk(part | _signature(signature))]

    def _call(self, delta: CallDelta) -> list[bytes]:
        self._said = ""
        known = self._calls.get(delta.index)
        if known is not None:
            self._calls[delta.index] = msgspec.structs.replace(known, arguments=known.arguments + delta.arguments)
            return []
        events = self._called()
        self._calls[delta.index] = delta
        return events

    def _called(self) -> list[bytes]:
        calls, self._calls = self._calls, {}
        return [_chunk(self._call_part(call)) for call in calls.values()]

    def _call_part(self, call: CallDelta) -> dict[str, Any]:
        args = msgspec.json.decode(call.arguments or "{}")
        said = {"name": call.name, "args": args} | ({"id": call.id} if call.id else {})
        signature = call.signature
        if signature is None and not self._has_called:
            signature = base64.b64encode(f"signed-by-{next(self._numbers)}".encode()).decode()
        self._has_called = True
        if signature is None:
            return {"functionCall": said}
        self._signed[signature] = f"{call.name} {msgspec.json.encode(args, order='sorted').decode()}"
        return {"functionCall": said} | _signature(signature)


def counts(usage: Usage) -> dict[str, int]:
    """The vendor does not count what was thought among what was said."""
    told = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - (usage.reasoning_tokens or 0),
        "thoughtsTokenCount": usage.reasoning_tokens,
        "cachedContentTokenCount": usage.cached_input_tokens,
        "totalTokenCount": usage.total_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}


def _chunk(part: dict[str, Any]) -> bytes:
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
    return _event({"candidates": [candidate], "modelVersion": "offline", "responseId": "response-1"})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\r\n\r\n"


def _signature(text: str) -> dict[str, str]:
    return {"thoughtSignature": text}


def _content(part: Part) -> str:
    if part.function_call is None:
        return part.text or ""
    return f"{part.function_call.name} {msgspec.json.encode(part.function_call.args, order='sorted').decode()}"


def _error(failure: Failure) -> dict[str, Any]:
    status, name, opening = _REFUSALS[failure.kind]
    details: list[dict[str, str]] = [_INVALID_KEY] if failure.kind == "auth" else []
    if failure.retry_after is not None:
        delay = f"{failure.retry_after:g}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    return {"error": {"code": status, "message": opening + failure.message, "status": name, "details": details}}


def _turns(contents: list[rules.Content], handle: str) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    ids: list[str] = []
    for number, content in enumerate(contents):
        if content.role == "model":
            ids = [one.function_call.id or f"call-{number}" for one in content.calls if one.function_call is not None]
            turns.append(Turn("assistant", tuple(_said(content, ids)), handle))
            continue
        returns = tuple(_return(one, call_id) for one, call_id in zip(content.returns, ids, strict=False))
        asked = tuple(_asked(content))
        turns += [Turn("tool", returns)] if returns else []
        turns += [Turn("user", asked)] if asked else []
    return tuple(turns)


def _said(content: rules.Content, ids: list[str]) -> Iterator[AnyPart]:
    left = iter(ids)
    for part in content.parts:
        signature = part.thought_signature
        if part.function_call is not None:
            call = part.function_call
            known = None if signature == rules.UNCHECKED else signature
            yield ToolCall(next(left), call.name, msgspec.json.encode(call.args).decode(), known)
        elif not part.text:
            yield OmittedReasoning(signature)
        else:
            yield Reasoning(part.text, signature) if part.thought else Text(part.text, signature)


def _asked(content: rules.Content) -> Iterator[AnyPart]:
    for part in content.parts:
        if part.text is not None:
            yield Text(part.text)
        elif part.inline_data is not None:
            yield Image(part.inline_data.mime_type, part.inline_data.data)


def _return(said: rules.Return, call_id: str) -> ToolReturn:
    failed = said.response.get("error")
    text = str(failed if failed is not None else said.response.get("return_value", said.response.get("output", "")))
    shown = tuple(Image(one.inline_data.mime_type, one.inline_data.data) for one in said.parts)
    content: Content = (*([Text(text)] if text else []), *shown) if shown else text
    return ToolReturn(call_id, said.name, "error" if failed is not None else "success", content)


def _choice(asked: Body) -> ToolChoice:
    calling = asked.tool_config.function_calling_config
    match calling.mode:
        case "ANY":
            allowed = calling.allowed_function_names
            return NamedTool(allowed[0]) if len(allowed) == 1 else "required"
        case "NONE":
            return "none"
        case "AUTO" | "VALIDATED":
            return "auto"


def _response_format(generation: rules.Generation) -> dict[str, Any] | None:
    if generation.response_json_schema is not None:
        return {"type": "json_schema", "json_schema": {"schema": generation.response_json_schema}}
    return {"type": "json_object"} if generation.response_mime_type == "application/json" else None

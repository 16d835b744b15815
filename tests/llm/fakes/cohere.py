"""Cohere's second chat API, as `FakeVendor` speaks it: text only, and no way to name the tool that is to be called."""

from __future__ import annotations

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
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest
from tests.llm.fakes.chat import ChatProtocol
from tests.llm.fakes.script import Failure, FailureKind

PATH = "/v2/chat"
# Status, and what the message begins with: there is nothing else.
_REFUSALS: dict[FailureKind, tuple[int, str]] = {
    "rate_limit": (429, ""),
    "auth": (401, "invalid api token: "),
    "quota": (402, "Please add or update your payment method: "),
    "overflow": (400, "too many tokens: size limit exceeded by 11326 tokens. "),
    "overloaded": (503, ""),
    "server": (500, "internal server error: "),
    "bad_request": (400, "invalid request: "),
    "timeout": (504, ""),
    "permission": (403, ""),
    "not_found": (404, "model 'offline' not found: "),
}
_FINISHES: dict[FinishReason, str] = {"stop": "COMPLETE", "tool_calls": "TOOL_CALL", "length": "MAX_TOKENS"}
_CHOICES = {"REQUIRED": "required", "NONE": "none"}


class Piece(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    type: Literal["text", "thinking"]
    text: str = ""
    thinking: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[Piece] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(one.text for one in content)


class Body(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    messages: list[Message]
    stream: bool
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    thinking: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None


class CohereProtocol:
    name = "cohere"

    def __init__(self) -> None:
        self._chat = ChatProtocol()

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and path == PATH

    def listing(self, path: str) -> bytes | None:
        if path != "/v1/models":
            return None
        chats = {"name": "offline", "endpoints": ["chat"], "context_length": 128_000, "features": ["tools"]}
        embeds = {"name": "embed-v4.0", "endpoints": ["embed"], "context_length": 8_192}
        return msgspec.json.encode({"models": [chats, embeds]})

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        try:
            asked = msgspec.convert(body, Body)
        except msgspec.ValidationError as error:
            return str(error)
        return next(_complaints(asked), None) or self._chat.complaint(path, _as_chat(asked))

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        return self._chat.decode(path, _as_chat(msgspec.convert(body, Body)))

    def rendering(self, path: str, body: dict[str, object]) -> CohereRendering:
        return CohereRendering()

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        status, opening = _REFUSALS[failure.kind]
        return status, msgspec.json.encode({"id": "1", "message": opening + failure.message})


class CohereRendering:
    """Blocks are numbered, and begin and end with events of their own."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None  # the kind of block that is being said
        self._calls: dict[int, int] = {}
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        return [_event("message-start", id="1", delta={"message": {"role": "assistant", "content": []}})]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text):
                return self._said("text", text)
            case ReasoningDelta(text):
                return self._said("thinking", text)
            case CallDelta():
                return self._call(delta)
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):
                self._finish = reason
            case RedactedDelta() | OmittedDelta():
                pass  # this protocol has no words for them
        return []

    def end(self) -> list[bytes]:
        events = self._close()
        if self._finish is None:
            return events
        delta: dict[str, Any] = {"finish_reason": _FINISHES[self._finish]}
        if self._usage is not None:
            delta["usage"] = _counts(self._usage)
        return [*events, _event("message-end", delta=delta), b"data: [DONE]\n\n"]

    def failure(self, failure: Failure) -> list[bytes]:
        return [_event("message-end", delta={"finish_reason": "ERROR", "error": failure.message})]

    def noise(self) -> list[bytes]:
        return [b": a comment\n\n", _event("debug", prompt="..."), _event("novelty", index={"of": "another shape"})]

    def _said(self, kind: str, text: str) -> list[bytes]:
        events: list[bytes] = []
        if self._open != kind:
            events = self._close()
            self._index, self._open = self._index + 1, kind
            events.append(self._content("content-start", {"type": kind, kind: ""}))
        return [*events, self._content("content-delta", {kind: text})]

    def _content(self, name: str, content: dict[str, str]) -> bytes:
        return _event(name, index=self._index, delta={"message": {"content": content}})

    def _call(self, delta: CallDelta) -> list[bytes]:
        events: list[bytes] = []
        if delta.index not in self._calls:
            events = self._close()
            self._open = "call"
            self._calls[delta.index] = len(self._calls)
            begun = {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": ""}}
            events.append(_call_event("tool-call-start", self._calls[delta.index], begun))
        if delta.arguments:
            more = {"function": {"arguments": delta.arguments}}
            events.append(_call_event("tool-call-delta", self._calls[delta.index], more))
        return events

    def _close(self) -> list[bytes]:
        closed, self._open = self._open, None
        if closed is None:
            return []
        if closed == "call":
            return [_event("tool-call-end", index=len(self._calls) - 1)]
        return [_event("content-end", index=self._index)]


def _call_event(name: str, index: int, call: dict[str, Any]) -> bytes:
    return _event(name, index=index, delta={"message": {"tool_calls": call}})


def _event(name: str, **said: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **said}))


def _counts(usage: Usage) -> dict[str, Any]:
    tokens = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    cached = {} if usage.cached_input_tokens is None else {"cached_tokens": usage.cached_input_tokens}
    return {"billed_units": tokens, "tokens": tokens} | cached


def _complaints(asked: Body) -> Iterator[str]:
    if asked.tool_choice is not None and not asked.tools:
        yield "tool_choice can only be used with tools"
    for index, message in enumerate(asked.messages):
        if message.role in ("user", "tool") and not message.content:
            yield f"invalid request: message at index {index} must have content"
        if message.role == "assistant" and not message.content and not message.tool_calls:
            yield f"invalid request: assistant message at index {index} must have content or tool_calls"
        if isinstance(message.content, list) and any(not (one.text or one.thinking) for one in message.content):
            yield f"invalid request: content of the message at index {index} is empty"
        for call in message.tool_calls or ():
            if not isinstance(msgspec.json.decode(call["function"]["arguments"]), dict):
                yield "invalid request: tool call arguments must be a JSON object"


def _as_chat(asked: Body) -> dict[str, object]:
    """The same in OpenAI's words."""
    messages: list[dict[str, Any]] = []
    for message in asked.messages:
        made: dict[str, Any] = {"role": message.role, "content": message.text}
        if isinstance(message.content, list) and message.role == "user":
            made["content"] = [{"type": "text", "text": one.text} for one in message.content]
        if message.tool_calls:
            made["tool_calls"] = message.tool_calls
        if message.tool_call_id is not None:
            made["tool_call_id"] = message.tool_call_id
        messages.append(made)
    choice = _CHOICES.get(asked.tool_choice or "")
    made = {
        "model": asked.model,
        "messages": messages,
        "tools": asked.tools,
        "tool_choice": choice,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "response_format": asked.response_format,
        "stream": asked.stream,
    }
    return cast("dict[str, object]", {name: value for name, value in made.items() if value is not None})

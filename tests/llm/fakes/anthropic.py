"""Anthropic's Messages API, as `FakeVendor` speaks it."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

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
    Image,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from holdfast.llm.json_prompt import JSON_ONLY
from tests.llm.fakes import anthropic_rules as rules
from tests.llm.fakes.script import THINKS, Failure, FailureKind

_PREFIX = "signed-"
_REFUSALS: dict[FailureKind, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", ""),
    "auth": (401, "authentication_error", ""),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the API: "),
    "overflow": (400, "invalid_request_error", "prompt is too long: "),
    "overloaded": (529, "overloaded_error", ""),
    "server": (500, "api_error", ""),
    "bad_request": (400, "invalid_request_error", ""),
    "timeout": (504, "timeout_error", ""),
    "permission": (403, "permission_error", ""),
    "not_found": (404, "not_found_error", ""),
}
_STOP_REASONS: dict[FinishReason, str] = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class AnthropicProtocol:
    name = "anthropic"

    def __init__(self) -> None:
        self.thoughts: dict[str, str] = {}  # by signature, what was really thought

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and path == "/v1/messages"

    def listing(self, path: str) -> bytes | None:
        if path != "/v1/models":
            return None
        model = {
            "type": "model",
            "id": "offline",
            "display_name": "Offline",
            "created_at": "2026-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": 128_000,
            "max_tokens": 8_192,
        }
        return msgspec.json.encode({"data": [model], "has_more": False, "first_id": "offline", "last_id": "offline"})

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        return rules.complaint(body, self._is_genuine)

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        asked = rules.read(body)
        handle = f"anthropic/{asked.model}"
        system = [block.text for block in asked.system_blocks]
        return ModelRequest(
            handle=handle,
            system="\n".join(text for text in system if text != JSON_ONLY),
            turns=tuple(turn for message in _named(asked.messages) for turn in _turns(message, handle)),
            tools=tuple(ToolSchema(tool.name, tool.description, tool.input_schema) for tool in asked.tools),
            tool_choice=_choice(asked.tool_choice),
            parallel_tool_calls=not asked.tool_choice.disable_parallel_tool_use,
            max_output_tokens=asked.max_tokens,
            temperature=asked.temperature,
            response_format=_response_format(asked, system),
            settings={THINKS: asked.is_thinking},
        )

    def rendering(self, path: str, body: dict[str, object]) -> AnthropicRendering:
        return AnthropicRendering(str(body["model"]), self.thoughts)

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        status, _, _ = _REFUSALS[failure.kind]
        return status, msgspec.json.encode(_error(failure) | {"request_id": "req_offline"})

    def _is_genuine(self, block: rules.Block) -> bool:
        """A signature from elsewhere proves nothing either way; one from here must be with what it was given to."""
        known = self.thoughts.get(block.signature)
        return not block.signature.startswith(_PREFIX) if known is None else known == block.thinking


class AnthropicRendering:
    """One block is open at a time, as with the vendor."""

    def __init__(self, model: str, thoughts: dict[str, str]) -> None:
        self._model = model
        self._thoughts = thoughts
        self._index = -1
        self._open: Literal["text", "thinking"] | int | None = None  # a number: the call of that index
        self._thought = ""
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        message = {
            "id": "msg_offline",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list[object](),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return [_event("message_start", message=message), _event("ping")]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text):
                return [*self._switch("text", type="text", text=""), self._piece("text_delta", text=text)]
            case ReasoningDelta():
                return self._reasoning(delta)
            case RedactedDelta(data):
                return [*self._switch(None), *self._start(type="redacted_thinking", data=data), self._stop()]
            case OmittedDelta(signature):
                return [*self._switch(None), *self._thinking(), *self._sign(signature or f"{_PREFIX}omitted")]
            case CallDelta():
                return self._call(delta)
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):
                self._finish = reason
        return []

    def end(self) -> list[bytes]:
        closed = self._switch(None)
        if self._finish is None:
            return closed
        stopped = {"stop_reason": _STOP_REASONS[self._finish], "stop_sequence": None}
        usage = {"output_tokens": 0} if self._usage is None else counts(self._usage)
        return [*closed, _event("message_delta", delta=stopped, usage=usage), _event("message_stop")]

    def failure(self, failure: Failure) -> list[bytes]:
        return [b"event: error\ndata: " + msgspec.json.encode(_error(failure)) + b"\n\n"]

    def noise(self) -> list[bytes]:
        return [b": a comment\n\n", _event("ping"), _event("novelty", delta="of an unexpected shape", index="first")]

    def _reasoning(self, delta: ReasoningDelta) -> list[bytes]:
        events = [] if self._open == "thinking" else [*self._switch(None), *self._thinking()]
        if delta.text:
            self._thought += delta.text
            events.append(self._piece("thinking_delta", thinking=delta.text))
        return [*events, *self._sign(delta.signature)] if delta.signature else events

    def _thinking(self) -> list[bytes]:
        self._open, self._thought = "thinking", ""
        return self._start(type="thinking", thinking="", signature="")

    def _sign(self, signature: str) -> list[bytes]:
        """In two pieces, and with that the block is closed."""
        self._thoughts[signature] = self._thought
        self._open = None
        half = len(signature) // 2
        pieces = [self._piece("signature_delta", signature=part) for part in (signature[:half], signature[half:])]
        return [*pieces, self._stop()]

    def _call(self, delta: CallDelta) -> list[bytes]:
        events = list[bytes]()
        if self._open != delta.index:
            assert delta.name is not None, "this protocol has no words for calls that come in turns"
            events = self._switch(None)
            self._open = delta.index
            known: dict[str, object] = {} if delta.id is None else {"id": delta.id}
            events += self._start(type="tool_use", **known, name=delta.name, input={})
        if delta.arguments:
            events.append(self._piece("input_json_delta", partial_json=delta.arguments))
        return events

    def _switch(self, to: Literal["text"] | None, **block: object) -> list[bytes]:
        if to is not None and self._open == to:
            return []
        events = list[bytes]()
        if self._open == "thinking":
            events = self._sign(signature_of(self._thought))
        elif self._open is not None:
            events = [self._stop()]
        self._open = to
        return events + self._start(**block) if to is not None else events

    def _start(self, **block: object) -> list[bytes]:
        self._index += 1
        return [_event("content_block_start", index=self._index, content_block=block)]

    def _piece(self, kind: str, **said: object) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **said})

    def _stop(self) -> bytes:
        return _event("content_block_stop", index=self._index)


def signature_of(thought: str) -> str:
    return _PREFIX + hashlib.sha256(thought.encode()).hexdigest()[:24]


def counts(usage: Usage) -> dict[str, Any]:
    """The vendor's `input_tokens` are those that have nothing to do with its cache."""
    read, written = usage.cached_input_tokens, usage.cache_write_tokens
    told: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens - (read or 0) - (written or 0),
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }
    if usage.reasoning_tokens is not None:
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return told


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


def _error(failure: Failure) -> dict[str, object]:
    _, kind, opening = _REFUSALS[failure.kind]
    return {"type": "error", "error": {"type": kind, "message": opening + failure.message}}


def _named(messages: list[rules.Message]) -> list[rules.Message]:
    """With the tool's name in every result: the vendor is told it only by the call."""
    names = {block.id: block.name for message in messages for block in message.of("tool_use")}
    for message in messages:
        for block in message.of("tool_result"):
            block.name = names[block.tool_use_id]
    return messages


def _turns(message: rules.Message, handle: str) -> list[Turn]:
    if message.role == "assistant":
        return [Turn("assistant", tuple(_part(block) for block in message.blocks), handle)]
    returns = tuple(_return(block) for block in message.of("tool_result"))
    spoken = tuple(_part(block) for block in message.blocks if block.type != "tool_result")
    return [*([Turn("tool", returns)] if returns else []), *([Turn("user", spoken)] if spoken else [])]


def _part(block: rules.Block) -> AnyPart:
    match block.type:
        case "thinking":
            return Reasoning(block.thinking, block.signature) if block.thinking else OmittedReasoning(block.signature)
        case "redacted_thinking":
            return RedactedReasoning(block.data)
        case "tool_use":
            return ToolCall(block.id, block.name, msgspec.json.encode(block.input).decode())
        case _:
            return _shown(block)


def _shown(block: rules.Block) -> Text | Image:
    if block.source is not None:
        return Image(block.source.media_type, block.source.data)
    return Text(block.text)


def _return(block: rules.Block) -> ToolReturn:
    said = block.content or ""
    content = said if isinstance(said, str) else tuple(_shown(one) for one in said)
    return ToolReturn(block.tool_use_id, block.name, "error" if block.is_error else "success", content)


def _choice(choice: rules.Choice) -> ToolChoice:
    match choice.type:
        case "tool":
            return NamedTool(choice.name or "")
        case "any":
            return "required"
        case "auto" | "none":
            return choice.type


def _response_format(asked: rules.Body, system: list[str]) -> dict[str, Any] | None:
    if asked.output_config.format is not None:
        return {"type": "json_schema", "json_schema": {"schema": asked.output_config.format.schema}}
    # The offline model does not read its instructions; a real one would.
    return {"type": "json_object"} if JSON_ONLY in system else None

"""Amazon's Converse API, as `FakeVendor` speaks it: replies are frames of bytes, not lines of text."""

from __future__ import annotations

import base64
import os
import re
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from zlib import crc32

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
    RedactedReasoning,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)
from holdfast.core.usage import Usage
from holdfast.llm.base import ModelRequest, NamedTool, ToolChoice, ToolSchema
from tests.llm.fakes import bedrock_rules as rules
from tests.llm.fakes.script import Failure, FailureKind

MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
_PATH = re.compile(r"/model/([^/]+)/converse-stream")
# Status, the name of the error, and what the message begins with.
_REFUSALS: dict[FailureKind, tuple[int, str, str]] = {
    "rate_limit": (429, "ThrottlingException", "Too many tokens, please wait before trying again. "),
    "auth": (403, "UnrecognizedClientException", "The security token included in the request is invalid. "),
    "quota": (402, "PaymentRequiredException", "insufficient funds: "),
    "overflow": (400, "ValidationException", "Input is too long for requested model. "),
    "overloaded": (503, "ServiceUnavailableException", ""),
    "server": (500, "InternalServerException", ""),
    "bad_request": (400, "ValidationException", ""),
    "timeout": (408, "ModelTimeoutException", ""),
    "permission": (403, "AccessDeniedException", ""),
    "not_found": (404, "ResourceNotFoundException", ""),
}
_FINISHES: dict[FinishReason, str] = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class BedrockProtocol:
    name = "bedrock"

    def __init__(self) -> None:
        self._thought: dict[str, str] = {}  # by signature, what was thought under it

    def answers(self, method: str, path: str) -> bool:
        return method == "POST" and _PATH.fullmatch(path) is not None

    def listing(self, path: str) -> bytes | None:
        return None

    def complaint(self, path: str, body: dict[str, object]) -> str | None:
        return rules.complaint(body, self._is_genuine)

    def decode(self, path: str, body: dict[str, object]) -> ModelRequest:
        asked = rules.read(body)
        found = _PATH.fullmatch(path)
        assert found is not None
        handle = f"bedrock/{unquote(found[1])}"
        return ModelRequest(
            handle=handle,
            system="\n".join(block.text or "" for block in asked.system),
            turns=tuple(turn for message in asked.messages for turn in _turns(message, asked.messages, handle)),
            tools=tuple(ToolSchema(one.name, one.description, one.input_schema.json) for one in asked.specs),
            tool_choice=_choice(asked),
            parallel_tool_calls=True,  # there is no way to ask for less
            max_output_tokens=asked.inference_config.max_tokens,
            temperature=asked.inference_config.temperature,
            response_format=_response_format(asked),
        )

    def rendering(self, path: str, body: dict[str, object]) -> BedrockRendering:
        return BedrockRendering(self._thought)

    def refusal(self, failure: Failure) -> tuple[int, bytes]:
        status, name, opening = _REFUSALS[failure.kind]
        return status, msgspec.json.encode({"__type": name, "message": opening + failure.message})

    def _is_genuine(self, said: rules.ReasoningContent) -> bool:
        if said.reasoning_text is None:
            return bool(said.redacted_content)
        signature = said.reasoning_text.signature
        # A signature from elsewhere proves nothing either way; one from here must be with what it was given to.
        return (
            bool(signature) and self._thought.get(signature or "", said.reasoning_text.text) == said.reasoning_text.text
        )


class BedrockRendering:
    """Blocks are numbered in the order in which they begin; only those of calls have a beginning of their own. What is
    thought is always signed."""

    def __init__(self, thought: dict[str, str]) -> None:
        self._thought = thought
        self._index = -1
        self._open: str | int | None = None  # the kind of block that is being said, or the number of the call
        self._said = ""
        self._is_signed = False
        self._usage: Usage | None = None
        self._finish: FinishReason | None = None

    def begin(self) -> list[bytes]:
        return [frame("messageStart", {"role": "assistant"})]

    def delta(self, delta: Delta) -> list[bytes]:
        match delta:
            case TextDelta(text):
                return [*self._opened("text"), self._block_delta({"text": text})]
            case ReasoningDelta(text, signature):
                return [*self._opened("reasoning"), *self._reasoned(text, signature)]
            case OmittedDelta(signature):
                return [*self._opened("omitted"), *self._reasoned("", signature)]
            case RedactedDelta(data):
                secret = {"redactedContent": base64.b64encode(data.encode()).decode()}
                return [*self._opened("redacted"), self._block_delta({"reasoningContent": secret})]
            case CallDelta():
                begun = [] if self._open == delta.index else [*self._opened(delta.index), self._begun(delta)]
                more = [self._block_delta({"toolUse": {"input": delta.arguments}})] if delta.arguments else []
                return [*begun, *more]
            case UsageDelta(usage):
                self._usage = usage
            case Finish(reason):
                self._finish = reason
        return []

    def end(self) -> list[bytes]:
        events = self._opened(None)
        if self._finish is None:
            return events
        events.append(frame("messageStop", {"stopReason": _FINISHES[self._finish]}))
        told = {} if self._usage is None else {"usage": _counts(self._usage)}
        return [*events, frame("metadata", {**told, "metrics": {"latencyMs": 1}})]

    def failure(self, failure: Failure) -> list[bytes]:
        _, name, opening = _REFUSALS[failure.kind]
        name = name[0].lower() + name[1:]
        said = {"message": opening + failure.message}
        return [frame(name, said, {":exception-type": name, ":message-type": "exception"})]

    def noise(self) -> list[bytes]:
        return [frame("novelty", {"of": ["a shape that nobody expects"]})]

    def _opened(self, kind: str | int | None) -> list[bytes]:
        if self._open == kind:
            return []
        unsigned = self._open == "reasoning" and not self._is_signed
        closed = list(self._reasoned("", f"signed-{os.urandom(12).hex()}")) if unsigned else []
        closed += [] if self._open is None else [frame("contentBlockStop", {"contentBlockIndex": self._index})]
        self._open, self._said, self._is_signed = kind, "", False
        self._index += 1 if kind is not None else 0
        return closed

    def _begun(self, call: CallDelta) -> bytes:
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        return frame("contentBlockStart", {"contentBlockIndex": self._index, "start": start})

    def _reasoned(self, text: str, signature: str | None) -> Iterator[bytes]:
        self._said += text
        if text:
            yield self._block_delta({"reasoningContent": {"text": text}})
        if signature is not None:
            self._thought[signature] = self._said
            self._is_signed = True
            yield self._block_delta({"reasoningContent": {"signature": signature}})

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        return frame("contentBlockDelta", {"contentBlockIndex": self._index, "delta": delta, "p": "abc"})


def frame(name: str, said: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
    """Lengths, their sum, headers, payload, and the sum of it all."""
    headers = headers or {":event-type": name, ":message-type": "event"}
    headers = headers | {":content-type": "application/json"}
    head = b"".join(_header(key.encode(), value.encode()) for key, value in headers.items())
    payload = msgspec.json.encode(said)
    lengths = struct.pack("!II", 12 + len(head) + len(payload) + 4, len(head))
    body = lengths + struct.pack("!I", crc32(lengths)) + head + payload
    return body + struct.pack("!I", crc32(body))


def _header(name: bytes, value: bytes) -> bytes:
    return struct.pack("!B", len(name)) + name + struct.pack("!BH", 7, len(value)) + value


def _counts(usage: Usage) -> dict[str, int]:
    """What was read from a cache, or written to one, is counted beside the input."""
    cached, written = usage.cached_input_tokens, usage.cache_write_tokens
    told = {
        "inputTokens": usage.prompt_tokens - (cached or 0) - (written or 0),
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
        "cacheReadInputTokens": cached,
        "cacheWriteInputTokens": written,
    }
    return {name: value for name, value in told.items() if value is not None}


def _turns(message: rules.Message, messages: list[rules.Message], handle: str) -> Iterator[Turn]:
    if message.role == "assistant":
        yield Turn("assistant", tuple(_said(message)), handle)
        return
    names = {call.tool_use_id: call.name for one in messages for call in one.calls}
    if message.returns:
        yield Turn("tool", tuple(_return(one, names) for one in message.returns))
    if asked := tuple(_asked(message)):
        yield Turn("user", asked)


def _said(message: rules.Message) -> Iterator[AnyPart]:
    for block in message.content:
        if block.text is not None:
            yield Text(block.text)
        elif block.tool_use is not None:
            call = block.tool_use
            yield ToolCall(call.tool_use_id, call.name, msgspec.json.encode(call.input).decode())
        elif block.reasoning_content is not None:
            yield _reasoning(block.reasoning_content)


def _reasoning(said: rules.ReasoningContent) -> AnyPart:
    if said.reasoning_text is None:
        return RedactedReasoning(base64.b64decode(said.redacted_content or "").decode())
    text, signature = said.reasoning_text.text, said.reasoning_text.signature
    return Reasoning(text, signature) if text else OmittedReasoning(signature)


def _asked(message: rules.Message) -> Iterator[AnyPart]:
    for block in message.content:
        if block.text is not None:
            yield Text(block.text)
        elif block.image is not None:
            yield _image(block.image)


def _image(image: rules.Image) -> Image:
    return Image(f"image/{image.format}", image.source.bytes)


def _return(said: rules.ToolResult, names: dict[str, str]) -> ToolReturn:
    parts = tuple(_image(one.image) if one.image is not None else Text(one.text or "") for one in said.content)
    texts = [part.text for part in parts if isinstance(part, Text)]
    content: Content = parts if len(texts) < len(parts) else "".join(texts)
    return ToolReturn(said.tool_use_id, names.get(said.tool_use_id, ""), said.status, content)


def _choice(asked: rules.Body) -> ToolChoice:
    choice = asked.tool_config.tool_choice if asked.tool_config else None
    if choice is None:
        return "auto" if asked.tool_config else "none"
    if choice.tool is not None:
        return NamedTool(choice.tool.name)
    return "required" if choice.any is not None else "auto"


def _response_format(asked: rules.Body) -> dict[str, Any] | None:
    if asked.output_config is None:
        return None
    schema = asked.output_config["textFormat"]["structure"]["jsonSchema"]["schema"]
    return {"type": "json_schema", "json_schema": {"schema": msgspec.json.decode(schema)}}

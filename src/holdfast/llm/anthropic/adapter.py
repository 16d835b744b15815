"""Claude, and whatever else speaks the Messages API: a request out, deltas in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

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
from holdfast.errors import BadReply, ModelError, Refused
from holdfast.llm import failures
from holdfast.llm.anthropic.payload import betas, messages_payload
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.broken_json import NOT_JSON, repaired
from holdfast.llm.endpoint import Endpoint, headers_of
from holdfast.llm.http import Http, shown, without_key
from holdfast.llm.tool_calls import CallIds, own_name, own_names

PATH: Final = "/v1/messages"
# `pause_turn` comes only from tools that the vendor runs, which are never offered: nothing is left to continue.
_FINISHES: Final[dict[str, FinishReason]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_NOTHING: Final = msgspec.Raw(b"{}")
_KNOWN: Final = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)


class AnthropicModel:
    def __init__(self, endpoint: Endpoint, http: Http, info: ModelInfo) -> None:
        self._endpoint = endpoint
        self._http = http
        self._info = info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        payload = self.payload(request)
        reply = _Reply(self._endpoint, CallIds(request), own_names(request.tools))
        body, headers = msgspec.json.encode(payload), self._headers(payload)
        sent = self._http.events(self._endpoint, PATH, body, headers, is_last=lambda _: reply.is_finished)
        async with aclosing(sent) as groups:
            async for group in groups:
                for name, data in group:
                    for delta in reply.read(name, data):
                        yield delta
        for delta in reply.close():
            yield delta

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return messages_payload(request, self._info)

    def _headers(self, payload: dict[str, Any]) -> dict[str, str]:
        headers = headers_of(self._endpoint)
        if named := betas(self._endpoint, self._info, payload):
            headers["anthropic-beta"] = ",".join(named)
        return headers


class _Details(msgspec.Struct):
    thinking_tokens: int | None = None


class _Counts(msgspec.Struct):
    """Each figure replaces the one before it: they are told more than once, and grow."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _Details | None = None


class _Started(msgspec.Struct):
    usage: _Counts | None = None


class _Stopped(msgspec.Struct):
    category: str | None = None
    explanation: str | None = None


class _Piece(msgspec.Struct):
    """The `delta` of a block and that of a message in one, since both go by the same key."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_details: _Stopped | None = None


class _Event(msgspec.Struct):
    type: str
    index: int | None = None
    delta: _Piece | None = None
    usage: _Counts | None = None
    message: _Started | None = None
    content_block: msgspec.Raw = _NOTHING  # of many kinds, most of which are not ours


class _Kind(msgspec.Struct):
    type: str | None = None


class _TextBlock(msgspec.Struct):
    text: str | None = None


class _RedactedBlock(msgspec.Struct):
    data: str


class _CallBlock(msgspec.Struct):
    name: str
    id: str | None = None
    input: msgspec.Raw = _NOTHING


class _ThinkingBlock(msgspec.Struct):
    thinking: str | None = None
    signature: str | None = None


class _OpenCall:
    def __init__(self, index: int, given: msgspec.Raw) -> None:
        self.index = index
        self.given = given  # the whole input, which the vendor itself leaves empty here
        self.is_said = False


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode


class _Reply:
    """One reply as its events come in."""

    def __init__(self, endpoint: Endpoint, call_ids: CallIds, names: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._vendor = endpoint.provider_name
        self._call_ids = call_ids
        self._names = names  # of tools that the vendor knows by another one
        self._open: dict[int, _OpenCall | _ThinkingBlock] = {}
        self._calls = 0
        self._counts = _Counts()
        self._stop_reason: str | None = None
        self._stopped: _Stopped | None = None
        self.is_finished = False  # the vendor has said its last word

    def read(self, name: bytes, data: bytes) -> Sequence[Delta]:
        if self.is_finished or not data:
            return ()
        if name == b"error":
            raise self._failure(data)
        event = self._event(data)
        if event is None:
            return ()
        index = event.index or 0
        match event.type:
            case "content_block_delta":
                return self._piece(index, event.delta) if event.delta else ()
            case "content_block_start":
                return [*self._end(index), *self._begin(index, event.content_block)]
            case "content_block_stop":
                return self._end(index)
            case "message_start":
                self._count(event.message.usage if event.message else None)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    return self._stop(event.delta)
            case "message_stop":
                return self._finish()
            case "error":
                raise self._failure(data)
            case _:
                pass  # `ping`, and what the vendor will think of next
        return ()

    def close(self) -> Sequence[Delta]:
        """The stream has ended. If the vendor has not said why it stopped, the reply was cut off and has no finish."""
        if self.is_finished:
            return ()
        if self._stop_reason is not None:
            return self._finish()
        return (UsageDelta(usage),) if (usage := self._usage()) else ()

    def _event(self, data: bytes) -> _Event | None:
        try:
            return _decode_event(data)
        except NOT_JSON:
            return self._repaired(data)

    def _repaired(self, data: bytes) -> _Event | None:
        try:
            return repaired(_decode_event, data)
        except msgspec.ValidationError as error:
            if _kind(data) in _KNOWN:
                raise BadReply(f"{self._vendor} sent an event that cannot be understood: {error}") from error
            return None
        except msgspec.DecodeError as error:
            raise BadReply(f"{self._vendor} sent an event that is not JSON: {shown(self._endpoint, data)}") from error

    def _failure(self, data: bytes) -> ModelError:
        kinds, text = failures.described(without_key(self._endpoint, data))
        return failures.failure(self._vendor, kinds, text)

    def _piece(self, index: int, piece: _Piece) -> Sequence[Delta]:
        if piece.type == "text_delta":
            return (TextDelta(piece.text),) if piece.text else ()
        block = self._open.get(index)
        if isinstance(block, _ThinkingBlock):
            block.signature = (block.signature or "") + (piece.signature or "")
            if piece.thinking:
                block.thinking = piece.thinking  # only whether there was any will matter
                return (ReasoningDelta(piece.thinking),)
        elif block is not None and piece.partial_json:
            block.is_said = True
            return (CallDelta(block.index, arguments=piece.partial_json),)
        return ()

    def _begin(self, index: int, block: msgspec.Raw) -> Sequence[Delta]:
        try:
            match _decode_kind(block).type:
                case "text":
                    text = msgspec.json.decode(block, type=_TextBlock).text
                    return (TextDelta(text),) if text else ()
                case "thinking":
                    thinking = self._open[index] = msgspec.json.decode(block, type=_ThinkingBlock)
                    return (ReasoningDelta(thinking.thinking),) if thinking.thinking else ()
                case "redacted_thinking":
                    return (RedactedDelta(msgspec.json.decode(block, type=_RedactedBlock).data),)
                case "tool_use":
                    return self._begin_call(index, msgspec.json.decode(block, type=_CallBlock))
                case _:
                    return ()  # what the vendor's own tools do
        except NOT_JSON as error:
            raise BadReply(f"{self._vendor} began a block that cannot be understood: {error}") from error

    def _begin_call(self, index: int, block: _CallBlock) -> Sequence[Delta]:
        given = block.input if bytes(block.input) != b"null" else _NOTHING
        call = self._open[index] = _OpenCall(self._calls, given)
        self._calls += 1
        return (CallDelta(call.index, self._call_ids.own(block.id), own_name(block.name, self._names)),)

    def _end(self, index: int) -> Sequence[Delta]:
        block = self._open.pop(index, None)
        if isinstance(block, _OpenCall) and not block.is_said:
            return (CallDelta(block.index, arguments=bytes(block.given).decode(errors="replace")),)
        if isinstance(block, _ThinkingBlock) and block.signature:
            # The signature alone is what the vendor keeps of thinking that it does not show.
            return (ReasoningDelta("", block.signature) if block.thinking else OmittedDelta(block.signature),)
        return ()

    def _stop(self, piece: _Piece) -> Sequence[Delta]:
        self._stop_reason = piece.stop_reason or self._stop_reason
        self._stopped = piece.stop_details or self._stopped
        usage = self._usage() if piece.stop_reason == "refusal" else None
        return (UsageDelta(usage),) if usage else ()

    def _finish(self) -> Sequence[Delta]:
        self.is_finished = True
        if self._stop_reason == "refusal":
            raise Refused(f"{self._vendor} declined to answer{self._why()}.")
        deltas = [delta for index in list(self._open) for delta in self._end(index)]
        if usage := self._usage():
            deltas.append(UsageDelta(usage))
        if self._stop_reason is not None:
            deltas.append(Finish(_FINISHES.get(self._stop_reason, "stop")))
        return deltas

    def _why(self) -> str:
        reason = self._stopped and (self._stopped.explanation or self._stopped.category)
        return f": {reason.rstrip('.')}" if reason else ""

    def _count(self, counts: _Counts | None) -> None:
        if counts is None:
            return
        for name in _Counts.__struct_fields__:
            if (figure := getattr(counts, name)) is not None:
                setattr(self._counts, name, figure)

    def _usage(self) -> Usage | None:
        """The vendor counts what it read from its cache, and wrote to it, beside the rest of the prompt."""
        counts = self._counts
        if counts.input_tokens is None and counts.output_tokens is None:
            return None
        read, written = counts.cache_read_input_tokens, counts.cache_creation_input_tokens
        return Usage(
            (counts.input_tokens or 0) + (read or 0) + (written or 0),
            counts.output_tokens or 0,
            read,
            written,
            counts.output_tokens_details.thinking_tokens if counts.output_tokens_details else None,
        )


def _kind(data: bytes) -> str | None:
    try:
        return _decode_kind(data).type
    except msgspec.ValidationError:
        return None  # not even an object that names its kind

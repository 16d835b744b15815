"""The chat completions API: OpenAI, Azure, and everyone who speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from holdfast.core.deltas import (
    Delta,
    Finish,
    FinishReason,
    ReasoningDelta,
    RedactedDelta,
    TextDelta,
    UsageDelta,
)
from holdfast.errors import BadReply, ModelUnavailable, Overloaded, Refused
from holdfast.llm import failures
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.broken_json import NOT_JSON, repaired
from holdfast.llm.catalog.base_urls import is_official
from holdfast.llm.chat import chunks
from holdfast.llm.chat.calls import ChatCalls
from holdfast.llm.chat.chunks import CallFragment, Chunk, Content, Piece
from holdfast.llm.chat.dialects import Dialect, dialect_of
from holdfast.llm.chat.payload import chat_payload
from holdfast.llm.chat.think_tags import ThinkTags
from holdfast.llm.endpoint import Endpoint, headers_of, path_of
from holdfast.llm.http import Http, shown, without_key
from holdfast.llm.tool_calls import CallIds, own_names

_DONE: Final = b"[DONE]"
# Whatever is not named here is taken for `stop`: vendors have many words for an ordinary end.
_FINISHES: Final[dict[str, FinishReason]] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}


class ChatModel:
    def __init__(self, endpoint: Endpoint, http: Http, info: ModelInfo) -> None:
        self._endpoint = endpoint
        self._http = http
        self._info = info
        self._dialect = dialect_of(
            endpoint.provider_type, official=is_official(endpoint.provider_type, endpoint.base_url)
        )
        self._path = path_of(endpoint, info.name, "chat/completions")
        self._headers = headers_of(endpoint)

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        payload = chat_payload(request, self._dialect, self._info)
        payload["stream"] = True
        if self._dialect.asks_for_usage:
            payload["stream_options"] = {"include_usage": True}
        return payload

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        body = msgspec.json.encode(self.payload(request))
        reply = ChatReply(self._endpoint, self._dialect, request)
        read = reply.read
        events = self._http.events(self._endpoint, self._path, body, self._headers, is_last=lambda _: reply.is_done)
        async with aclosing(events):
            async for group in events:
                for _, data in group:
                    for delta in read(data):
                        yield delta
        for delta in reply.end():
            yield delta


class ChatReply:
    """The events of one reply, read one by one."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, request: ModelRequest) -> None:
        self._endpoint = endpoint
        self._dialect = dialect
        self._calls = ChatCalls(CallIds(request), own_names(request.tools))
        self._tags = ThinkTags() if dialect.think_tags else None
        self._has_text = False
        self._finish: str | None = None
        self.is_done = False  # the vendor has said its last word

    def read(self, data: bytes) -> Sequence[Delta]:
        if data == _DONE or not data or self.is_done:
            self.is_done = self.is_done or bool(data)
            return ()
        try:
            chunk = chunks.decode(data)
        except NOT_JSON:
            chunk = self._repaired(data)
        if not chunk.choices or chunk.error is not None:
            return self._aside(chunk, data)
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason or self._finish
        deltas = self._content(choice.delta) if choice.delta is not None else []
        if chunk.usage is not None or chunk.x_groq is not None:
            deltas += _usage(chunk)
        return deltas

    def _aside(self, chunk: Chunk, data: bytes) -> list[Delta]:
        """An event that is no part of the reply itself."""
        if chunk.error is not None or chunk.message is not None:
            raise failures.in_stream(self._endpoint.provider_name, self._object(data))
        return _usage(chunk)

    def end(self) -> Sequence[Delta]:
        """What the reply ended with; no Finish when it was cut off. Raises when the vendor says that it failed.

        A filter that speaks up before anything was said, or in the middle of a call, refused the request. After some
        text it cut the reply short; what it let through is kept as the whole answer.
        """
        deltas = self._tags.rest() if self._tags is not None else []
        name, finish = self._endpoint.provider_name, self._finish
        if finish is None:
            finished = self.is_done and self._dialect.omits_finish
            return [*deltas, Finish("tool_calls" if self._calls.made else "stop")] if finished else deltas
        if finish == "content_filter" and (self._calls.made or not (self._has_text or deltas)):
            raise Refused(f"{name} withheld the reply: its content filter objected.")
        if finish == "insufficient_system_resource":
            raise Overloaded(f"Overloaded: {name} ran out of resources in the middle of a reply.")
        if finish in ("error", "abort"):
            raise ModelUnavailable(f"{name} broke off the reply: {finish}.")
        reason = _FINISHES.get(finish, "stop")
        return [*deltas, Finish("tool_calls" if self._calls.made and reason == "stop" else reason)]

    def _content(self, delta: Content) -> list[Delta]:
        deltas: list[Delta] = []
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            deltas = _reasoning(delta)
        if content := delta.content or delta.refusal:
            deltas += self._text(content) if isinstance(content, str) else self._pieces(content)
        if delta.tool_calls:
            deltas += self._calls.read(delta.tool_calls)
        elif delta.function_call is not None:
            deltas += self._calls.read([CallFragment(0, None, delta.function_call)])
        return deltas

    def _text(self, text: str) -> list[Delta]:
        self._has_text = True
        return [TextDelta(text)] if self._tags is None else self._tags.split(text)

    def _pieces(self, pieces: list[Piece]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if thought := chunks.thought_in(piece):
                deltas.append(ReasoningDelta(thought))
            elif piece.text:
                deltas += self._text(piece.text)
        return deltas

    def _repaired(self, data: bytes) -> Chunk:
        try:
            return repaired(chunks.decode, data)
        except msgspec.DecodeError as error:
            vendor, beginning = self._endpoint.provider_name, shown(self._endpoint, data)
            raise BadReply(f"{vendor} sent an event that cannot be read ({error}): {beginning}") from error

    def _object(self, data: bytes) -> dict[str, Any]:
        return msgspec.json.decode(without_key(self._endpoint, data), type=dict[str, Any])


def _reasoning(delta: Content) -> list[Delta]:
    """OpenRouter tells the same again in details: what has a signature or is in cipher is kept whole, to be sent back
    as it came."""
    plain = delta.reasoning_content or delta.reasoning
    if not delta.reasoning_details:
        return [ReasoningDelta(plain)] if plain else []
    deltas: list[Delta] = []
    has_text = False
    for detail in delta.reasoning_details:
        text: str = detail.get("text") or detail.get("summary") or ""
        has_text = has_text or bool(text)
        if detail.get("type") == "reasoning.encrypted":
            deltas.append(RedactedDelta(msgspec.json.encode(detail).decode()))
        elif detail.get("signature"):
            rest = {key: value for key, value in detail.items() if key != "text" and value is not None}
            deltas.append(ReasoningDelta(text, msgspec.json.encode(rest).decode()))
        elif text:
            deltas.append(ReasoningDelta(text))
    return deltas if has_text or not plain else [ReasoningDelta(plain), *deltas]


def _usage(chunk: Chunk) -> list[Delta]:
    usage = chunk.usage or (chunk.x_groq.usage if chunk.x_groq else None)
    return [UsageDelta(chunks.usage_of(usage))] if usage is not None else []

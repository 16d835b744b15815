"""The chat completions API: OpenAI, Azure, and everyone who speaks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.core.deltas import Delta
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.chat.dialects import dialect_of
from holdfast.llm.chat.payload import chat_payload
from holdfast.llm.chat.reply import ChatReply
from holdfast.llm.endpoint import Endpoint, headers_of, is_official, path_of
from holdfast.llm.http import Http


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

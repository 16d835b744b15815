"""Claude, and whatever else speaks the Messages API: a request out, deltas in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from holdfast.core.deltas import Delta
from holdfast.llm.anthropic.payload import betas, messages_payload
from holdfast.llm.anthropic.reply import ReplyReader
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.endpoint import Endpoint, headers_of
from holdfast.llm.http import Http
from holdfast.llm.tool_calls import CallIds, own_names

PATH: Final = "/v1/messages"


class AnthropicModel:
    def __init__(self, endpoint: Endpoint, http: Http, info: ModelInfo) -> None:
        self._endpoint = endpoint
        self._http = http
        self._info = info

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        payload = self.payload(request)
        reply = ReplyReader(self._endpoint, CallIds(request), own_names(request.tools))
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

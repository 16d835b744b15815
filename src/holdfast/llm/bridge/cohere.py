"""Cohere. Its SDK takes only the older HTTP client, which is made to send through ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import httpx
import httpx2
from cohere import AsyncClientV2
from pydantic_ai.models.cohere import CohereModel, CohereModelSettings
from pydantic_ai.providers.cohere import CohereProvider

from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint, without_version

_EVENTS: Final = frozenset(
    {"message-start", "content-delta", "tool-plan-delta", "tool-call-start", "tool-call-delta", "message-end"}
)
# Set by the older client; ours sets how an answer may be packed, and how long the request is.
_OWN_HEADERS: Final = frozenset({"accept-encoding", "connection", "content-length", "host"})


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    sdk = AsyncClientV2(
        api_key=endpoint.api_key or "none",
        base_url=without_version(endpoint.base_url),  # it appends the version itself
        httpx_client=httpx.AsyncClient(transport=_ThroughOurClient(client), trust_env=False, timeout=None),
    )
    model = CohereModel(info.name, provider=CohereProvider(cohere_client=sdk))
    return Vendor(
        model=model,
        settings=_settings,
        wants=_is_event,
        reworded=_with_the_plan_as_thought,
        sees=False,
        returns_images=False,
        takes_blanks=False,
    )


class _ThroughOurClient(httpx.AsyncBaseTransport):
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN_HEADERS}
        sent = self._client.build_request(
            request.method, str(request.url), headers=headers, content=await request.aread()
        )
        answer = await self._client.send(sent, stream=True)
        return httpx.Response(answer.status_code, headers=dict(answer.headers), stream=_Body(answer))


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._answer.aiter_raw():
            yield chunk

    async def aclose(self) -> None:
        await self._answer.aclose()


def _settings(request: ModelRequest) -> CohereModelSettings:
    settings = CohereModelSettings(max_retries=0)
    settings.update(cast("CohereModelSettings", common_settings(request, parallel=False)))
    return settings


def _with_the_plan_as_thought(event: dict[str, Any]) -> dict[str, Any]:
    """What the model means to do with its tools, which the library passes over."""
    if event.get("type") != "tool-plan-delta":
        return event
    delta: dict[str, Any] = event.get("delta") or {}
    message: dict[str, Any] = delta.get("message") or {}
    content: dict[str, Any] = {"thinking": message.get("tool_plan") or ""}
    return {"type": "content-delta", "index": event.get("index") or 0, "delta": {"message": {"content": content}}}


def _is_event(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _EVENTS

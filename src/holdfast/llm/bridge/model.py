"""A model asked through pydantic-ai: one request out, one stream of deltas in."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Final, Protocol, cast

import httpx2
import msgspec
from pydantic_ai.models import StreamedResponse

from holdfast.core.deltas import Delta
from holdfast.errors import ModelError, Rejected
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.errors import named_failures
from holdfast.llm.bridge.messages import messages, parameters, with_called_tools
from holdfast.llm.bridge.replies import Translation
from holdfast.llm.bridge.response_tap import CURRENT_TAP, ResponseTap, open_client
from holdfast.llm.bridge.vendor import Vendor
from holdfast.llm.endpoint import Endpoint
from holdfast.netguard import Guard

# By the type of the provider, the module that knows its vendor. Each imports an SDK, so each is loaded when needed.
MODULES: Final = {
    "openai": "openai",
    "google_ai": "google",
    "google_vertex": "google",
    "bedrock": "bedrock",
    "cohere": "cohere",
}


class _Module(Protocol):
    def open_vendor(self, endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor: ...


class Bridge:
    def __init__(
        self, endpoint: Endpoint, info: ModelInfo, *, first_byte_s: float, total_s: float, guard: Guard | None = None
    ) -> None:
        self._endpoint = endpoint
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        module = _vendor_module(endpoint.provider_type)
        self._client = open_client(endpoint, first_byte_s=first_byte_s, total_s=total_s, guard=guard)
        with named_failures(endpoint, first_byte_s):  # the library knows of models that it cannot reach
            vendor = module.open_vendor(endpoint, info, self._client)
        self._vendor = msgspec.structs.replace(vendor, sees=vendor.sees and info.abilities.images)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        vendor = self._vendor
        tap, translation = (
            vendor.tap(self._endpoint, vendor.wants, vendor.reworded),
            Translation(request, vendor),
        )
        deadline = asyncio.get_running_loop().time() + self._total_s
        async with AsyncExitStack() as stack:
            stack.push_async_callback(tap.hang_up)
            streamed = await self._ask(request, tap, stack)
            events = aiter(streamed)
            while True:
                try:
                    with named_failures(self._endpoint, self._total_s, vendor.errors):
                        async with asyncio.timeout_at(deadline):
                            event = await anext(events)
                except StopAsyncIteration:
                    break
                for delta in translation.deltas(event):
                    yield delta
            for delta in translation.end(streamed, tap.figures):
                yield delta

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _ask(self, request: ModelRequest, tap: ResponseTap, stack: AsyncExitStack) -> StreamedResponse:
        request = with_called_tools(request, self._vendor)
        try:
            return await self._ask_once(request, tap, stack)
        except ModelError as refusal:
            if not self._vendor.concedes(refusal):
                raise
        return await self._ask_once(request, tap, stack)

    async def _ask_once(self, request: ModelRequest, tap: ResponseTap, stack: AsyncExitStack) -> StreamedResponse:
        params = parameters(request, self._vendor)
        history, settings = messages(request, self._vendor), self._vendor.settings(request)
        with named_failures(self._endpoint, self._first_byte_s, self._vendor.errors):
            asking = self._vendor.model.request_stream(history, settings, params)
            token = CURRENT_TAP.set(tap)
            try:
                async with asyncio.timeout(self._first_byte_s):
                    return await stack.enter_async_context(asking)
            finally:
                CURRENT_TAP.reset(token)


def _vendor_module(provider_type: str) -> _Module:
    if provider_type not in MODULES:
        raise Rejected(f"There is no way to talk to providers of the type {provider_type!r}.")
    try:
        return cast("_Module", importlib.import_module(f"holdfast.llm.bridge.{MODULES[provider_type]}"))
    except ImportError as missing:
        raise Rejected(
            f"Models of {provider_type} need an SDK that is not installed: pip install 'holdfast[vendors]'"
        ) from missing

"""Vendors for which we have no adapter of our own: OpenAI Responses, Gemini, Bedrock, Cohere.

pydantic-ai and the SDKs below it take seconds to import, so nothing of them is loaded until such a model is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from holdfast.core.deltas import Delta
from holdfast.errors import Rejected
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.chat.payload import chat_payload
from holdfast.llm.endpoint import Endpoint
from holdfast.netguard import Guard

if TYPE_CHECKING:
    from holdfast.llm.bridge.model import Bridge


class BridgedModel:
    """Has connections of its own, so it must be closed. `guard`, if there is one, judges each of them."""

    def __init__(
        self, endpoint: Endpoint, info: ModelInfo, *, first_byte_s: float, total_s: float, guard: Guard | None = None
    ) -> None:
        self._guard = guard
        self._endpoint = endpoint
        self._info = info
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        self._opening = asyncio.Lock()
        self._bridge: Bridge | None = None
        self._replies = 0  # that are being read
        self._retired = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        self._replies += 1
        try:
            async with aclosing((await self._opened()).stream(request)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._replies -= 1
            if self._retired:
                await self._close_if_unused()

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        """The neutral chat form: what the library makes of it is known only once it is sent."""
        return chat_payload(request, info=self._info)

    async def retire(self) -> None:
        """Close it when the last reply has been read. Whoever found it before may still ask it, and closes it again."""
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if not self._replies:
            await self.aclose()

    async def aclose(self) -> None:
        if self._bridge is not None:
            bridge, self._bridge = self._bridge, None
            await bridge.aclose()

    async def _opened(self) -> Bridge:
        async with self._opening:
            if self._bridge is None:
                # In a thread: other runs must not stand still while it is loaded.
                self._bridge = await asyncio.to_thread(self._open)
            return self._bridge

    def _open(self) -> Bridge:
        try:
            from holdfast.llm.bridge import model  # noqa: PLC0415
        except ImportError as missing:
            raise Rejected(
                f"Models of {self._endpoint.provider_type} need pydantic-ai, which is not installed: "
                "pip install 'holdfast[vendors]'"
            ) from missing
        return model.Bridge(
            self._endpoint, self._info, first_byte_s=self._first_byte_s, total_s=self._total_s, guard=self._guard
        )

"""A connection to an MCP server as a response: each of its events as it happens, with signs of life between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse

_encode = msgspec.json.Encoder().encode


class McpEvents(StreamingResponse):
    def __init__(self, events: AsyncGenerator[dict[str, Any]], *, keepalive_s: float) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_lines(events, keepalive_s), media_type="text/event-stream", headers=headers)


async def _lines(events: AsyncGenerator[dict[str, Any]], keepalive_s: float) -> AsyncGenerator[bytes]:
    following: asyncio.Task[dict[str, Any]] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(events))
            while not (await asyncio.wait([following], timeout=keepalive_s))[0]:
                yield b": still connecting\n\n"
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield b"data: " + _encode(event) + b"\n\n"
    finally:
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait([following])
        await events.aclose()

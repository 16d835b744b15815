"""A response that follows a run. The reader may come and go: it never slows or stops the run.

Three children: one writes what the run produces, one pings while nothing comes, one listens for the reader to leave.
Whichever of the first and the last ends first ends the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.api.errors import HANDED_OVER
from holdfast.core.frames import ErrorFrame
from holdfast.engine.streams import Numbered
from holdfast.errors import DatabaseError, HandedOver
from holdfast.wire.chat_completions import ChatChunks
from holdfast.wire.sse import DONE, FrameEncoder

_log = logging.getLogger(__name__)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(
        self,
        batches: AsyncGenerator[Sequence[Numbered]],
        encoder: FrameEncoder | ChatChunks,
        *,
        keepalive_s: float,
        include_pings: bool,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._batches = batches
        self._encoder = encoder
        self._keepalive_s = keepalive_s
        self._include_pings = include_pings
        self._last_seq = 0
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": HEADERS})
        children = [asyncio.create_task(self._write(send)), asyncio.create_task(reader_left(receive))]
        if self._include_pings:
            await self._send(send, self._encoder.ping())
            pinging = asyncio.create_task(self._ping(send))
        else:
            pinging = None
        try:
            done, _ = await asyncio.wait(children, return_when=asyncio.FIRST_COMPLETED)
            for child in done:
                child.result()
        finally:
            everyone = [*children, *([pinging] if pinging else [])]
            for child in everyone:
                child.cancel()
            await asyncio.wait(everyone)

    async def _write(self, send: Send) -> None:
        try:
            async for batch in self._batches:
                self._last_seq = batch[-1][0]
                shown = self._encoder.encode_all(batch)
                if shown:
                    await self._send(send, shown)
        except (HandedOver, DatabaseError) as error:
            # Half an answer must not look like a whole one. It takes no number: the run's own frames go on after it.
            _log.warning("a stream ends before its run: %s", error)
            await self._send(send, self._encoder.encode_all([(self._last_seq, ErrorFrame(HANDED_OVER))]))
        finally:
            await self._batches.aclose()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _ping(self, send: Send) -> None:
        while True:
            quiet_s = asyncio.get_running_loop().time() - self._sent_at
            if quiet_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - quiet_s)
            else:
                await self._send(send, self._encoder.ping(self._last_seq))

    async def _send(self, send: Send, body: bytes) -> None:
        self._sent_at = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def reader_left(receive: Receive) -> None:
    message: Any = await receive()
    while message["type"] != "http.disconnect":
        message = await receive()

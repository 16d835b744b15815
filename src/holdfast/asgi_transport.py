"""Carries httpx requests to an ASGI application in the same event loop, streaming in both directions.

httpx has such a transport of its own, which collects a whole body before it hands over the first byte; a stream of
tokens would arrive all at once, and nobody could cancel in the middle of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import httpx
from starlette.types import ASGIApp, Message, Scope

# Like a socket's buffer: a reader that falls behind makes its own writer wait, and nobody else.
_BUFFERED: Final = 64


class AsgiTransport(httpx.AsyncBaseTransport):
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(request)
        task = asyncio.create_task(self._serve(request, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(exchange.ended)
        try:
            status, headers = await exchange.started
        except asyncio.CancelledError:
            # Whoever asked has gone. As over a socket, the application is told, and may finish what it does.
            exchange.leave()
            raise
        return httpx.Response(status, headers=headers, stream=_Body(exchange))

    async def _serve(self, request: httpx.Request, exchange: _Exchange) -> None:
        await self._app(_scope(request), exchange.receive, exchange.send)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class _Exchange:
    """One request and its response: the application's `receive` and `send`, and what the reader sees of them."""

    def __init__(self, request: httpx.Request) -> None:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.started: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = asyncio.get_running_loop().create_future()
        self._request_body: AsyncIterator[bytes] | None = aiter(request.stream)
        self._response_body: asyncio.Queue[bytes | None] = asyncio.Queue(_BUFFERED)
        self._complete = False
        self._over = False
        self._cut: httpx.RemoteProtocolError | None = None
        self._left = asyncio.Event()

    async def receive(self) -> Message:
        if self._request_body is not None:
            try:
                return {"type": "http.request", "body": await anext(self._request_body), "more_body": True}
            except StopAsyncIteration:
                self._request_body = None
                return {"type": "http.request", "body": b"", "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.started.set_result((message["status"], list(message.get("headers", ()))))
        elif message["type"] == "http.response.body":
            if body := message.get("body", b""):
                await self._put(body)
            if not message.get("more_body", False):
                self._complete = True
                await self._put(None)

    def leave(self) -> None:
        """The reader is gone; a writer that waits for it must not wait for ever."""
        self._left.set()
        while not self._response_body.empty():
            self._response_body.get_nowait()

    def ended(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        self._over = True
        if not self.started.done():
            self.started.set_exception(failure or httpx.RemoteProtocolError("the application ended without an answer"))
            if self._left.is_set():
                self.started.exception()  # nobody else will look at it
        elif not self._complete:
            self._cut = httpx.RemoteProtocolError("the application ended in the middle of its answer")
            self._cut.__cause__ = failure
            if not self._response_body.full():
                self._response_body.put_nowait(None)

    async def body(self) -> AsyncGenerator[bytes]:
        while not (self._over and self._response_body.empty()):
            part = await self._response_body.get()
            if part is None:
                break
            yield part
        if self._cut is not None:
            raise self._cut

    async def _put(self, part: bytes | None) -> None:
        await self._response_body.put(part)
        if self._left.is_set():
            self.leave()


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._exchange.body()

    async def aclose(self) -> None:
        self._exchange.leave()


def _scope(request: httpx.Request) -> Scope:
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
    }
    return scope

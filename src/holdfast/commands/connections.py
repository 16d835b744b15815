"""What one connection may cost before anybody knows who it is: time, header bytes, and one of the open files.

One timer watches each connection; requests only note what is awaited and since when. A connection that is being
answered is left alone for as long as the answer takes, so streams may be silent.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from typing import Any, Final, Literal

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if sys.platform != "win32":
    import resource

    def _open_files() -> int:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _UNLIMITED if files == resource.RLIM_INFINITY else files
else:

    def _open_files() -> int:
        return _UNLIMITED


log = logging.getLogger(__name__)

MAX_HEADER_BYTES: Final = 64 * 1024  # the address included
MAX_HEADERS: Final = 200
_UNLIMITED: Final = 1_000_000
_LEAST_RESERVE: Final = 32  # of open files, for the database, models, tools and the log


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    header_timeout_s: float
    body_timeout_s: float
    max_connections: int
    max_per_peer: int | None = None


def most_connections() -> int:
    """So many that a quarter of the open files, and never fewer than a few, is left for everything else."""
    files = _open_files()
    return max(1, files - max(_LEAST_RESERVE, files // 4))


class Connections:
    """All that are open, and those of them that nobody is being answered on, longest unused first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.closing = False  # those that are used close with their next answer
        self._open = 0
        self._by_peer = Counter[str]()
        self._unused: dict[GuardedHttp, None] = {}

    def opened(self, connection: GuardedHttp, peer: str) -> str | None:
        """Why the connection is refused, if it is."""
        self._open += 1
        self._by_peer[peer] += 1
        if self.limits.max_per_peer is not None and self._by_peer[peer] > self.limits.max_per_peer:
            return f"More than {self.limits.max_per_peer} connections from {peer} are open: close some, then try again."
        if self._open > self.limits.max_connections and not self._make_room():
            return "All connections of this server are in use: try again later."
        self._unused[connection] = None
        return None

    def closed(self, connection: GuardedHttp, peer: str) -> None:
        self._open -= 1
        self._unused.pop(connection, None)
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]

    def used(self, connection: GuardedHttp) -> None:
        self._unused.pop(connection, None)

    def unused(self, connection: GuardedHttp) -> None:
        self._unused[connection] = None

    def _make_room(self) -> bool:
        oldest = next(iter(self._unused), None)
        if oldest is None:
            return False
        del self._unused[oldest]
        oldest.transport.abort()
        return True


class GuardedHttp(HttpToolsProtocol):
    def __init__(self, connections: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connections = connections
        self._limits = connections.limits
        self._peer = ""
        self._awaited: Literal["header", "body"] | None = "header"
        self._since = 0.0
        self._header_bytes = 0
        self._is_refused = False
        self._refusal = b""  # to be sent when the answer before it is complete
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._since = self.loop.time()
        if (why := self._connections.opened(self, self._peer)) is not None:
            log.warning("refused a connection from %s: %s", self._peer, why)
            self._refuse(503, why)
            return
        self._watch = self.loop.call_later(self._limits.header_timeout_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._connections.closed(self, self._peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._awaited == "header":
            self._header_bytes += len(data)
        super().data_received(data)
        if self._awaited == "header" and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, f"The header of the request is longer than {MAX_HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._awaited != "header":
            # The first header is awaited since the connection was made, any other since its first byte.
            self._awaited, self._since, self._header_bytes = "header", self.loop.time(), 0

    def on_headers_complete(self) -> None:
        if self._is_refused:
            return
        if self._header_bytes > MAX_HEADER_BYTES and self._header_size() > MAX_HEADER_BYTES:
            self._refuse(431, f"The header of the request is longer than {MAX_HEADER_BYTES} bytes.")
        elif len(self.headers) > MAX_HEADERS:
            self._refuse(431, f"The request has {len(self.headers)} headers; at most {MAX_HEADERS} are accepted.")
        else:
            self._awaited, self._since = "body", self.loop.time()
            self._connections.used(self)
            super().on_headers_complete()
            if self._connections.closing:
                self.cycle.keep_alive = False

    def _header_size(self) -> int:
        """Of what has come, the body may be part."""
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            self._since = self.loop.time()
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused:
            self._awaited = None
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal and not self._is_answering:
            self._send_refusal()
        if not self.transport.is_closing() and not self._is_answering:
            self._connections.unused(self)

    @property
    def _is_answering(self) -> bool:
        return bool(self.pipeline) or bool(self.cycle and not self.cycle.response_complete)

    def _look(self) -> None:
        """Ends the connection if what is awaited has not come in time, and otherwise looks again when it should."""
        now, retry_policy = self.loop.time(), self._limits.header_timeout_s
        if self._awaited == "header" and not self._is_answering:
            if now - self._since >= retry_policy:
                self._refuse(408, f"No whole request header came within {retry_policy:g} seconds.")
                return
        elif self._awaited == "body" and not self.flow.read_paused and not self.cycle.response_started:
            retry_policy = self._limits.body_timeout_s
            if now - self._since >= retry_policy:
                self._refuse(408, f"The body of the request stopped arriving for {retry_policy:g} seconds.")
                return
        else:
            self._since = now
        self._watch = self.loop.call_later(max(0.01, self._since + retry_policy - now), self._look)

    def _refuse(self, status: int, why: str) -> None:
        """Answers, closes, and reads no more. A request that came before on this connection is answered first."""
        self._is_refused = True
        body = msgspec.json.encode({"detail": why})
        again = b"retry-after: 1\r\n" if status == 503 else b""
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._refusal = STATUS_LINE[status] + again + head + body
        if self._awaited == "body" or not self._is_answering:
            self._send_refusal()

    def _send_refusal(self) -> None:
        self.transport.write(self._refusal)
        self.transport.close()

"""HTTP to MCP servers: where requests may go, how much may come back, and what went wrong on the way."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx2

from holdfast.guarded_httpx import GuardedTransport
from holdfast.ssrf_guard import Guard, NotPublic


def open_http(wire: Wire, headers: dict[str, str], auth: httpx2.Auth | None, connect_s: float) -> httpx2.AsyncClient:
    """How long a server may be silent is decided by the phase of the conversation. The environment's proxy has no part
    in it: it would look names up by itself."""
    timeout = httpx2.Timeout(connect_s, read=None)
    return httpx2.AsyncClient(transport=wire, headers=headers, auth=auth, timeout=timeout, trust_env=False)


class Wire(httpx2.AsyncBaseTransport):
    """The requests of one conversation. It remembers what went wrong: the SDK, which is told, does not always pass it
    on."""

    def __init__(self, guard: Guard, trusted: ssl.SSLContext, most_bytes: int) -> None:
        self._inner = GuardedTransport(guard, trusted, httpx2.Limits())
        self._most_bytes = most_bytes
        self.refusal: NotPublic | None = None
        self.problem: str | None = None
        self.wants_login = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except NotPublic as error:
            self.refusal = error
            raise
        except (httpx2.TransportError, OSError) as error:
            self.problem = str(error) or type(error).__name__
            raise
        self.wants_login = response.status_code == 401
        if response.status_code >= 500:
            self.problem = f"it answered {response.status_code} {response.reason_phrase}".strip()
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(response.stream, self, self._most_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, wire: Wire, most_bytes: int) -> None:
        self._inner = inner
        self._wire = wire
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > self._most_bytes:
                self._wire.problem = f"its answer is larger than {self._most_bytes} bytes"
                raise httpx2.ReadError(self._wire.problem)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()

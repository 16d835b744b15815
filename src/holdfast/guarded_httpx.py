"""An HTTP transport whose every connection is judged by the guard, for providers whose address a user wrote.

The name stays the name for TLS and in the Host header; only where the connection goes is decided here.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import Final, cast

import httpcore2
import httpx2

from holdfast.ssrf_guard import Guard

# How long an address may stay silent before the next one of the same name is tried.
_NEXT_ADDRESS_S: Final = 2.0


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """The library's own transport, but for the pool: only that knows how connections are made.

    The library's `__init__` is left out on purpose. Should the library keep its pool elsewhere one day, there is none,
    and every request fails: a pool that nobody judges is never used.
    """

    def __init__(self, guard: Guard, trusted: ssl.SSLContext, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=trusted,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Guarded(guard),
        )


class _Guarded(httpcore2.AsyncNetworkBackend):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        # Typed as what stands in for it where anyio is missing.
        self._network = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            *others, last = await self._guard.resolve(host, port)
        except socket.gaierror as error:
            raise httpcore2.ConnectError(str(error.strerror)) from error
        for address in others:
            within_s = _NEXT_ADDRESS_S if timeout is None else min(timeout, _NEXT_ADDRESS_S)
            try:
                return await self._network.connect_tcp(address, port, within_s, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

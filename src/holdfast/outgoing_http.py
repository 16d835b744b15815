"""Requests to addresses that somebody else wrote, made so that `netguard` judges every connection: images and webhooks.

Apart from `netguard` because aiohttp is slow to import, and most servers never make such a request: whoever needs this
module imports it when the need arises. Redirects are not followed unless they pass the guard anew. The environment's
proxy has no part in it: it would look names up by itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from holdfast.errors import Invalid
from holdfast.ssrf_guard import Guard, NotPublic, require_web_url

IMAGE_TIMEOUT_S: Final = 5.0
IMAGE_MAX_BYTES: Final = 20 * 1024 * 1024
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class Unreachable(Exception):
    """Nobody answered; another try may help."""


def guarded_connector(guard: Guard, **options: Any) -> aiohttp.TCPConnector:
    """Looks names up, checks every address, and connects to nothing else, each time that it connects."""
    gate = _Gate(guard)
    return aiohttp.TCPConnector(resolver=gate, socket_factory=gate.open_socket, use_dns_cache=False, **options)


def refused_by_guard(error: aiohttp.ClientError) -> NotPublic | None:
    """The guard's refusal, where that is why a connection was not made."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
    return cause if isinstance(cause, NotPublic) else None


async def post_json(url: str, body: bytes, allowed: Sequence[str], timeout_s: float) -> int:
    """The status of the answer. Raises Invalid for an address that may not be reached."""
    require_web_url(url)
    try:
        async with asyncio.timeout(timeout_s):
            headers = {"Content-Type": "application/json"}
            async with (
                guarded_session(Guard(tuple(allowed)), timeout_s) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status
    except TimeoutError as error:
        raise Unreachable(f"No answer within {timeout_s:g} seconds.") from error
    except aiohttp.ClientError as error:
        raise _judged(error) from error
    except OSError as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from error


def guarded_session(guard: Guard, timeout_s: float) -> aiohttp.ClientSession:
    """For one request, with `allow_redirects=False`: a redirect must be looked at before it is followed."""
    return aiohttp.ClientSession(
        connector=guarded_connector(guard, force_close=True),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        trust_env=False,
        auto_decompress=False,
    )


async def fetch_image(
    url: str, allowed: Sequence[str] = (), *, timeout_s: float = IMAGE_TIMEOUT_S, max_bytes: int = IMAGE_MAX_BYTES
) -> tuple[str, bytes]:
    """The media type that its server says, and its bytes. A lost connection or a busy server is tried once more."""
    try:
        return await _fetch(url, allowed, timeout_s, max_bytes)
    except _Transient:
        try:
            return await _fetch(url, allowed, timeout_s, max_bytes)
        except _Transient as error:
            raise Invalid(error.message) from error


class _Transient(Invalid):
    """Worth a second try."""


class _Gate(AbstractResolver):
    """Names are judged when they are looked up. Addresses, which nobody looks up, when their socket is made."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._by_name: set[str] = set()  # allowed only because the operator listed a name that leads there

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._guard.resolve(host, port)
        if self._guard.allows_name(host):
            self._by_name.update(address for address in addresses if not self._guard.allows(address))
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in addresses
        ]

    def open_socket(self, info: Any) -> socket.socket:
        """The last moment before a connection, with the address that it goes to."""
        family, kind, protocol, _, (address, *_) = info
        if address not in self._by_name and not self._guard.allows(address):
            raise NotPublic(address)
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        pass


def _judged(error: aiohttp.ClientError) -> Invalid | Unreachable:
    """What the client says, as what it means for whoever wrote the address."""
    refusal = refused_by_guard(error)
    if refusal is not None:
        return Invalid(str(refusal.strerror))
    if isinstance(error, aiohttp.InvalidURL):
        return Invalid(f"That is not a URL: {error}.")
    return Unreachable(f"{type(error).__name__}: {error}")


async def _fetch(url: str, allowed: Sequence[str], timeout_s: float, max_bytes: int) -> tuple[str, bytes]:
    guard = Guard(tuple(allowed))
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                require_web_url(url)
                found = await _get(url, guard, timeout_s, max_bytes)
                if isinstance(found, tuple):
                    return found
                url = _redirected(url, found)
    except TimeoutError as error:
        raise _Transient(f"The image at {url} did not arrive within {timeout_s:g} seconds.") from error
    except aiohttp.ClientError as error:
        judged = _judged(error)
        if isinstance(judged, Invalid):
            raise judged from error
        raise _Transient(f"The image at {url} could not be fetched: {error}") from error
    except OSError as error:
        raise _Transient(f"The image at {url} could not be fetched: {error}") from error
    raise Invalid(f"The image at {url} was redirected more than {MAX_REDIRECTS} times.")


def _redirected(url: str, location: str) -> str:
    """Where its server sends us. What it wrote may be anything; it is not repeated unless it can be."""
    try:
        location.encode()
        return urljoin(url, location)
    except ValueError as error:
        raise Invalid(f"The image at {url} was redirected to something that is not a URL.") from error


async def _get(url: str, guard: Guard, timeout_s: float, max_bytes: int) -> tuple[str, bytes] | str:
    """The image, or where to look for it instead."""
    async with (
        guarded_session(guard, timeout_s) as session,
        session.get(url, allow_redirects=False, headers={"accept-encoding": "identity"}) as answer,
    ):
        if answer.status in _REDIRECTS and (location := answer.headers.get("location")):
            return location
        if answer.status >= 500 or answer.status == 429:
            raise _Transient(f"The image at {url} could not be fetched: status {answer.status}.")
        if answer.status != 200:
            raise Invalid(f"The image at {url} could not be fetched: status {answer.status}.")
        if answer.content_type not in IMAGE_TYPES:
            raise Invalid(f"{url} is {answer.content_type}, not a PNG, JPEG, GIF or WebP image.")
        body = await _read_capped(answer, max_bytes)
    return answer.content_type, body


async def _read_capped(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.content.iter_chunked(65_536):
        size += len(chunk)
        if size > max_bytes:
            raise Invalid(f"The image at {answer.url} is larger than {max_bytes} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)

"""Which addresses the server may be sent to by a URL that somebody else wrote: webhooks and images.

A host is resolved once, every address is judged, and the caller connects to the very addresses that were judged, so
a name cannot point elsewhere between the check and the connection. Redirects are not followed unless they pass anew.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from holdfast.errors import Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

IMAGE_TIMEOUT_S: Final = 5.0
IMAGE_MAX_BYTES: Final = 20 * 1024 * 1024
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_REDIRECTS: Final = 3

# Public by its own look, but a gateway turns it into the IPv4 address in its last 32 bits.
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class Target(msgspec.Struct, frozen=True):
    """A URL that was judged, and the addresses it may be fetched from."""

    url: str
    host: str
    port: int
    addresses: tuple[str, ...]


async def check_url(url: str, allowed: Sequence[str] = ()) -> Target:
    """Raises Invalid unless the URL is http(s) and every address of its host is public or allow-listed."""
    parts = _split(url)
    host = (parts.hostname or "").rstrip(".").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = await _resolve(host, port)
    if host not in allowed:
        for address in addresses:
            if not _is_public(address) and not _is_listed(address, allowed):
                raise Invalid(
                    f"{url} leads to {address}, which is not a public address. "
                    f"If that is wanted, add {host} to HOLDFAST_ALLOWED_HOSTS."
                )
    return Target(url, host, port, tuple(str(address) for address in addresses))


def guarded_session(target: Target, timeout_s: float) -> aiohttp.ClientSession:
    """A session pinned to the judged addresses. Use it for the target's URL only, with `allow_redirects=False`."""
    connector = aiohttp.TCPConnector(resolver=_Pinned(target), use_dns_cache=False, force_close=True)
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False, auto_decompress=False
    )


async def fetch_image(
    url: str, allowed: Sequence[str] = (), *, timeout_s: float = IMAGE_TIMEOUT_S, max_bytes: int = IMAGE_MAX_BYTES
) -> tuple[str, str]:
    """The image's media type and its bytes in base64. A lost connection or a busy server is tried once more."""
    try:
        return await _fetch(url, allowed, timeout_s, max_bytes)
    except _Transient:
        try:
            return await _fetch(url, allowed, timeout_s, max_bytes)
        except _Transient as error:
            raise Invalid(error.message) from error


class _Transient(Invalid):
    """Worth a second try."""


class _Pinned(AbstractResolver):
    def __init__(self, target: Target) -> None:
        self._target = target

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host.rstrip(".").lower() != self._target.host:
            raise OSError(errno.EACCES, f"{host} was not checked")
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._target.addresses
        ]

    async def close(self) -> None:
        pass


async def _fetch(url: str, allowed: Sequence[str], timeout_s: float, max_bytes: int) -> tuple[str, str]:
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(MAX_REDIRECTS + 1):
                target = await check_url(url, allowed)
                found = await _get(target, timeout_s, max_bytes)
                if isinstance(found, tuple):
                    return found
                url = urljoin(url, found)
    except TimeoutError as error:
        raise _Transient(f"The image at {url} did not arrive within {timeout_s:g} seconds.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise _Transient(f"The image at {url} could not be fetched: {error}") from error
    raise Invalid(f"The image at {url} was redirected more than {MAX_REDIRECTS} times.")


async def _get(target: Target, timeout_s: float, max_bytes: int) -> tuple[str, str] | str:
    """The image, or where to look for it instead."""
    async with (
        guarded_session(target, timeout_s) as session,
        session.get(target.url, allow_redirects=False, headers={"accept-encoding": "identity"}) as answer,
    ):
        if answer.status in _REDIRECTS and (location := answer.headers.get("location")):
            return location
        if answer.status >= 500 or answer.status == 429:
            raise _Transient(f"The image at {target.url} could not be fetched: status {answer.status}.")
        if answer.status != 200:
            raise Invalid(f"The image at {target.url} could not be fetched: status {answer.status}.")
        if answer.content_type not in IMAGE_TYPES:
            raise Invalid(f"{target.url} is {answer.content_type}, not a PNG, JPEG, GIF or WebP image.")
        body = await _read_capped(answer, max_bytes)
    return answer.content_type, base64.b64encode(body).decode()


async def _read_capped(answer: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in answer.content.iter_chunked(65_536):
        size += len(chunk)
        if size > max_bytes:
            raise Invalid(f"The image at {answer.url} is larger than {max_bytes} bytes.")
        chunks.append(chunk)
    return b"".join(chunks)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise Invalid(f"{url!r} is not a URL: {error}.") from error
    if not usable:
        raise Invalid(f"{url!r} is not an http or https URL with a host.")
    if parts.username is not None or parts.password is not None:
        raise Invalid("A URL must not carry a user name or password.")
    return parts


async def _resolve(host: str, port: int) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Invalid(f"The host {host} could not be found: {error}") from error
    # A scope such as fe80::1%eth0 is dropped: link-local addresses are refused or listed without it.
    texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
    return [ipaddress.ip_address(text) for text in texts]


def _is_public(address: Address) -> bool:
    inner = _embedded_ipv4(address)
    if inner is not None:
        return _is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def _is_listed(address: Address, allowed: Sequence[str]) -> bool:
    """IPv4-mapped addresses are judged by the IPv4 address they stand for."""
    judged = _embedded_ipv4(address) or address
    for entry in allowed:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            continue  # a host name, compared elsewhere
        if judged.version == network.version and judged in network:
            return True
    return False

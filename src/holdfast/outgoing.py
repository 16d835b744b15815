"""Requests to addresses that somebody else wrote, once `netguard` has judged them: images and webhooks.

Apart from `netguard` because aiohttp is slow to import, and most servers never make such a request: whoever needs this
module imports it when the need arises. Redirects are not followed unless they pass the guard anew.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from holdfast.errors import Invalid
from holdfast.netguard import Target, check_url

IMAGE_TIMEOUT_S: Final = 5.0
IMAGE_MAX_BYTES: Final = 20 * 1024 * 1024
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class Unreachable(Exception):
    """Nobody answered; another try may help."""


async def post_json(url: str, body: bytes, allowed: Sequence[str], timeout_s: float) -> int:
    """The status of the answer. Raises Invalid for an address that may not be reached."""
    try:
        async with asyncio.timeout(timeout_s):
            target = await check_url(url, allowed)
            headers = {"content-type": "application/json"}
            async with (
                guarded_session(target, timeout_s) as session,
                session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status
    except TimeoutError as error:
        raise Unreachable(f"No answer within {timeout_s:g} seconds.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from error


def guarded_session(target: Target, timeout_s: float) -> aiohttp.ClientSession:
    """A session pinned to the judged addresses. Use it for the target's URL only, with `allow_redirects=False`."""
    connector = aiohttp.TCPConnector(resolver=_Pinned(target), use_dns_cache=False, force_close=True)
    return aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=timeout_s), trust_env=False, auto_decompress=False
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


async def _fetch(url: str, allowed: Sequence[str], timeout_s: float, max_bytes: int) -> tuple[str, bytes]:
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


async def _get(target: Target, timeout_s: float, max_bytes: int) -> tuple[str, bytes] | str:
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

"""One pool of connections to every vendor. Requests go out as bytes; events come in as they arrive.

Leaving a stream, by its end, an error or a cancellation, closes its socket unless the reply was read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.errors import BadReply, ModelTimedOut, ModelUnavailable
from holdfast.llm import failures
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.sse import Event, SseReader
from holdfast.settings import is_loopback

_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024


class Http:
    """`first_byte_s`: how long a vendor may stay silent before it answers. `total_s`: how long a reply may take."""

    def __init__(self, *, first_byte_s: float = 60.0, total_s: float = 600.0) -> None:
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def events(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncGenerator[list[Event]]:
        """The events of a reply, in the groups in which they arrived. Raises a ModelError."""
        reader = SseReader()
        async with self._answer(endpoint, "POST", path, body, headers) as answer:
            with _named_failures(endpoint, self._total_s):
                async for chunk in answer.content.iter_any():
                    if events := reader.feed(chunk):
                        yield events
            if events := reader.close():
                yield events

    async def json(
        self, endpoint: Endpoint, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """A small answer read whole: a GET, or a POST when there is a body. Raises a ModelError."""
        encoded = None if body is None else msgspec.json.encode(body)
        method = "GET" if encoded is None else "POST"
        async with self._answer(endpoint, method, path, encoded, headers or {}) as answer:
            with _named_failures(endpoint, self._total_s):
                data = await answer.content.read(_MAX_LIST_BYTES)
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise BadReply(f"{endpoint.provider_name} answered {path} with something that is not JSON.") from error

    async def aclose(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    @asynccontextmanager
    async def _answer(
        self, endpoint: Endpoint, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        url = path if path.startswith("http") else endpoint.base_url + path
        sent = {"content-type": "application/json", **headers, **endpoint.headers}
        with _named_failures(endpoint, self._first_byte_s):
            async with asyncio.timeout(self._first_byte_s):
                answer = await self._session(url).request(method, url, data=body, headers=sent, allow_redirects=False)
        try:
            if answer.status != 200:
                with _named_failures(endpoint, self._total_s):
                    said = await answer.content.read(_MAX_ERROR_BYTES)
                raise failures.from_response(endpoint.provider_name, answer.status, answer.headers, said)
            yield answer
        finally:
            answer.close()

    def _session(self, url: str) -> aiohttp.ClientSession:
        """The environment's proxy is honoured, but never stands between us and a server on this machine."""
        proxied = not is_loopback(urlsplit(url).hostname or "")
        known = self._sessions.get(proxied)
        if known is None:
            known = self._sessions[proxied] = aiohttp.ClientSession(
                # The limit is on runs, not on connections: a run must not wait for another one's silence.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=self._total_s, sock_connect=self._first_byte_s),
                trust_env=proxied,
            )
        return known


class _named_failures:
    """Says of whatever the network did wrong which vendor it was, and how long we waited."""

    def __init__(self, endpoint: Endpoint, waited_s: float) -> None:
        self._vendor = f"{endpoint.provider_name} ({endpoint.base_url})"
        self._waited_s = waited_s

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise ModelTimedOut(f"{self._vendor} did not answer within {self._waited_s:g} seconds.") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            raise ModelUnavailable(f"{self._vendor} cannot be reached: {error.os_error.strerror or error}.") from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise ModelUnavailable(f"The connection to {self._vendor} was lost: {error}") from error

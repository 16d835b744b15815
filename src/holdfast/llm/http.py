"""One pool of connections to every vendor. Requests go out as bytes; events come in as they arrive.

Leaving a stream, by its end, an error or a cancellation, closes its socket unless the reply was read to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec

from holdfast.errors import AddressRefused, BadReply, ModelError, ModelTimedOut, ModelUnavailable
from holdfast.llm import failures
from holdfast.llm.broken_json import NOT_JSON
from holdfast.llm.endpoint import Endpoint, is_written_by_user
from holdfast.llm.sse import Event, SseReader
from holdfast.netguard import Guard
from holdfast.outgoing import guarded_connector, refused_by_guard
from holdfast.settings import is_loopback

_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_LIST_BYTES: Final = 16 * 1024 * 1024
# Of a reply as it is sent, with what vendors wrap around each token: some keep parts of it until they are whole.
MAX_STREAM_BYTES: Final = 256 * 1024 * 1024
_SHOWN_CHARS: Final = 200
_SHORTEST_KEY: Final = 8  # a shorter one, such as `none` or `ollama`, is no secret, and could be any word
# How long a vendor that has said its last word may take to end the reply, which frees the connection for the next.
_LAST_BYTES_S: Final = 0.1
IsLast = Callable[[Event], bool]
# How a server is reached. A connection of one kind never serves another: each has a pool of its own.
Way = Literal["direct", "proxied", "guarded"]


class Http:
    """`first_byte_s`: how long a vendor may stay silent before it answers. `total_s`: how long a reply may take.

    `guard` judges every connection to an address that a user wrote; without one, users are trusted.
    """

    def __init__(self, *, first_byte_s: float = 60.0, total_s: float = 600.0, guard: Guard | None = None) -> None:
        self._guard = guard
        self._first_byte_s = first_byte_s
        self._total_s = total_s
        self._sessions: dict[Way, aiohttp.ClientSession] = {}

    async def events(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str], *, is_last: IsLast | None = None
    ) -> AsyncGenerator[list[Event]]:
        """The events of a reply, in the groups in which they arrived, up to the last. Raises a ModelError."""
        reader, opening = SseReader(), bytearray()
        none_yet, received = True, 0
        answer = await self._answer(endpoint, "POST", path, body, headers)
        try:
            with _named_failures(endpoint, self._total_s):
                async for chunk in answer.content.iter_any():
                    received += len(chunk)
                    if received > MAX_STREAM_BYTES:
                        raise BadReply(f"{endpoint.provider_name} sent a reply of more than {MAX_STREAM_BYTES} bytes.")
                    events = reader.feed(chunk)
                    if events:
                        none_yet = False
                        yield events
                        if is_last is not None and is_last(events[-1]):
                            await _read_out(answer)
                            return
                    elif none_yet and len(opening) < _MAX_ERROR_BYTES:
                        opening += chunk
            if events := reader.close():
                yield events
            elif none_yet and opening and not opening.startswith(b":"):
                raise not_a_stream(endpoint, bytes(opening))
        finally:
            answer.close()

    async def json(
        self, endpoint: Endpoint, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """A small answer read whole: a GET, or a POST when there is a body. Raises a ModelError."""
        encoded = None if body is None else msgspec.json.encode(body)
        method = "GET" if encoded is None else "POST"
        answer = await self._answer(endpoint, method, path, encoded, headers or {})
        data = await self._read_and_close(endpoint, answer, _MAX_LIST_BYTES)
        try:
            return msgspec.json.decode(data)
        except NOT_JSON as error:
            raise BadReply(f"{endpoint.provider_name} answered {path} with something that is not JSON.") from error

    async def aclose(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def _answer(
        self, endpoint: Endpoint, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """One that promises content, for the caller to read and to close. Raises a ModelError."""
        url = path if path.startswith("http") else endpoint.base_url + path
        sent = {"content-type": "application/json", **headers, **endpoint.headers}
        with _named_failures(endpoint, self._first_byte_s):
            async with asyncio.timeout(self._first_byte_s):
                session = self._session(endpoint, url)
                answer = await session.request(method, url, data=body, headers=sent, allow_redirects=False)
        if answer.status == 200:
            return answer
        error = without_key(endpoint, await self._read_and_close(endpoint, answer, _MAX_ERROR_BYTES))
        raise failures.from_response(endpoint.provider_name, answer.status, answer.headers, error)

    async def _read_and_close(self, endpoint: Endpoint, answer: aiohttp.ClientResponse, limit: int) -> bytes:
        """Up to the limit."""
        data = bytearray()
        try:
            with _named_failures(endpoint, self._total_s):
                async for chunk in answer.content.iter_any():
                    data += chunk
                    if len(data) >= limit:
                        break
        finally:
            answer.close()
        return bytes(data[:limit])

    def _session(self, endpoint: Endpoint, url: str) -> aiohttp.ClientSession:
        """The environment's proxy is honoured, but never stands between us and a server on this machine.

        Nor is it given what a user wrote: it would look the name up by itself, and connect to whatever it finds.
        """
        way: Way = "direct" if _is_on_this_machine(url) else "proxied"
        if self._guard is not None and is_written_by_user(endpoint):
            way = "guarded"
        known = self._sessions.get(way)
        if known is None:
            known = self._sessions[way] = aiohttp.ClientSession(
                connector=self._connector(way),
                timeout=aiohttp.ClientTimeout(total=self._total_s, sock_connect=self._first_byte_s),
                cookie_jar=aiohttp.DummyCookieJar(),  # nobody's requests are to be told by those of others
                trust_env=way == "proxied",
            )
        return known

    def _connector(self, way: Way) -> aiohttp.TCPConnector:
        # The limit is on runs, not on connections: a run must not wait for another one's silence.
        if way == "guarded" and self._guard is not None:
            return guarded_connector(self._guard, limit=0, keepalive_timeout=60)
        return aiohttp.TCPConnector(limit=0, keepalive_timeout=60)


@lru_cache(maxsize=1_000)
def _is_on_this_machine(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def without_key(endpoint: Endpoint, body: bytes) -> bytes:
    """Keys that look like keys are found anyway; this is for those that look like anything."""
    key = endpoint.api_key or ""
    return body.replace(key.encode(), b"[key]") if len(key) >= _SHORTEST_KEY else body


def shown(endpoint: Endpoint, body: bytes) -> str:
    """The beginning of what a vendor said, fit for an error."""
    text = without_key(endpoint, body).decode(errors="replace")
    return failures.hide_keys(" ".join(text.split()))[:_SHOWN_CHARS]


async def _read_out(answer: aiohttp.ClientResponse) -> None:
    """A reply that was read to its end gives its connection back; one that does not end is not waited for."""
    if answer.content.at_eof():
        return  # its end came with its last words, as it usually does
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(_LAST_BYTES_S):
            async for _ in answer.content.iter_any():
                pass


def not_a_stream(endpoint: Endpoint, body: bytes) -> ModelError:
    """A body without events: an error under a status that says otherwise, or another program at that address."""
    kinds, text = failures.described(without_key(endpoint, body))
    if kinds:
        return failures.failure(endpoint.provider_name, kinds, text)
    beginning = shown(endpoint, text.encode())
    return BadReply(f"{endpoint.provider_name} answered with something that is not a stream of events: {beginning}")


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
        if isinstance(error, aiohttp.ClientError) and (refusal := refused_by_guard(error)) is not None:
            raise AddressRefused(f"{self._vendor} is not called: {refusal.strerror}") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            raise ModelUnavailable(f"{self._vendor} cannot be reached: {error.os_error.strerror or error}.") from error
        if isinstance(error, aiohttp.ClientError | OSError):
            raise ModelUnavailable(f"The connection to {self._vendor} was lost: {error}") from error

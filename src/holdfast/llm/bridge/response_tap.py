"""The HTTP client of a vendor, on which every answer is read before its SDK gets it.

SDKs hide what we must know: whose error it was, whether a vendor said zero or nothing at all, which events are new. On
the connection all of it is plain, and a reply can be given up at once, however deep the generators above are nested.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2
import msgspec

from holdfast.errors import BadReply
from holdfast.guarded_httpx import GuardedTransport
from holdfast.llm import failures
from holdfast.llm.broken_json import NOT_JSON, repaired
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.http import not_a_stream, shown, without_key
from holdfast.llm.sse import Event, SseReader
from holdfast.settings import is_loopback
from holdfast.ssrf_guard import Guard

_MAX_ERROR_BYTES: Final = 64 * 1024
_USAGE_NAMES: Final = ("usage", "usageMetadata")
_DONE: Final = b"data: [DONE]\n\n"
# How long a vendor that has said its last word may take to end the reply, which frees the connection for the next.
_LAST_BYTES_S: Final = 0.1
# The limit is on runs, not on connections: a run must not wait for another one's silence.
_LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=60)
_decode = msgspec.json.Decoder().decode

Wants = Callable[[Mapping[str, Any]], bool]
Reworded = Callable[[dict[str, Any]], dict[str, Any]]


def as_it_is(event: dict[str, Any]) -> dict[str, Any]:
    return event


class ResponseTap:
    """One reply, as it comes from the vendor. `wants` says which events the SDK is to see, `reworded` how."""

    def __init__(self, endpoint: Endpoint, wants: Wants, reworded: Reworded = as_it_is) -> None:
        self._endpoint = endpoint
        self._wants = wants
        self._reworded = reworded
        self._reader = SseReader()
        self._opening = b""  # what came before the first event
        self._none_yet = True
        self._answers: list[httpx2.Response] = []
        self.figures: set[str] = set()  # the names of the token counts that the vendor mentioned

    async def answer(self, response: httpx2.Response) -> None:
        self._answers.append(response)
        if response.status_code != 200:
            body = await _beginning(response)
            raise failures.from_response(
                self._endpoint.provider_name, response.status_code, response.headers, without_key(self._endpoint, body)
            )
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # the client is asynchronous
        response.stream = _TappedStream(stream, self)

    def passed(self, chunk: bytes) -> Iterator[bytes]:
        """An event at a time: those before one that fails have been said."""
        events = self._reader.feed(chunk)
        if events:
            self._none_yet = False
        elif self._none_yet and len(self._opening) < _MAX_ERROR_BYTES:
            self._opening += chunk
        yield from filter(None, map(self._passed, events))

    def rest(self) -> Iterator[bytes]:
        events = self._reader.close()
        if not events and self._none_yet and self._opening and not self._opening.startswith(b":"):
            raise not_a_stream(self._endpoint, self._opening)
        yield from filter(None, map(self._passed, events))

    async def hang_up(self) -> None:
        for response in self._answers:
            await response.aclose()

    def _passed(self, event: Event) -> bytes:
        name, data = event
        if data == b"[DONE]":
            return _DONE
        if not data:
            return b""
        decoded = self._decoded(data)
        if not isinstance(decoded, dict):
            return b""
        found = cast("dict[str, Any]", decoded)
        if (failed := _failed(found)) is not None:
            error = _decode(without_key(self._endpoint, msgspec.json.encode(failed)))
            failure = failures.in_stream(self._endpoint.provider_name, error)
            failure.retry_after = failures.retry_delay(data)
            raise failure
        for holder in (found, found.get("response"), found.get("delta")):
            if isinstance(holder, dict):
                self._note_figures(cast("dict[str, Any]", holder))
        if not self._wants(found):
            return b""
        # Some SDKs take other characters for the end of a line than the protocol does.
        plain = json.dumps(self._reworded(found)).encode()
        return b"event: %b\ndata: %b\n\n" % (name, plain) if name else b"data: %b\n\n" % plain

    def _decoded(self, data: bytes) -> object:
        try:
            return _decode(data)
        except NOT_JSON:
            pass
        try:
            return repaired(_decode, data)
        except msgspec.DecodeError as error:
            vendor, beginning = self._endpoint.provider_name, shown(self._endpoint, data)
            raise BadReply(f"{vendor} sent an event that is not JSON: {beginning}") from error

    def _note_figures(self, holder: Mapping[str, Any]) -> None:
        for name in _USAGE_NAMES:
            if isinstance(usage := holder.get(name), dict):
                counts = cast("dict[str, Any]", usage)
                self.figures.update(key for key, value in counts.items() if isinstance(value, int))
                for details in counts.values():
                    if isinstance(details, dict):
                        inner = cast("dict[str, Any]", details)
                        self.figures.update(key for key, value in inner.items() if isinstance(value, int))


# The client belongs to a model and serves many replies at once; which of them asks is known only to the asking task.
CURRENT_TAP: Final[ContextVar[ResponseTap]] = ContextVar("CURRENT_TAP")


def open_client(
    endpoint: Endpoint, *, first_byte_s: float, total_s: float, guard: Guard | None = None
) -> httpx2.AsyncClient:
    """The environment's proxy is honoured, but never stands between us and a server on this machine.

    Nor is it given what a user wrote: it would look the name up by itself, and connect to whatever it finds.
    """

    async def tap_response(response: httpx2.Response) -> None:
        await CURRENT_TAP.get().answer(response)

    return httpx2.AsyncClient(
        verify=_trusted(),
        transport=None if guard is None else GuardedTransport(guard, _trusted(), _LIMITS),
        timeout=httpx2.Timeout(total_s, connect=first_byte_s, pool=None),
        limits=_LIMITS,
        headers={"accept-encoding": "identity", **endpoint.headers},
        event_hooks={"request": [_name_once], "response": [tap_response]},
        trust_env=guard is None and not is_loopback(urlsplit(endpoint.base_url).hostname or ""),
        follow_redirects=False,
    )


async def _name_once(request: httpx2.Request) -> None:
    """Library and SDK each say who asks. Twice the same header is no HTTP, and servers that mind refuse it."""
    if len(names := request.headers.get_list("user-agent")) > 1:
        request.headers["user-agent"] = " ".join(names)


@cache
def _trusted() -> ssl.SSLContext:
    """Whom to trust is the same for every vendor, and takes long to read."""
    return httpx2.create_ssl_context()


class _TappedStream(httpx2.AsyncByteStream):
    def __init__(self, source: httpx2.AsyncByteStream, tap: ResponseTap) -> None:
        self._source = source
        self._tap = tap
        self._is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # SDKs read on after the last word, to free the connection. That is done by then, and where the vendor has
        # closed it, the library below would read its end over and over, and let nobody else do anything.
        if self._is_read:
            return
        self._is_read = True
        chunks = aiter(self._source)
        async for chunk in chunks:
            for event in self._tap.passed(chunk):
                if event == _DONE:
                    await _read_out(chunks)
                yield event
        for event in self._tap.rest():
            yield event

    async def aclose(self) -> None:
        await self._source.aclose()


async def _read_out(chunks: AsyncIterator[bytes]) -> None:
    """SDKs leave at the last word. A reply that was read to its end gives its connection back."""
    with suppress(TimeoutError, httpx2.TransportError):
        async with asyncio.timeout(_LAST_BYTES_S):
            async for _ in chunks:
                pass


async def _beginning(response: httpx2.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) >= _MAX_ERROR_BYTES:
            break
    await response.aclose()
    return body[:_MAX_ERROR_BYTES]


def _failed(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """What holds the error when the event tells of one."""
    if event.get("type") == "response.failed":
        response: dict[str, Any] = event.get("response") or {}
        return response.get("error") or {"message": "The reply failed."}
    if event.get("type") == "message-end":
        ended: dict[str, Any] = event.get("delta") or {}
        failed = ended.get("finish_reason") == "ERROR"
        return {"message": ended.get("error") or "The model could not complete its reply."} if failed else None
    is_error = event.get("type") == "error" or event.get("error")
    return dict(event) if is_error else None

"""What every request passes before it reaches a route; `server` says in which order.

`Limits` says what a request may carry: so many bytes, and only what both databases can store. PostgreSQL refuses NUL in
text, and integers have 64 bits in both. JSON allows more, so a body is read and checked before any route sees it; the
caller gets a sentence, not a failure from deep inside.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Iterable
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import logs
from holdfast.api.answers import NO_RETRY, json_response, request_error_answer
from holdfast.api.params import READS_SECRETS, check_actor, is_json_type
from holdfast.errors import HoldfastError, RequestError, TooLarge, Unauthorized, Unprocessable
from holdfast.settings import Settings, is_loopback

# The last: a browser that comes back from a login has no key, but a state that nobody can guess.
OPEN_PATHS: Final = frozenset(
    {"/", "/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/", "/v1/tools/mcp/oauth/callback"}
)
_CONSOLE: Final = "/console/"  # files of the web console, which hold no data
_PREFIXES: Final = {b"authorization": b"Bearer ", b"x-bare-password": b"password "}
_REQUEST_ID: Final = b"x-request-id"
_TRACE_ID: Final = b"x-trace-id"  # counts if there is no other
_SENSIBLE: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")  # a log and a header can carry it as it is
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # methods that change nothing, and have no body
_log = logging.getLogger(__name__)
_propagator = TraceContextTextMapPropagator()
_TRACE_HEADERS: Final = frozenset({b"traceparent", b"tracestate"})
# Cheaper than chance for every request. The prefix is of this process alone.
_prefix = os.urandom(10).hex()
_numbers = count()
_CUT_OFF: Final = (
    "The server stops, and could not finish this in time. Check what became of it before you send it again."
)
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_UPLOADS: Final = "/upload"  # the end of the paths that take files, which have a limit of their own
_MOST_THROWN_AWAY: Final = 1 << 30  # bytes of a file that is refused
FORM_BYTES: Final = 64 * 1024  # of a form, beside the file in it
MAX_QUERY_FIELDS: Final = 1_000
# Of one body. Each costs a microsecond or two of the event loop, whatever it says; text may be as long as the body.
MAX_VALUES: Final = 200_000
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_SEARCH_COSTS: Final = 32  # bytes that are searched in the time in which one decoded value is looked at


class RequestIds:
    """Gives every request an id, the caller's own if it makes sense: its log lines have it, and its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        header = (_REQUEST_ID, request_id.encode("ascii"))

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            return send(message)

        token = logs.current_request.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            logs.current_request.reset(token)


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What the caller names the request, or a new id."""
    given = b""
    for name, value in headers:
        if name == _REQUEST_ID or (name == _TRACE_ID and not given):
            given = value
    if given and _SENSIBLE.fullmatch(given):
        return given.decode("ascii")
    return f"{_prefix}{next(_numbers):012x}"


class LocalPagesOnly:
    """Protects a server without a key from web pages. It listens on loopback only, but a browser on the same machine
    will carry any page's requests there: under a name that the page's owner points at 127.0.0.1, or as a plain form
    post."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._host = settings.host
        self._origins = frozenset(settings.acceptable_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (problem := self._problem(scope)) is None:
            await self._app(scope, receive, send)
            return
        await json_response({"detail": problem}, 403)(scope, receive, send)

    def _problem(self, scope: Scope) -> str | None:
        for name, value in scope["headers"]:
            if name == b"host" and not self._is_us(f"//{value.decode('latin-1')}"):
                return "Without an API key this server answers only under a local name; set HOLDFAST_API_KEY."
            if name == b"origin" and scope["method"] not in _READING:
                origin = value.decode("latin-1")
                if origin not in self._origins and not self._is_us(origin):
                    return f"Pages of {origin} may not use this server, unless HOLDFAST_ACCEPTABLE_ORIGINS lists it."
        return None

    def _is_us(self, url: str) -> bool:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            return False
        return host == self._host or is_loopback(host)


def canonical_path(path: str, slashed: AbstractSet[str]) -> str:
    """`slashed` holds the routes that are declared with a slash at the end; all others are declared without."""
    if path.startswith("/latest/"):
        path = "/v1/" + path.removeprefix("/latest/")
    if not path.startswith("/v1/"):
        return path
    bare = path.rstrip("/")
    with_slash = bare + "/"
    return with_slash if with_slash in slashed else bare


class CanonicalPaths:
    """One spelling per route. Clients use `/v1/agents` and `/v1/agents/` alike, and a redirect would drop the body."""

    def __init__(self, app: ASGIApp, slashed: AbstractSet[str]) -> None:
        self._app = app
        self._slashed = slashed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = canonical_path(scope["path"], self._slashed)
            if path != scope["path"]:
                scope = {**scope, "path": path}
        await self._app(scope, receive, send)


class UnhandledErrors:
    """The API edge's broad catch: whatever nobody translated is ours, so it is logged whole and answered 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except asyncio.CancelledError:
            # A stopping server cuts off what takes longer than its grace period. uvicorn would log a traceback, and
            # answer 500 in plain text. It closes the connection of an answer that was begun and not finished.
            _log.warning("%s %s was cut off", scope["method"], scope["path"])
            if not started:
                await json_response({"detail": _CUT_OFF}, 503, NO_RETRY)(scope, receive, send)
        except Exception:
            _log.exception("Unexpected failure in %s %s", scope["method"], scope["path"])
            if started:  # too late for an answer; a cut connection at least shows that it is broken
                raise
            await json_response({"detail": "An unknown error occurred"}, 500)(scope, receive, send)


class Auth:
    """Who may come in. With a key set, everything but the front page and the health routes needs it, in either of the
    two accepted headers.

    There are two keys. The secrets key does what the API key does, and also reads agents' secrets in clear.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_key: str | None,
        secrets_key: str | None = None,
        open_paths: AbstractSet[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._open = not api_key
        self._accepted = _accepted_headers(api_key) if api_key else {}
        self._reading = _accepted_headers(secrets_key) if secrets_key else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self._open_paths or scope["path"].startswith(_CONSOLE):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RequestError as error:
            if scope["type"] != "http":
                await send({"type": "websocket.close", "code": 1008})
                return
            await request_error_answer(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        known = self._open
        for name, value in scope["headers"]:
            if name in _PREFIXES:
                if name in self._accepted and hmac.compare_digest(value, self._accepted[name]):
                    known = True
                if name in self._reading and hmac.compare_digest(value, self._reading[name]):
                    known = scope[READS_SECRETS] = True
            elif name == b"user_id":
                check_actor(value.decode("latin-1"))
        if not known:
            raise Unauthorized("Unauthorized")


def _accepted_headers(key: str) -> dict[bytes, bytes]:
    return {name: prefix + key.encode() for name, prefix in _PREFIXES.items()}


class TraceContext:
    """Makes the trace that a caller named with `traceparent` the one that its runs belong to.

    Runs are started within the request that asked for them, and inherit its context. When the program around us has a
    span of its own for the request, that one is current already, and stays.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = {name: value for name, value in scope.get("headers", ()) if name in _TRACE_HEADERS}
        if not given or trace.get_current_span().get_span_context().is_valid:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()}
        token = context.attach(_propagator.extract(carrier))
        try:
            await self._app(scope, receive, send)
        finally:
            context.detach(token)


class Limits:
    def __init__(self, app: ASGIApp, max_body_bytes: int, max_file_bytes: int) -> None:
        self._app = app
        self._max = max_body_bytes
        self._max_upload = max_file_bytes + FORM_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            _check_address(scope)
            length, is_json = _body_headers(scope)
            is_upload = scope["path"].endswith(_UPLOADS)
            if length is not None and length > (self._max_upload if is_upload else self._max):
                raise self._too_large(is_upload)
            if is_json is None and length != 0:
                # HTTP libraries that are handed text need not say what it is, and all that we read is JSON.
                scope["headers"] = [*scope["headers"], (b"content-type", b"application/json")]
                is_json = True
            if is_json:
                receive = await self._read_json(receive)
            elif length != 0 or scope["method"] not in _READING:
                await self._pass_counted(scope, receive, send, is_upload)
                return
        except RequestError as error:
            await _refuse(error, scope, receive, send)
        except _ClientLeft:
            return
        else:
            await self._app(scope, receive, send)

    async def _read_json(self, receive: Receive) -> Receive:
        """Takes the whole body, checks it, and returns a `receive` that hands it out again."""
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft("the client left before its body was complete")
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > self._max:
                raise self._too_large()
            chunks.append(chunk)
            more = message.get("more_body", False)
        body = b"".join(chunks)
        if body:
            check_json(body)
        return _replay(body, receive)

    async def _pass_counted(self, scope: Scope, receive: Receive, send: Send, is_upload: bool) -> None:
        """Uploads are streamed. Frameworks turn what `receive` raises into a 400, so their answer is replaced."""
        size, overflowed, started = 0, False, False
        most = self._max_upload if is_upload else self._max

        async def counted_receive() -> Message:
            nonlocal size, overflowed
            message = await receive()
            size += len(message.get("body", b""))
            if size > most and not started:
                overflowed = True
                raise self._too_large(is_upload)
            return message

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if not overflowed:
                started = True
                await send(message)

        try:
            await self._app(scope, counted_receive, guarded_send)
        except TooLarge:
            if not overflowed:
                raise
        if overflowed:
            await _refuse(self._too_large(is_upload), scope, receive, send)

    def _too_large(self, is_upload: bool = False) -> TooLarge:
        most, setting = (self._max_upload, "FILE") if is_upload else (self._max, "BODY")
        return TooLarge(
            f"The request is larger than {most} bytes, the most this server accepts (HOLDFAST_MAX_{setting}_BYTES)."
        )


class _ClientLeft(HoldfastError):
    """Nobody is left to answer."""


def check_json(body: bytes, what: str = "body", most_values: int = MAX_VALUES) -> Any:
    """The decoded body, or Unprocessable with what is wrong and where. `what` is the name of what is read."""
    values = _count_values(body, most_values)
    if values > most_values:
        raise Unprocessable(
            f"The {what} holds more than {most_values} JSON values, the most that is accepted. Split it."
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise Unprocessable(f"The {what} is nested too deeply.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unprocessable(f"The {what} is not valid JSON in UTF-8: {error}") from error
    # Many short values are looked at in the body itself first: it hardly ever holds what could be wrong with one.
    if values * _SEARCH_COSTS < len(body) or b"\\u0000" in body or _LONG_NUMBER.search(body):
        check_storable(value, what)
    return value


def _count_values(body: bytes, most: int) -> int:
    """About how many values a JSON text holds, without decoding it. Never too few; too many only below the limit."""
    values = _separators(body)
    if values <= most:
        return values
    # Commas and brackets in texts do not count.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    return texts if texts > 2 * most else _separators(b"".join(plain.split(b'"')[::2]))


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{") + 1


def check_storable(value: object, where: str = "body") -> None:
    """Refuses NUL in text and integers beyond 64 bits, anywhere in decoded JSON."""
    pending = [value]
    while pending:
        item = pending.pop()
        if _problem(item):
            raise Unprocessable(_locate(value, where))
        if isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def _problem(item: object) -> str | None:
    if isinstance(item, str):
        return "text must not hold NUL characters" if "\x00" in item else None
    if isinstance(item, int) and not _INT64_MIN <= item <= _INT64_MAX:
        return "numbers must fit into 64 bits"
    return None


def _locate(value: Any, where: str) -> str:
    """Only after something was found, so that the common case need not carry paths along."""
    if problem := _problem(value):
        return f"{where}: {problem}"
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if _problem(key):
                return f"{where}: {_problem(key)}"
            if found := _locate(inner, f"{where}.{key}"):
                return found
    if isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            if found := _locate(inner, f"{where}.{index}"):
                return found
    return ""


def _check_address(scope: Scope) -> None:
    if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
        raise Unprocessable("The address must not hold NUL characters.")
    if (fields := scope["query_string"].count(b"&") + 1) > MAX_QUERY_FIELDS:
        raise Unprocessable(f"The query has {fields} parameters; at most {MAX_QUERY_FIELDS} are accepted.")


def _body_headers(scope: Scope) -> tuple[int | None, bool | None]:
    """How long the body says it is, and whether it is JSON. None: it does not say."""
    length: int | None = 0
    is_json: bool | None = None
    for name, value in scope["headers"]:
        if name == b"content-length":
            length = int(value) if value.isdigit() else None
        elif name == b"transfer-encoding":
            length = None
        elif name == b"content-type":
            is_json = is_json_type(value)
    return length, is_json


def _replay(body: bytes, receive: Receive) -> Receive:
    handed_out = False

    async def replayed() -> Message:
        nonlocal handed_out
        if handed_out:
            return await receive()
        handed_out = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _may_finish(scope: Scope) -> bool:
    """A file that is too large by as much as people mistake is taken and thrown away: whoever is cut off in the middle
    of sending does not get to read why."""
    length, _ = _body_headers(scope)
    return scope["path"].endswith(_UPLOADS) and length is not None and length <= _MOST_THROWN_AWAY


async def _refuse(error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
    answer = request_error_answer(error)
    if isinstance(error, TooLarge) and not _may_finish(scope):
        answer.headers["connection"] = "close"  # the rest of the body is not worth reading
    await answer(scope, receive, send)

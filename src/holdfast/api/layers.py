"""What every request passes before it reaches a route; `server` says in which order.

Limits of size are in `limits`, and the last resort for errors is in `errors`.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable
from collections.abc import Set as AbstractSet
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import logs
from holdfast.api.deps import READS_SECRETS, check_actor
from holdfast.api.errors import request_error_answer
from holdfast.api.json import json_response
from holdfast.errors import RequestError, Unauthorized
from holdfast.settings import Settings, is_loopback

# The last: a browser that comes back from a login has no key, but a state that nobody can guess.
OPEN_PATHS: Final = frozenset(
    {"/", "/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/", "/v1/tools/mcp/oauth/callback"}
)
_CONSOLE: Final = "/console/"  # files of the web console, which hold no data
_PREFIXES: Final = {b"authorization": b"Bearer ", b"x-bare-password": b"password "}
_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_propagator = TraceContextTextMapPropagator()
_TRACE_HEADERS: Final = frozenset({b"traceparent", b"tracestate"})


class RequestIds:
    """Gives every request an id, the caller's own if it makes sense: its log lines have it, and its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = logs.request_id(scope["headers"])
        header = (logs.REQUEST_ID, request_id.encode("ascii"))

        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            return send(message)

        token = logs.current_request.set(request_id)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            logs.current_request.reset(token)


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
            if name == b"origin" and scope["method"] not in _HARMLESS:
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

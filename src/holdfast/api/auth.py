"""Who may come in. With a key set, everything but the health routes needs it, in either of the two accepted headers."""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.deps import actor_named
from holdfast.api.errors import request_error_answer
from holdfast.errors import RequestError, Unauthorized

OPEN_PATHS: Final = frozenset({"/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/"})


class Auth:
    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self._app = app
        self._accepted = _accepted_headers(api_key) if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN_PATHS:
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
        known = self._accepted is None
        for name, value in scope["headers"]:
            if not known and self._accepted and (expected := self._accepted.get(name)):
                known = hmac.compare_digest(value, expected)
            elif name == b"user_id":
                actor_named(value.decode("latin-1"))
        if not known:
            raise Unauthorized("Unauthorized")


def _accepted_headers(api_key: str) -> dict[bytes, bytes]:
    key = api_key.encode()
    return {b"authorization": b"Bearer " + key, b"x-bare-password": b"password " + key}

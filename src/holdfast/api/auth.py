"""Who may come in. With a key set, everything but the front page and the health routes needs it, in either of the two
accepted headers.

There are two keys. The secrets key does what the API key does, and also reads agents' secrets in clear.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.deps import READS_SECRETS, check_actor
from holdfast.api.errors import request_error_answer
from holdfast.errors import RequestError, Unauthorized

OPEN_PATHS: Final = frozenset({"/", "/v1/health", "/v1/health/", "/v1/ready", "/v1/ready/"})
_PREFIXES: Final = {b"authorization": b"Bearer ", b"x-bare-password": b"password "}


class Auth:
    def __init__(self, app: ASGIApp, api_key: str | None, secrets_key: str | None = None) -> None:
        self._app = app
        self._open = not api_key
        self._accepted = _accepted_headers(api_key) if api_key else {}
        self._reading = _accepted_headers(secrets_key) if secrets_key else {}

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

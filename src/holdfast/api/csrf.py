"""Protects a server without a key from web pages. It listens on loopback only, but a browser on the same machine will
carry any page's requests there: under a name that the page's owner points at 127.0.0.1, or as a plain form post.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.api.json import json_response
from holdfast.settings import Settings, is_loopback

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class LocalPagesOnly:
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

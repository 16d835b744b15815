"""An authorization server and an MCP server that asks for its tokens, in one small application."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from .servers import Tools, server_of


class Guarded:
    """`app` serves both. Tokens last as long as `expires_in` says; `revoke` ends all of them but the refresh tokens."""

    def __init__(self, tools: Tools) -> None:
        self._mcp = server_of(tools).streamable_http_app()
        self._challenges: dict[str, str] = {}  # by code
        self._refresh_tokens: set[str] = set()
        self.url = ""
        self.tokens: set[str] = set()
        self.registered: list[dict[str, Any]] = []
        self.refreshed = 0
        self.refuses = False
        self.app = Starlette(
            routes=[
                Route("/.well-known/oauth-protected-resource/mcp", self._resource),
                Route("/.well-known/oauth-authorization-server", self._metadata),
                Route("/register", self._register, methods=["POST"]),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/mcp", _Asgi(self), methods=["GET", "POST", "DELETE"]),
            ],
            lifespan=self._mcp.router.lifespan_context,
        )

    def revoke(self) -> None:
        self.tokens.clear()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = Request(scope).headers.get("authorization", "").removeprefix("Bearer ")
        if token in self.tokens:
            await self._mcp(scope, receive, send)
            return
        where = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
        await Response(status_code=401, headers={"www-authenticate": where})(scope, receive, send)

    async def _resource(self, request: Request) -> Response:
        return JSONResponse({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def _metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

    async def _register(self, request: Request) -> Response:
        self.registered.append(await request.json())
        return JSONResponse({**self.registered[-1], "client_id": f"client-{len(self.registered)}"}, 201)

    async def _authorize(self, request: Request) -> Response:
        asked = request.query_params
        assert asked["code_challenge_method"] == "S256"
        if self.refuses:
            answer = {"state": asked["state"], "error": "access_denied", "error_description": "<b>no</b>"}
        else:
            code = secrets.token_urlsafe()
            self._challenges[code] = asked["code_challenge"]
            answer = {"state": asked["state"], "code": code}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self._refresh_tokens:
                return JSONResponse({"error": "invalid_grant"}, 400)
            self.refreshed += 1
        else:
            challenge = self._challenges.pop(str(form["code"]), None)
            digest = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
            if challenge != base64.urlsafe_b64encode(digest).decode().rstrip("="):
                return JSONResponse({"error": "invalid_grant"}, 400)
        token, refresh = f"access-{secrets.token_hex(8)}", f"refresh-{secrets.token_hex(8)}"
        self.tokens.add(token)
        self._refresh_tokens.add(refresh)
        return JSONResponse(
            {"access_token": token, "token_type": "Bearer", "expires_in": 3600, "refresh_token": refresh}
        )


class _Asgi:
    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded.serve(scope, receive, send)

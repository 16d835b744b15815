"""Logins at MCP servers: OAuth's authorization code with PKCE, and registration where the server offers it.

The SDK finds the authorization server, registers this one as its client and makes the URL that a person opens. There
its own flow would wait; ours ends, and what it needs to go on is kept (`LoginState`). The callback may come days later
and to another process. From then on tokens are sent, and refreshed when they have expired.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import validate_authorization_response_iss
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from holdfast.errors import McpLoginNeeded, McpUnavailable
from holdfast.tools.mcp.client import McpClient
from holdfast.tools.mcp.values import Authorization, Destination, LoginState

Save = Callable[[LoginState], Awaitable[None]]
_CODE_TO_COME: Final = "not here yet"
# Answered with 401 by a server that wants a login, whatever it would say to others.
_ANY_REQUEST: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "holdfast", "version": "1"},
    },
}


class _Pending(McpLoginNeeded):
    def __init__(self, authorization: Authorization) -> None:
        super().__init__("The login at the server has expired, or was never done: a person has to do it.")
        self.authorization = authorization


class Login(OAuthClientProvider):
    """`state` is what is known of the login; `save` keeps what it becomes, such as when tokens are refreshed."""

    def __init__(self, url: str, redirect_uri: str, state: LoginState, save: Save) -> None:
        metadata = OAuthClientMetadata.model_validate(
            {
                "redirect_uris": [redirect_uri],
                "client_name": "Holdfast",
                "grant_types": ["authorization_code", "refresh_token"],
                "response_types": ["code"],
                "token_endpoint_auth_method": "none",
                "scope": state.scope,
            }
        )
        super().__init__(url, metadata, self, self._open, self._answer)  # pyright: ignore[reportArgumentType]
        self.state = state
        self._save = save
        self._opened = ""

    # What the SDK asks its storage for.

    async def get_tokens(self) -> OAuthToken | None:
        return OAuthToken.model_validate(self.state.tokens) if self.state.tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = time.time() + tokens.expires_in if tokens.expires_in is not None else None
        await self._keep(tokens=_plain(tokens), expires_at=expires_at, verifier=None)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return OAuthClientInformationFull.model_validate(self.state.client) if self.state.client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._keep(client=_plain(client_info))

    async def _keep(self, **changes: Any) -> None:
        self.state = msgspec.structs.replace(self._seen(), **changes)
        await self._save(self.state)

    def _seen(self) -> LoginState:
        """With what the SDK has found out meanwhile."""
        context = self.context
        return msgspec.structs.replace(
            self.state,
            metadata=_plain(context.oauth_metadata) or self.state.metadata,
            resource=_plain(context.protected_resource_metadata) or self.state.resource,
            scope=context.client_metadata.scope,
            protocol_version=context.protocol_version or self.state.protocol_version,
        )

    # Where its flow is entered and left.

    async def _initialize(self) -> None:
        await super()._initialize()
        known, context = self.state, self.context
        context.token_expiry_time = known.expires_at
        context.protocol_version = context.protocol_version or known.protocol_version
        if known.metadata:
            context.oauth_metadata = OAuthMetadata.model_validate(known.metadata)
        if known.resource:
            context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(known.resource)

    async def _open(self, url: str) -> None:
        self._opened = url

    async def _answer(self) -> AuthorizationCodeResult:
        """The code is not there yet: the state lets the SDK go on to the exchange, which is where it is stopped."""
        metadata = self.context.oauth_metadata
        return AuthorizationCodeResult(
            code=_CODE_TO_COME, state=_state_in(self._opened), iss=str(metadata.issuer) if metadata else None
        )

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> httpx2.Request:
        if auth_code != _CODE_TO_COME:
            return await super()._exchange_token_authorization_code(auth_code, code_verifier)
        # Not saved here: a call that finds its login expired must not disturb one that a person has just begun.
        kept = msgspec.structs.replace(self._seen(), verifier=code_verifier)
        raise _Pending(Authorization(self._opened, _state_in(self._opened) or "", kept))

    async def exchange(self, client: McpClient, code: str, iss: str | None) -> None:
        """The code of the callback becomes tokens, which are saved."""
        await self._initialize()
        if self.state.verifier is None:
            raise McpUnavailable("This login is not waiting for a code: begin it anew.")
        try:
            validate_authorization_response_iss(iss, self.context.oauth_metadata)
            request = await self._exchange_token_authorization_code(code, self.state.verifier)
            await self._handle_token_response(await client.request(request))
        except OAuthFlowError as error:
            raise McpUnavailable(f"The authorization server refused the code: {error}") from error


async def begin(client: McpClient, destination: Destination, login: Login) -> Authorization | None:
    """What a person has to open; None if the server wants no login."""
    headers = {**destination.headers, "accept": "application/json, text/event-stream"}
    if destination.kind == "sse":
        request = httpx2.Request("GET", destination.url, headers=headers)
    else:
        request = httpx2.Request("POST", destination.url, headers=headers, json=_ANY_REQUEST)
    try:
        await client.request(request, login)
    except _Pending as pending:
        return pending.authorization
    except OAuthFlowError as error:
        raise McpUnavailable(f"The login at the server could not be begun: {error}") from error
    return None


def _state_in(url: str) -> str | None:
    return next(iter(parse_qs(urlsplit(url).query).get("state", ())), None)


def _plain(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)

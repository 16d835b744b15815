"""MCP servers as they are stored, and what is known of their tools."""

from __future__ import annotations

from typing import Literal

import msgspec

McpKind = Literal["stdio", "sse", "streamable_http"]
LoginStatus = Literal["pending", "authorized", "error"]


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """`secrets` is sealed: an McpSecrets as JSON. Tools name their server by its id, so its name may change."""

    id: str
    name: str
    kind: McpKind
    url: str | None = None
    auth_header: str | None = None  # which header the token is sent in
    command: str | None = None
    args: tuple[str, ...] = ()
    secrets: str | None = None
    synced_us: int | None = None  # when its tools were last listed
    sync_error: str | None = None  # why the last attempt to list them failed
    left_out: dict[str, str] = {}  # tools that it offers and that cannot be used, with the reason
    organization_id: str = ""
    created_us: int = 0
    updated_us: int = 0

    @property
    def destination(self) -> tuple[object, ...]:
        """Where its calls go. An approval of a call is for this destination and no other."""
        return self.kind, self.url, self.command, self.args


class McpSecrets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    auth_token: str | None = None
    custom_headers: dict[str, str] | None = None
    env: dict[str, str] | None = None


class McpLogin(msgspec.Struct, frozen=True, kw_only=True):
    """An OAuth login at an MCP server, under way or done. `secrets` is sealed: a LoginState of `tools.mcp` as JSON."""

    id: str
    server_id: str
    status: LoginStatus
    state: str | None = None  # what the authorization server gives back to the callback
    secrets: str | None = None
    error: str | None = None
    created_us: int = 0
    updated_us: int = 0

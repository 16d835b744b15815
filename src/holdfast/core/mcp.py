"""MCP servers as they are stored, what is known of their tools, and the templates in what they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

McpKind = Literal["stdio", "sse", "streamable_http"]
LoginStatus = Literal["pending", "authorized", "error"]
# `{{ NAME }}` and `{{ NAME | default }}` in what a server is sent, filled in from the agent's secrets.
_TEMPLATE: Final = re.compile(r"\{\{\s*([A-Z_][A-Z0-9_]*)\s*(?:\|([^{}]*))?\}\}")
# What holds no secret itself: it only says which one is meant.
_ONLY_A_NAME: Final = re.compile(r"(Bearer )?\{\{\s*[A-Z_][A-Z0-9_]*\s*\}\}")


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


def has_template(text: str) -> bool:
    return _TEMPLATE.search(text) is not None


def only_names_a_secret(text: str) -> bool:
    return _ONLY_A_NAME.fullmatch(text) is not None


def filled(text: str, secrets: Mapping[str, str]) -> str:
    """As it stands, if one of its names is no secret of the agent's and has no default: half a header helps nobody."""
    missing = False

    def value(found: re.Match[str]) -> str:
        nonlocal missing
        name, default = found[1], found[2]
        if name in secrets:
            return secrets[name]
        missing = missing or default is None
        return (default or "").strip()

    result = _TEMPLATE.sub(value, text)
    return text if missing else result

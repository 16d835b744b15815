"""What is said about an MCP server without its SDK: where it is, what it offers, what a call gave."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.mcp import McpKind
from holdfast.core.messages import Content, Status

MOST_TOOLS = 1_000
MOST_DESCRIPTION = 20_000  # characters: a model reads all of it with every request
MOST_SCHEMA_BYTES = 256 * 1024


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a connection needs, opened and filled in. Not to be logged: it holds secrets."""

    kind: McpKind
    url: str = ""
    headers: dict[str, str] = {}
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Destination({self.kind!r}, …)"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long each phase may take, and how much a server may answer."""

    connect_s: float = 30.0
    list_s: float = 30.0
    call_s: float = 60.0
    answer_bytes: int = 8 * 1024 * 1024


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """As its server describes it; nothing of it is checked yet."""

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = {}


class Listing(msgspec.Struct, frozen=True):
    tools: tuple[ListedTool, ...]
    left_out: dict[str, str] = {}  # what was malformed, with the reason


class Called(msgspec.Struct, frozen=True):
    status: Status
    content: Content


class LoginState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a login at an MCP server consists of, between its steps and after them. It is stored sealed."""

    client: dict[str, Any] | None = None  # as which this server is registered there
    tokens: dict[str, Any] | None = None
    expires_at: float | None = None  # of the access token, in seconds since the epoch
    metadata: dict[str, Any] | None = None  # of the authorization server
    resource: dict[str, Any] | None = None  # of the MCP server, as a protected resource
    scope: str | None = None
    protocol_version: str | None = None
    verifier: str | None = None  # of the step that waits for the callback


class Authorization(msgspec.Struct, frozen=True):
    """What a person has to open in a browser, and what is kept until the callback comes."""

    url: str
    state: str
    kept: LoginState

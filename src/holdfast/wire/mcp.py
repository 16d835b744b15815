"""MCP servers on the wire: `/v1/mcp-servers`, by id, and the older `/v1/tools/mcp/servers`, by name.

A secret is never shown. Where one is stored, `MASK` stands in its place, and whoever sends the mask back means the
stored value: a client may change one field of what it has read, and send the rest as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Required, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from typing_extensions import TypedDict

from holdfast.core.mcp import McpKind, McpSecrets, McpServer, only_names_a_secret
from holdfast.wire.bounds import MAX_ITEMS, MAX_KEYS, Name
from holdfast.wire.times import optional_timestamp

MASK: Final = "********"
_MASKED_BEARER: Final = f"Bearer {MASK}"
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STDIO_FIELDS: Final = ("command", "args", "env")
_HTTP_FIELDS: Final = ("server_url", "auth_header", "auth_token", "custom_headers")
_OURS: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})


def _header_name(name: str) -> str:
    if not _HEADER.fullmatch(name) or name.lower() in _OURS:
        raise ValueError("must be the name of an HTTP header that a client may set")
    return name


def _header_value(value: str) -> str:
    if not all(letter.isprintable() or letter == "\t" for letter in value) or not value.isascii():
        raise ValueError("must hold nothing but printable ASCII characters, because it is sent in a header")
    return value


def _variable_name(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("must be the name of an environment variable")
    return name


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not hold a NUL character")
    return text


ServerName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_no_nul)]
Url = Annotated[str, Field(min_length=1, max_length=8_192), AfterValidator(_no_nul)]
Word = Annotated[str, Field(max_length=20_000), AfterValidator(_no_nul)]
Words = Annotated[list[Word], Field(max_length=MAX_ITEMS, fail_fast=True)]
HeaderName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_header_name)]
HeaderValue = Annotated[str, Field(max_length=20_000), AfterValidator(_header_value)]
Headers = Annotated[dict[HeaderName, HeaderValue], Field(max_length=100)]
Env = Annotated[
    dict[Annotated[Name, AfterValidator(_variable_name)], Word],
    Field(max_length=MAX_ITEMS),
]


class _Http(BaseModel):
    model_config = ConfigDict(extra="forbid")

    server_url: Url
    auth_header: HeaderName | None = None
    auth_token: HeaderValue | None = None
    custom_headers: Headers | None = None


class _Stdio(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mcp_server_type: Literal["stdio"] = "stdio"
    command: Annotated[Word, Field(min_length=1)]
    args: Words = []
    env: Env | None = None


class _Sse(_Http):
    mcp_server_type: Literal["sse"] = "sse"


class _StreamableHttp(_Http):
    mcp_server_type: Literal["streamable_http"] = "streamable_http"


class _HttpChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    server_url: Url | None = None
    auth_header: HeaderName | None = None
    auth_token: HeaderValue | None = None
    custom_headers: Headers | None = None


class _StdioChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    mcp_server_type: Literal["stdio"] = "stdio"
    command: Annotated[Word, Field(min_length=1)] | None = None
    args: Words | None = None
    env: Env | None = None


class _SseChange(_HttpChange):
    mcp_server_type: Literal["sse"] = "sse"


class _StreamableHttpChange(_HttpChange):
    mcp_server_type: Literal["streamable_http"] = "streamable_http"


def _said_kind(config: Any) -> str:
    """A change has to say it: of a server that is there, the other fields tell nothing."""
    if isinstance(config, dict):
        return str(cast("dict[str, Any]", config).get("mcp_server_type") or "")
    return str(getattr(config, "mcp_server_type", ""))


def _kind(config: Any) -> str:
    """As said; else what the other fields tell."""
    return _said_kind(config) or ("stdio" if isinstance(config, dict) and "command" in config else "streamable_http")


class McpServerCreate(BaseModel):
    model_config = ConfigDict(extra="forbid")

    server_name: ServerName
    config: Annotated[
        Annotated[_Stdio, Tag("stdio")]
        | Annotated[_Sse, Tag("sse")]
        | Annotated[_StreamableHttp, Tag("streamable_http")],
        Discriminator(_kind),
    ]


class McpServerUpdate(BaseModel):
    """What is not sent stays as it is; null clears what may be empty."""

    model_config = ConfigDict(extra="forbid")

    server_name: ServerName | None = None
    config: Annotated[
        Annotated[_StdioChange, Tag("stdio")]
        | Annotated[_SseChange, Tag("sse")]
        | Annotated[_StreamableHttpChange, Tag("streamable_http")],
        Discriminator(_said_kind),
    ]


class McpToolRun(BaseModel):
    model_config = ConfigDict(extra="forbid")

    args: Annotated[dict[str, Any], Field(max_length=MAX_KEYS)] = {}


# --- by name ---


class NamedServer(BaseModel):
    """A whole configuration, of any kind: `type` says which, or else its fields do."""

    server_name: ServerName
    type: McpKind | None = None
    server_url: Url | None = None
    auth_header: HeaderName | None = None
    auth_token: HeaderValue | None = None
    custom_headers: Headers | None = None
    command: Annotated[Word, Field(min_length=1)] | None = None
    args: Words | None = None
    env: Env | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.command if self.kind == "stdio" else self.server_url) is None:
            raise ValueError("needs a server_url, or the command of a stdio server")
        return self

    @property
    def kind(self) -> McpKind:
        return self.type or ("stdio" if self.command is not None else "streamable_http")

    def as_create(self) -> McpServerCreate:
        own = _STDIO_FIELDS if self.kind == "stdio" else _HTTP_FIELDS
        fields = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        return McpServerCreate.model_validate(
            {"server_name": self.server_name, "config": {"mcp_server_type": self.kind, **fields}}
        )


class NamedServerUpdate(BaseModel):
    server_url: Url | None = None
    token: HeaderValue | None = None
    auth_header: HeaderName | None = None
    auth_token: HeaderValue | None = None
    custom_headers: Headers | None = None
    stdio_config: NamedServer | None = None

    def as_update(self, kind: McpKind) -> McpServerUpdate:
        """What does not belong to the kind of the server is left out."""
        if kind == "stdio":
            sent: BaseModel | None = self.stdio_config
            fields = _STDIO_FIELDS
        else:
            sent, fields = self, _HTTP_FIELDS
        changes = {name: getattr(sent, name) for name in fields if sent is not None and name in sent.model_fields_set}
        if kind != "stdio" and "token" in self.model_fields_set:
            changes["auth_token"] = self.token
        return McpServerUpdate.model_validate({"config": {"mcp_server_type": kind, **changes}})


# --- shown ---


class ConfigView(TypedDict, total=False):
    """Of a stdio server the last three, of others the first four."""

    server_url: str | None
    auth_header: str | None
    auth_token: str | None
    custom_headers: dict[str, str] | None
    command: str | None
    args: list[str]
    env: dict[str, str] | None


class McpServerView(ConfigView):
    id: Required[str]
    server_name: Required[str]
    mcp_server_type: Required[McpKind]
    last_synced_at: Required[str | None]
    sync_error: Required[str | None]
    skipped_tools: Required[dict[str, str]]


class NamedServerView(ConfigView):
    server_name: Required[str]
    type: Required[McpKind]


class Changed(TypedDict):
    deleted: list[str]
    updated: list[str]
    added: list[str]


class ToolHealth(TypedDict):
    status: str
    reasons: list[str]


class LiveTool(TypedDict):
    name: str
    title: str | None
    description: str
    inputSchema: dict[str, Any]
    outputSchema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    health: ToolHealth


def server_view(server: McpServer, secrets: McpSecrets) -> McpServerView:
    named: McpServerView = {
        "id": server.id,
        "server_name": server.name,
        "mcp_server_type": server.kind,
        "last_synced_at": optional_timestamp(server.synced_us),
        "sync_error": server.sync_error,
        "skipped_tools": server.left_out,
    }
    return {**named, **_config_view(server, secrets)}


def named_view(server: McpServer, secrets: McpSecrets) -> NamedServerView:
    named: NamedServerView = {"server_name": server.name, "type": server.kind}
    return {**named, **_config_view(server, secrets)}


def _config_view(server: McpServer, secrets: McpSecrets) -> ConfigView:
    if server.kind == "stdio":
        return {"command": server.command, "args": list(server.args), "env": _all_masked(secrets.env)}
    token = secrets.auth_token
    return {
        "server_url": server.url,
        "auth_header": server.auth_header or (None if token is None else "Authorization"),
        "auth_token": None if token is None else masked(token),
        "custom_headers": _all_masked(secrets.custom_headers),
    }


def masked(value: str) -> str:
    """What only names a secret of the agent is none itself."""
    return value if only_names_a_secret(value) else MASK


def is_mask(value: str) -> bool:
    return value in (MASK, _MASKED_BEARER)


def _all_masked(values: dict[str, str] | None) -> dict[str, str] | None:
    return None if values is None else {name: masked(value) for name, value in values.items()}

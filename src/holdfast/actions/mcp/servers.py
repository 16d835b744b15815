"""Keep MCP servers: create, read, change, delete. What is secret of them is sealed when it comes in.

Older clients know them by their names. For them tools are listed live: what the server says now.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from typing import Any, Final, cast

import msgspec

from holdfast import ids
from holdfast.actions.mcp.connect import Event, connect_stored, connect_unstored
from holdfast.actions.mcp.sync import (
    Surroundings,
    list_live,
    live_view,
    refresh_tools,
    renamed_tools,
    store_one,
    try_to_sync,
)
from holdfast.core.mcp import McpSecrets, McpServer, has_template, only_names_a_secret
from holdfast.core.records import Tool
from holdfast.engine.mcp_servers import McpServers
from holdfast.errors import Conflict, Invalid, NotFound, Unprocessable
from holdfast.ssrf_guard import NotPublic, plain_host, require_web_url
from holdfast.store import mcp_servers as server_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import IntegrityError, Transaction
from holdfast.tools.mcp.values import Called
from holdfast.wire.mcp import (
    Changed,
    LiveTool,
    McpServerCreate,
    McpServerUpdate,
    McpServerView,
    NamedServer,
    NamedServerUpdate,
    NamedServerView,
    is_mask,
    named_view,
    server_view,
)

_BEARER: Final = "Bearer "
_MAPS: Final = ("custom_headers", "env")


async def list_servers(around: Surroundings) -> list[McpServerView]:
    return [_shown(around, server) for server in await around.database.read(server_rows.list_servers)]


async def read_server(around: Surroundings, server_id: str) -> McpServerView:
    return _shown(around, await around.database.read(lambda tx: server_rows.get(tx, server_id)))


async def create_server(around: Surroundings, request: McpServerCreate, now_us: int) -> McpServerView:
    return _shown(around, await store_server(around, request, now_us))


async def update_server(around: Surroundings, server_id: str, request: McpServerUpdate, now_us: int) -> McpServerView:
    return _shown(around, await change_server(around, server_id, request, now_us))


async def store_server(around: Surroundings, request: McpServerCreate, now_us: int) -> McpServer:
    """Its tools are listed at once, if it can be reached; if not, `sync_error` says why, and a refresh tries again."""
    wanted = described_server(around, request, now_us)
    await require_usable(around.servers, wanted)

    async def write(tx: Transaction) -> None:
        if not await server_rows.insert(tx, wanted):
            raise _taken(wanted.name)

    await around.database.write(write)
    return await try_to_sync(around, wanted, now_us)


def described_server(around: Surroundings, request: McpServerCreate, now_us: int) -> McpServer:
    config: Any = request.config
    sent = config.model_dump()
    header = sent.get("auth_header")
    secrets = _merged(McpSecrets(), sent, set(sent), header)
    return McpServer(
        id=ids.new("mcp_server"),
        name=request.server_name,
        kind=config.mcp_server_type,
        url=sent.get("server_url"),
        auth_header=header,
        command=sent.get("command"),
        args=tuple(sent.get("args") or ()),
        secrets=around.servers.seal(secrets),
        organization_id=ids.DEFAULT_ORG,
        created_us=now_us,
        updated_us=now_us,
    )


async def change_server(around: Surroundings, server_id: str, request: McpServerUpdate, now_us: int) -> McpServer:
    before = await around.database.read(lambda tx: server_rows.get(tx, server_id))
    await require_usable(around.servers, _changed(around, before, request, now_us))

    async def write(tx: Transaction) -> tuple[McpServer, McpServer]:
        known = await server_rows.get(tx, server_id, lock=True)
        changed = _changed(around, known, request, now_us)
        await server_rows.update_server(tx, changed)
        await renamed_tools(tx, known, changed, now_us)
        if changed.destination != known.destination:
            await server_rows.forget_login(tx, server_id)
        return known, changed

    try:
        known, changed = await around.database.write(write)
    except IntegrityError as error:
        raise _taken(request.server_name or "") from error
    same_headers = (known.secrets, known.auth_header) == (changed.secrets, changed.auth_header)
    if same_headers and known.destination == changed.destination:
        return changed
    return await try_to_sync(around, changed, now_us)


async def delete_server(around: Surroundings, server_id: str) -> None:
    """With its tools, which agents lose, and its login."""

    async def write(tx: Transaction) -> None:
        await server_rows.get(tx, server_id, lock=True)
        for tool in await tool_rows.of_mcp_server(tx, server_id):
            await tool_rows.delete_tool(tx, tool.id)
        await server_rows.delete_server(tx, server_id)

    await around.database.write(write)


async def list_named(around: Surroundings) -> list[NamedServerView]:
    found = await around.database.read(server_rows.list_servers)
    return [named_view(server, around.servers.open(server)) for server in found]


async def add_named(around: Surroundings, request: NamedServer, now_us: int) -> list[NamedServerView]:
    await store_server(around, request.as_create(), now_us)
    return await list_named(around)


async def update_named(around: Surroundings, name: str, request: NamedServerUpdate, now_us: int) -> NamedServerView:
    known = await _named(around, name)
    changed = await change_server(around, known.id, request.as_update(known.kind), now_us)
    return named_view(changed, around.servers.open(changed))


async def delete_named(around: Surroundings, name: str) -> list[NamedServerView]:
    await delete_server(around, (await _named(around, name)).id)
    return await list_named(around)


async def try_out(around: Surroundings, request: NamedServer, now_us: int) -> list[LiveTool]:
    """Connects and lists, and stores nothing."""
    return live_view(await list_live(around, described_server(around, request.as_create(), now_us), None))


async def connect_described(around: Surroundings, request: NamedServer, now_us: int) -> AsyncGenerator[Event]:
    """If it is the stored server of that name, that one is connected to: only there can a login be kept."""
    wanted = described_server(around, request.as_create(), now_us)
    try:
        stored = await _named(around, wanted.name)
    except NotFound:
        stored = wanted
    if stored.destination == wanted.destination and stored.id != wanted.id:
        return connect_stored(around, stored, now_us)
    return connect_unstored(around, wanted)


async def live_tools(around: Surroundings, name: str) -> list[LiveTool]:
    return live_view(await list_live(around, await _named(around, name), None))


async def resync_named(around: Surroundings, name: str, agent_id: str | None, now_us: int) -> Changed:
    return await refresh_tools(around, (await _named(around, name)).id, agent_id, now_us)


async def store_live_tool(around: Surroundings, name: str, tool_name: str, now_us: int) -> Tool:
    return await store_one(around, await _named(around, name), tool_name, now_us)


async def call_live_tool(around: Surroundings, name: str, tool_name: str, arguments: dict[str, Any]) -> Called:
    """The tool need not be stored."""
    server = await _named(around, name)
    reached = await around.database.read(lambda tx: around.servers.reach(tx, server))
    return await around.servers.call(reached, tool_name, arguments, ids.new("call"))


async def _named(around: Surroundings, name: str) -> McpServer:
    return await around.database.read(lambda tx: server_rows.get_named(tx, name))


def _changed(around: Surroundings, known: McpServer, request: McpServerUpdate, now_us: int) -> McpServer:
    config: Any = request.config
    sent, fields = config.model_dump(), config.model_fields_set
    stored = around.servers.open(known)
    is_stdio = config.mcp_server_type == "stdio"
    if is_stdio != (known.kind == "stdio"):  # nothing of the other kind is of any use
        stored = McpSecrets()
        known = msgspec.structs.replace(known, url=None, auth_header=None, command=None, args=())
    header = sent.get("auth_header") if "auth_header" in fields else known.auth_header
    secrets = _merged(stored, sent, fields, header)
    changed = msgspec.structs.replace(
        known,
        name=request.server_name or known.name,
        kind=config.mcp_server_type,
        url=sent.get("server_url") or known.url,
        auth_header=header,
        command=sent.get("command") or known.command,
        args=tuple(sent["args"]) if sent.get("args") is not None else known.args,
        secrets=known.secrets if secrets == stored and known.secrets else around.servers.seal(secrets),
        updated_us=now_us,
    )
    if (changed.command if is_stdio else changed.url) is None:
        raise Unprocessable(f"A server of type {changed.kind} needs {'a command' if is_stdio else 'a server_url'}.")
    _require_given_again(known, changed, stored, {name: sent[name] for name in fields})
    return changed


def _require_given_again(known: McpServer, changed: McpServer, stored: McpSecrets, given: dict[str, Any]) -> None:
    """A secret goes where it was given for: otherwise whoever may change an address could read what is masked."""
    if _place(known) == _place(changed):
        return
    kept = [name for name in ("auth_token", *_MAPS) if _keeps(getattr(stored, name), given, name)]
    if kept:
        raise Invalid(
            f"The server's {'command' if changed.kind == 'stdio' else 'address'} changes, and its {', '.join(kept)} "
            "would be sent to the new one: send these values again, or null to drop them."
        )


def _keeps(stored: str | dict[str, str] | None, given: dict[str, Any], name: str) -> bool:
    """Whether something secret stays, because it was not sent or because its mask was."""
    before = stored if isinstance(stored, dict) else {name: stored}
    sent: Any = given.get(name)
    after = cast("dict[str, str]", sent) if isinstance(sent, dict) else {name: sent or ""}
    return any(
        value is not None and not only_names_a_secret(value) and (name not in given or is_mask(after.get(key, "")))
        for key, value in before.items()
    )


def _place(server: McpServer) -> tuple[object, ...]:
    if server.url is None:
        return server.command, server.args
    if has_template(server.url):
        return (server.url,)
    parts = require_web_url(server.url)
    return parts.scheme, plain_host(parts.hostname or ""), parts.port


def _merged(stored: McpSecrets, sent: dict[str, Any], fields: set[str], header: str | None) -> McpSecrets:
    """What is sent, with the stored value wherever the mask is. What is not sent stays."""
    changes: dict[str, Any] = {}
    if "auth_token" in fields:
        changes["auth_token"] = _merged_token(stored.auth_token, sent["auth_token"], header)
    for name in _MAPS:
        if name in fields:
            changes[name] = _merged_map(name, getattr(stored, name) or {}, sent[name])
    return msgspec.structs.replace(stored, **changes)


def _merged_token(stored: str | None, token: str | None, header: str | None) -> str | None:
    if token is None:
        return None
    if is_mask(token):
        if stored is None:
            raise Unprocessable("auth_token is the mask of a stored value, and none is stored: send the token itself.")
        return stored
    return token.removeprefix(_BEARER) if (header or "Authorization").lower() == "authorization" else token


def _merged_map(name: str, stored: dict[str, str], sent: dict[str, str] | None) -> dict[str, str] | None:
    if sent is None:
        return None
    if unknown := sorted(key for key, value in sent.items() if is_mask(value) and key not in stored):
        raise Unprocessable(
            f"{name} has the mask of a stored value for {', '.join(unknown)}, and none is stored: send it."
        )
    return {key: stored[key] if is_mask(value) else value for key, value in sent.items()}


async def require_usable(servers: McpServers, server: McpServer) -> None:
    """Judged again at every connection; here so that its writer is told at once. A name that cannot be looked up now
    may be there later."""
    if server.kind == "stdio":
        servers.require_stdio()
        return
    url = server.url or ""
    if has_template(url):
        return
    try:
        parts = require_web_url(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        await servers.guard.resolve(plain_host(parts.hostname or ""), port)
    except Invalid as error:
        raise Unprocessable(error.message) from error
    except NotPublic as error:
        raise Unprocessable(str(error.strerror)) from error
    except socket.gaierror:
        return


def _shown(around: Surroundings, server: McpServer) -> McpServerView:
    return server_view(server, around.servers.open(server))


def _taken(name: str) -> Conflict:
    return Conflict(f"There is an MCP server called {name!r} already: change it, or choose another name.")

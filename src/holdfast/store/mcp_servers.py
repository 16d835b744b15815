"""MCP servers, and logins at them. A name belongs to one server of an organization."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, select, update

from holdfast import ids
from holdfast.core.mcp import McpLogin, McpServer
from holdfast.errors import NotFound
from holdfast.store.statements import insert_into, insert_or_ignore
from holdfast.store.tables import mcp_logins, mcp_servers
from holdfast.store.transaction import Row, Transaction

_INSERT = insert_or_ignore(mcp_servers)
_ONE = select(mcp_servers).where(mcp_servers.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_NAMED = select(mcp_servers).where(
    mcp_servers.c.organization_id == bindparam("organization_id"), mcp_servers.c.name == bindparam("name")
)
_NAMED_LOCKED = _NAMED.with_for_update()
_ALL = (
    select(mcp_servers)
    .where(mcp_servers.c.organization_id == bindparam("organization_id"))
    .order_by(mcp_servers.c.created_us, mcp_servers.c.id)
)
_DELETE = delete(mcp_servers).where(mcp_servers.c.id == bindparam("id"))
_UPDATE = (
    update(mcp_servers)
    .where(mcp_servers.c.id == bindparam("of_server"))
    .values({column: bindparam(f"new_{column.name}") for column in mcp_servers.c if column.name != "id"})
)
_LOGIN_OF = select(mcp_logins).where(mcp_logins.c.server_id == bindparam("server_id"))
_LOGIN_WITH_STATE = select(mcp_logins).where(mcp_logins.c.state == bindparam("state")).with_for_update()
_FORGET_LOGIN = delete(mcp_logins).where(mcp_logins.c.server_id == bindparam("server_id"))
_INSERT_LOGIN = insert_into(mcp_logins)
_encode = msgspec.json.Encoder().encode
_decode_args = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_left_out = msgspec.json.Decoder(dict[str, str]).decode


async def insert(tx: Transaction, server: McpServer) -> bool:
    """False when the name is taken."""
    return await tx.execute(_INSERT, _columns(server)) == 1


async def get(tx: Transaction, server_id: str, *, lock: bool = False) -> McpServer:
    """`lock` keeps the row as it is until the transaction ends, for a change that depends on what it holds."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": server_id})
    if row is None:
        raise NotFound(f"MCP server {server_id} not found")
    return _record(row)


async def get_named(tx: Transaction, name: str) -> McpServer:
    row = await tx.fetch_one(_NAMED, {"organization_id": ids.DEFAULT_ORG, "name": name})
    if row is None:
        raise NotFound(f"MCP server {name!r} not found")
    return _record(row)


async def find_named(tx: Transaction, name: str) -> McpServer | None:
    """Locked, for rows that will refer to it."""
    row = await tx.fetch_one(_NAMED_LOCKED, {"organization_id": ids.DEFAULT_ORG, "name": name})
    return None if row is None else _record(row)


async def list_servers(tx: Transaction) -> list[McpServer]:
    """Oldest first."""
    return [_record(row) for row in await tx.fetch_all(_ALL, {"organization_id": ids.DEFAULT_ORG})]


async def update_server(tx: Transaction, server: McpServer) -> None:
    """Write the whole row. A name that another server has raises IntegrityError."""
    changed = {f"new_{name}": value for name, value in _columns(server).items() if name != "id"}
    await tx.execute(_UPDATE, {"of_server": server.id, **changed})


async def delete_server(tx: Transaction, server_id: str) -> None:
    """Its login goes with it. Its tools are deleted before, one by one: lists remember where they stood."""
    await tx.execute(_DELETE, {"id": server_id})


async def find_login(tx: Transaction, server_id: str) -> McpLogin | None:
    row = await tx.fetch_one(_LOGIN_OF, {"server_id": server_id})
    return None if row is None else _login(row)


async def find_login_with_state(tx: Transaction, state: str) -> McpLogin | None:
    """Locked: whoever comes with a state is about to use it, and it can be used once."""
    row = await tx.fetch_one(_LOGIN_WITH_STATE, {"state": state})
    return None if row is None else _login(row)


async def save_login(tx: Transaction, login: McpLogin) -> None:
    """In the place of the one that its server had."""
    await tx.execute(_FORGET_LOGIN, {"server_id": login.server_id})
    await tx.execute(_INSERT_LOGIN, msgspec.structs.asdict(login))


async def forget_login(tx: Transaction, server_id: str) -> None:
    await tx.execute(_FORGET_LOGIN, {"server_id": server_id})


def _columns(server: McpServer) -> dict[str, Any]:
    columns = msgspec.structs.asdict(server)
    columns["args"] = _encode(server.args).decode()
    columns["left_out"] = _encode(server.left_out).decode()
    return columns


def _record(row: Row) -> McpServer:
    fields: dict[str, Any] = {name: row[name] for name in McpServer.__struct_fields__}
    fields["args"] = _decode_args(fields["args"])
    fields["left_out"] = _decode_left_out(fields["left_out"])
    return McpServer(**fields)


def _login(row: Row) -> McpLogin:
    fields: dict[str, Any] = {name: row[name] for name in McpLogin.__struct_fields__}
    return McpLogin(**fields)

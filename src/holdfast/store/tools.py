"""Tools and the agents they are attached to. A name belongs to one tool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, bindparam, delete, func, or_, select, update

from holdfast.core.changes import Change
from holdfast.core.records import Tool
from holdfast.errors import NotFound
from holdfast.store.agents import SealedSecret
from holdfast.store.blocks import contains_text
from holdfast.store.paging import Ordering, Page, fetch_page, save_tombstone
from holdfast.store.statements import in_array, insert_or_ignore
from holdfast.store.tables import agent_secrets, agent_tools, tools
from holdfast.store.transaction import Row, Transaction, flag

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


class ToolFilter(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    names: tuple[str, ...] | None = None
    tool_ids: tuple[str, ...] | None = None
    search: str | None = None  # in the name or the description
    types: tuple[str, ...] | None = None
    exclude_types: tuple[str, ...] = ()
    agent_id: str | None = None
    mcp_server_id: str | None = None


_BY_AGE = Ordering(sort=tools.c.created_us, id=tools.c.id, what="Tool")
_INSERT = insert_or_ignore(tools)
_ATTACH = insert_or_ignore(agent_tools)
_ONE = select(tools).where(tools.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update()
_NAMED_LOCKED = select(tools).where(tools.c.name == bindparam("name")).with_for_update()
_MANY = select(tools).where(in_array(tools.c.id, "ids"))
_MANY_KEPT = _MANY.with_for_update(read=True, key_share=True)
_MANY_NAMED_KEPT = select(tools).where(in_array(tools.c.name, "names")).with_for_update(read=True, key_share=True)
_OF_MCP_SERVER = (
    select(tools).where(tools.c.mcp_server_id == bindparam("server_id")).order_by(tools.c.id).with_for_update()
)
_WITH_SECRETS = (
    select(
        tools,
        agent_secrets.c.id.label("secret_id"),
        agent_secrets.c.key.label("secret_key"),
        agent_secrets.c.value_enc.label("secret_value_enc"),
        agent_secrets.c.description.label("secret_description"),
    )
    .outerjoin(agent_secrets, agent_secrets.c.agent_id == bindparam("agent_id"))
    .where(tools.c.id == bindparam("id"))
    .order_by(agent_secrets.c.key)
)
_PAIRS = select(agent_tools.c.agent_id, agent_tools.c.tool_id).where(in_array(agent_tools.c.agent_id, "ids"))
_OF_AGENT = (
    select(tools)
    .join(agent_tools, agent_tools.c.tool_id == tools.c.id)
    .where(agent_tools.c.agent_id == bindparam("agent_id"))
)
_AGENTS_OF = (
    select(agent_tools.c.agent_id).where(agent_tools.c.tool_id == bindparam("tool_id")).order_by(agent_tools.c.agent_id)
)
_DETACH = delete(agent_tools).where(
    agent_tools.c.agent_id == bindparam("agent_id"), agent_tools.c.tool_id == bindparam("tool_id")
)
_DETACH_ALL = delete(agent_tools).where(agent_tools.c.agent_id == bindparam("agent_id"))
_DELETE = delete(tools).where(tools.c.id == bindparam("id")).returning(tools.c.id, tools.c.created_us)
_UPDATE = (
    update(tools)
    .where(tools.c.id == bindparam("of_tool"))
    .values({column: bindparam(f"new_{column.name}") for column in tools.c if column.name not in ("id", "created_us")})
)


async def insert(tx: Transaction, tool: Tool) -> bool:
    """False when the name, or the id, is taken."""
    return await tx.execute(_INSERT, _columns(tool)) == 1


async def get(tx: Transaction, tool_id: str, *, lock: bool = False) -> Tool:
    """`lock` keeps the row as it is until the transaction ends, for a change that depends on what it holds."""
    row = await tx.fetch_one(_ONE_LOCKED if lock else _ONE, {"id": tool_id})
    if row is None:
        raise NotFound(f"Tool {tool_id} not found")
    return record_of(row)


async def find_with_secrets(tx: Transaction, tool_id: str, agent_id: str) -> tuple[Tool, list[SealedSecret]] | None:
    """The tool and the secrets of an agent that calls it, in one statement: every call of a tool reads both."""
    rows = await tx.fetch_all(_WITH_SECRETS, {"id": tool_id, "agent_id": agent_id})
    if not rows:
        return None
    secrets = [
        SealedSecret(row["secret_id"], row["secret_key"], bytes(row["secret_value_enc"]), row["secret_description"])
        for row in rows
        if row["secret_id"] is not None
    ]
    return record_of(rows[0]), secrets


async def find_named(tx: Transaction, name: str) -> Tool | None:
    """Locked until the transaction ends: whoever looks a tool up by its name is about to write it."""
    row = await tx.fetch_one(_NAMED_LOCKED, {"name": name})
    return None if row is None else record_of(row)


async def find_many(tx: Transaction, tool_ids: Collection[str], *, keep: bool = False) -> dict[str, Tool]:
    """`keep` holds off their deletion until the transaction ends, for rows that will refer to them."""
    if not tool_ids:
        return {}
    rows = await tx.fetch_all(_MANY_KEPT if keep else _MANY, {"ids": list(tool_ids)})
    return {row["id"]: record_of(row) for row in rows}


async def find_many_named(tx: Transaction, names: Collection[str]) -> dict[str, Tool]:
    """Kept from deletion until the transaction ends, because they are looked up to be attached."""
    if not names:
        return {}
    return {row["name"]: record_of(row) for row in await tx.fetch_all(_MANY_NAMED_KEPT, {"names": list(names)})}


async def of_agent(tx: Transaction, agent_id: str) -> list[Tool]:
    """Oldest first."""
    return by_age(record_of(row) for row in await tx.fetch_all(_OF_AGENT, {"agent_id": agent_id}))


async def of_agents(tx: Transaction, agent_ids: Collection[str]) -> dict[str, list[Tool]]:
    """The tools of each agent, oldest first. A tool that many share is read once."""
    pairs = await tx.fetch_all(_PAIRS, {"ids": list(agent_ids)})
    found = await find_many(tx, {pair["tool_id"] for pair in pairs})
    attached: dict[str, list[Tool]] = {}
    for pair in pairs:
        attached.setdefault(pair["agent_id"], []).append(found[pair["tool_id"]])
    for listed in attached.values():
        listed.sort(key=_age)
    return attached


async def of_mcp_server(tx: Transaction, server_id: str) -> list[Tool]:
    """Oldest first, and locked: whoever asks is about to write them."""
    found = [record_of(row) for row in await tx.fetch_all(_OF_MCP_SERVER, {"server_id": server_id})]
    return sorted(found, key=_age)


async def agents_of(tx: Transaction, tool_id: str) -> list[str]:
    """Those that it is attached to."""
    return [row["agent_id"] for row in await tx.fetch_all(_AGENTS_OF, {"tool_id": tool_id})]


async def update_tool(tx: Transaction, tool: Tool) -> None:
    """Write the whole row. A name that another tool has raises IntegrityError."""
    changed = {f"new_{name}": value for name, value in _columns(tool).items() if name not in ("id", "created_us")}
    await tx.execute(_UPDATE, {"of_tool": tool.id, **changed})


async def delete_tool(tx: Transaction, tool_id: str) -> None:
    """Gone from every agent as well."""
    row = await tx.fetch_one(_DELETE, {"id": tool_id})
    if row is None:
        raise NotFound(f"Tool {tool_id} not found")
    await save_tombstone(tx, row, (_BY_AGE,))


async def attach_many(tx: Transaction, agent_id: str, tool_ids: Sequence[str]) -> None:
    """Attaching twice is attaching once."""
    if tool_ids:
        await tx.execute_many(_ATTACH, [{"agent_id": agent_id, "tool_id": tool_id} for tool_id in tool_ids])
        tx.changes.append(Change("agent", agent_id, "changed", agent_id))


async def detach(tx: Transaction, agent_id: str, tool_id: str) -> bool:
    tx.changes.append(Change("agent", agent_id, "changed", agent_id))
    return await tx.execute(_DETACH, {"agent_id": agent_id, "tool_id": tool_id}) == 1


async def detach_all(tx: Transaction, agent_id: str) -> None:
    await tx.execute(_DETACH_ALL, {"agent_id": agent_id})


async def list_tools(tx: Transaction, filters: ToolFilter, page: Page) -> list[Tool]:
    query = select(tools).where(*_conditions(filters))
    return [record_of(row) for row in await fetch_page(tx, query, _BY_AGE, page)]


async def count_tools(tx: Transaction, filters: ToolFilter) -> int:
    row = await tx.fetch_one(select(func.count().label("found")).select_from(tools).where(*_conditions(filters)))
    return 0 if row is None else row["found"]


def by_age(found: Iterable[Tool]) -> list[Tool]:
    """Oldest first."""
    return sorted(found, key=_age)


def _age(tool: Tool) -> tuple[int, str]:
    return tool.created_us, tool.name


def _conditions(filters: ToolFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if filters.name is not None:
        conditions.append(tools.c.name == filters.name)
    listed = {tools.c.name: filters.names, tools.c.id: filters.tool_ids, tools.c.tool_type: filters.types}
    conditions += [in_array(column, values) for column, values in listed.items() if values is not None]
    if filters.exclude_types:
        conditions.append(~in_array(tools.c.tool_type, filters.exclude_types))
    if filters.search:
        conditions.append(
            or_(contains_text(tools.c.name, filters.search), contains_text(tools.c.description, filters.search))
        )
    if filters.mcp_server_id is not None:
        conditions.append(tools.c.mcp_server_id == filters.mcp_server_id)
    if filters.agent_id is not None:
        conditions.append(
            tools.c.id.in_(select(agent_tools.c.tool_id).where(agent_tools.c.agent_id == filters.agent_id))
        )
    return conditions


def record_of(row: Row | Mapping[str, Any]) -> Tool:
    return Tool(
        id=row["id"],
        name=row["name"],
        tool_type=row["tool_type"],
        description=row["description"],
        json_schema=_decode(row["json_schema"]),
        source_code=row["source_code"],
        source_type=row["source_type"],
        args_json_schema=_decode_optional(row["args_json_schema"]),
        tags=_decode_tags(row["tags"]),
        return_char_limit=row["return_char_limit"],
        pip_requirements=_decode_optional(row["pip_requirements"]),
        npm_requirements=_decode_optional(row["npm_requirements"]),
        default_requires_approval=flag(row["default_requires_approval"]),
        enable_parallel_execution=bool(row["enable_parallel_execution"]),
        metadata=_decode(row["metadata"]),
        project_id=row["project_id"],
        version=row["version"],
        created_us=row["created_us"],
        updated_us=row["updated_us"],
        mcp_server_id=row["mcp_server_id"],
        mcp_name=row["mcp_name"],
    )


def _columns(tool: Tool) -> Mapping[str, Any]:
    return {
        "id": tool.id,
        "name": tool.name,
        "tool_type": tool.tool_type,
        "description": tool.description,
        "json_schema": _text(tool.json_schema),
        "source_code": tool.source_code,
        "source_type": tool.source_type,
        "args_json_schema": _optional_text(tool.args_json_schema),
        "tags": _text(tool.tags),
        "return_char_limit": tool.return_char_limit,
        "pip_requirements": _optional_text(tool.pip_requirements),
        "npm_requirements": _optional_text(tool.npm_requirements),
        "default_requires_approval": tool.default_requires_approval,
        "enable_parallel_execution": tool.enable_parallel_execution,
        "metadata": _text(tool.metadata),
        "project_id": tool.project_id,
        "version": tool.version,
        "created_us": tool.created_us,
        "updated_us": tool.updated_us,
        "mcp_server_id": tool.mcp_server_id,
        "mcp_name": tool.mcp_name,
    }


def _text(value: object) -> str:
    return _encode(value).decode()


def _optional_text(value: object | None) -> str | None:
    return None if value is None else _text(value)


def _decode_optional(text: str | None) -> Any:
    return None if text is None else _decode(text)

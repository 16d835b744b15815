"""Write tools: create or replace by name, change, delete. A new version only when source or schema really change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from holdfast import ids
from holdfast.actions.tools.base_tools import is_base_tool
from holdfast.core import egress_policy
from holdfast.core.records import Tool
from holdfast.core.tool_rules import with_renamed
from holdfast.errors import Invalid, Unprocessable
from holdfast.store import agents as agent_rows
from holdfast.store import tools as tool_rows
from holdfast.store.transaction import Database, IntegrityError, Transaction
from holdfast.tools.sandbox.contract import MOST_EGRESS_ENTRIES
from holdfast.tools.schema import check_parameters, derive_schema
from holdfast.wire.tools import Requirement, ToolCreate, ToolUpdate

# What vendors accept as the name of a function.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_TUNABLE: Final = frozenset(
    {"tags", "return_char_limit", "default_requires_approval", "enable_parallel_execution", "metadata"}
)
_NULLABLE: Final = frozenset({"default_requires_approval", "pip_requirements", "npm_requirements"})


async def upsert_tool(database: Database, request: ToolCreate, project_id: str | None, now_us: int) -> Tool:
    """The same name is the same tool: it keeps its id, and its tags when the request brings none."""
    return await database.write(lambda tx: _upsert(tx, request, project_id, now_us))


async def _upsert(tx: Transaction, request: ToolCreate, project_id: str | None, now_us: int) -> Tool:
    return await store_named(tx, described_tool(request, project_id, now_us), now_us)


async def store_named(tx: Transaction, wanted: Tool, now_us: int) -> Tool:
    """In the place of the tool that has its name, if there is one."""
    known = await tool_rows.find_named(tx, wanted.name)
    if known is None:
        if await tool_rows.insert(tx, wanted):
            return wanted
        # Another request wrote the name between our look and our insert; now there is one to replace.
        known = await tool_rows.find_named(tx, wanted.name)
    if known is None or is_base_tool(known):
        raise Invalid(f"{wanted.name!r} is the name of a tool that comes with the server. Choose another name.")
    if known.mcp_server_id is not None:
        raise Invalid(f"{wanted.name!r} is the name of a tool of an MCP server. Choose another name.")
    replaced = msgspec.structs.replace(
        wanted,
        id=known.id,
        tags=wanted.tags or known.tags,
        metadata=wanted.metadata or known.metadata,
        project_id=wanted.project_id or known.project_id,
        created_us=known.created_us,
    )
    return await _save(tx, known, replaced, now_us)


async def update_tool(database: Database, tool_id: str, request: ToolUpdate, now_us: int) -> Tool:
    async def write(tx: Transaction) -> Tool:
        return await _update(tx, tool_id, request, now_us)

    try:
        return await database.write(write)
    except IntegrityError as error:
        if request.json_schema is None:
            raise
        name = request.json_schema.get("name")
        raise Invalid(f"A tool named {name!r} already exists in your organization. Choose another name.") from error


async def _update(tx: Transaction, tool_id: str, request: ToolUpdate, now_us: int) -> Tool:
    await _lock_agents(tx, tool_id, request)
    known = await tool_rows.get(tx, tool_id, lock=True)
    changes = _sent(request)
    if is_base_tool(known) and (fixed := sorted(changes.keys() - _TUNABLE)):
        raise Invalid(f"{known.name!r} comes with the server: its {', '.join(fixed)} cannot be changed.")
    if known.mcp_server_id is not None and (fixed := sorted(changes.keys() - _TUNABLE)):
        raise Invalid(f"{known.name!r} is described by its MCP server: its {', '.join(fixed)} cannot be changed here.")
    if "source_code" in changes or "json_schema" in changes or "args_json_schema" in changes:
        changes |= _new_schema(known, changes)
    saved = await _save(tx, known, msgspec.structs.replace(known, **changes), now_us)
    if saved.name != known.name:
        await _rename_in_rules(tx, known, saved.name, now_us)
    return saved


async def _lock_agents(tx: Transaction, tool_id: str, request: ToolUpdate) -> None:
    """Of a tool that may be renamed; before the tool itself, as whoever attaches one does."""
    if request.json_schema is None or request.json_schema.get("name") == (await tool_rows.get(tx, tool_id)).name:
        return
    for agent_id in await tool_rows.agents_of(tx, tool_id):
        await agent_rows.get(tx, agent_id, lock=True)


async def _rename_in_rules(tx: Transaction, tool: Tool, new: str, now_us: int) -> None:
    """Rules go by name: without this, one that asks for approval would let the renamed tool pass."""
    for agent_id in await tool_rows.agents_of(tx, tool.id):
        agent = await agent_rows.get(tx, agent_id, lock=True)
        rules = with_renamed(agent.tool_rules, tool.name, new)
        if rules != agent.tool_rules:
            await agent_rows.update_agent(tx, msgspec.structs.replace(agent, tool_rules=rules, updated_us=now_us))


async def delete_tool(database: Database, tool_id: str) -> None:
    """One that comes with the server leaves its agents, and stays as it was tuned: it may have to ask for approval."""

    async def write(tx: Transaction) -> None:
        tool = await tool_rows.get(tx, tool_id, lock=True)
        await tool_rows.delete_tool(tx, tool_id)
        if is_base_tool(tool):
            await tool_rows.insert(tx, tool)

    await database.write(write)


def described_tool(request: ToolCreate, project_id: str | None, now_us: int) -> Tool:
    schema = schema_of(request.source_code, request.source_type, request.json_schema, request.args_json_schema)
    return Tool(
        id=ids.new("tool"),
        name=schema["name"],
        tool_type="custom",
        description=request.description or schema.get("description") or "",
        json_schema=schema,
        source_code=request.source_code,
        source_type=request.source_type,
        args_json_schema=request.args_json_schema,
        tags=_tags(request.tags or ()),
        return_char_limit=request.return_char_limit,
        pip_requirements=_requirements(request.pip_requirements),
        npm_requirements=_requirements(request.npm_requirements),
        default_requires_approval=request.default_requires_approval,
        enable_parallel_execution=bool(request.enable_parallel_execution),
        project_id=project_id,
        created_us=now_us,
        updated_us=now_us,
    )


def schema_of(
    source: str,
    source_type: str,
    json_schema: dict[str, Any] | None,
    args_json_schema: dict[str, Any] | None,
    name: str | None = None,
) -> dict[str, Any]:
    """What a model is told of the tool: as given, or else read from the source."""
    if source_type not in ("python", "typescript"):
        raise Invalid(f"source_type must be python or typescript, not {source_type!r}.")
    if json_schema is not None:
        schema = _checked_schema(json_schema)
        _check_defined(source, source_type, schema["name"])
        return schema
    if source_type == "typescript":
        raise Unprocessable("A TypeScript tool needs its json_schema: it cannot be read from the source.")
    return derive_schema(source, name, args_json_schema)


def _new_schema(known: Tool, changes: dict[str, Any]) -> dict[str, Any]:
    """The schema follows the source unless the request brings one. Stale descriptions of arguments are dropped.

    A schema alone may give the tool another name than its function has.
    """
    source = changes.get("source_code", known.source_code) or ""
    source_type = changes.get("source_type", known.source_type)
    given, has_source = changes.get("json_schema"), "source_code" in changes
    arguments = changes.get("args_json_schema", None if has_source else known.args_json_schema)
    if given is None and has_source:
        _check_defined(source, source_type, known.name)
    if given is not None and not has_source:
        schema = _checked_schema(given)
    else:
        schema = schema_of(source, source_type, given, arguments, None if given else known.name)
    derived: dict[str, Any] = {"json_schema": schema, "name": schema["name"], "args_json_schema": arguments}
    if "description" not in changes:
        derived["description"] = schema.get("description") or known.description
    return derived


async def _save(tx: Transaction, known: Tool, wanted: Tool, now_us: int) -> Tool:
    same_code = (known.source_code, known.json_schema) == (wanted.source_code, wanted.json_schema)
    unstamped = msgspec.structs.replace(wanted, version=known.version, updated_us=known.updated_us)
    if unstamped == known:
        return known
    tool = msgspec.structs.replace(wanted, version=known.version + (not same_code), updated_us=now_us)
    await tool_rows.update_tool(tx, tool)
    return tool


def _sent(request: ToolUpdate) -> dict[str, Any]:
    """Fields of Tool that the request sets; null clears what may be empty and leaves the rest alone."""
    sent: dict[str, Any] = {field.removesuffix("_"): getattr(request, field) for field in request.model_fields_set}
    changes = {name: value for name, value in sent.items() if value is not None or name in _NULLABLE}
    if request.tags is not None:
        changes["tags"] = _tags(request.tags)
    for name in ("pip_requirements", "npm_requirements"):
        if name in changes:
            changes[name] = _requirements(changes[name])
    return changes


def _tags(given: Iterable[str]) -> tuple[str, ...]:
    tags = tuple(dict.fromkeys(given))
    try:
        policy = egress_policy.of_tags(tags)
    except egress_policy.UnknownEgress as error:
        raise Unprocessable(str(error)) from error
    if policy is not None and len(policy.allow) > MOST_EGRESS_ENTRIES:
        raise Unprocessable(
            f"The egress:allow tags list {len(policy.allow)} hosts; at most {MOST_EGRESS_ENTRIES} are accepted. List "
            "networks such as 203.0.113.0/24 instead."
        )
    return tags


def _checked_schema(schema: dict[str, Any]) -> dict[str, Any]:
    name, parameters = schema.get("name"), schema.get("parameters", {"type": "object", "properties": {}})
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"json_schema needs a name of at most 64 letters, digits, underscores and hyphens that does not begin "
            f"with a digit, not {name!r}."
        )
    if not isinstance(parameters, dict) or not isinstance(schema.get("description", ""), str | None):
        raise Invalid("json_schema must look like {name, description, parameters: {type: object, properties: {…}}}.")
    check_parameters("json_schema.parameters", cast("dict[str, Any]", parameters))
    return {**schema, "name": name, "parameters": parameters}


def _check_defined(source: str, source_type: str, name: str) -> None:
    keyword = "def" if source_type == "python" else "function"
    defined = _defines_python(source, name) if source_type == "python" else f"function {name}" in source
    if not defined:
        raise Invalid(
            f"Tool name mismatch: the tool is called {name!r}, but its source has no `{keyword} {name}`. "
            f"Rename the function, or send a json_schema with its name."
        )


def _defines_python(source: str, name: str) -> bool:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise Invalid(f"The source is not valid Python: {error}") from error
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name for node in body)


def _requirements(sent: list[Requirement] | None) -> list[dict[str, Any]] | None:
    return None if sent is None else [requirement.model_dump() for requirement in sent]

"""The MCP servers of an agent file. No file holds their secrets, and none is connected to: the file brings the tools.

A server whose name is known here is used as it is: otherwise a file could send its secrets elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast import ids
from holdfast.actions.mcp.servers import require_usable
from holdfast.core.mcp import McpSecrets, McpServer, only_names_a_secret
from holdfast.engine.mcp_servers import McpServers
from holdfast.errors import Invalid, Unprocessable
from holdfast.store import mcp_servers as server_rows
from holdfast.store.transaction import Transaction
from holdfast.wire.agent_file_sections import FileServer, ServerEntry, ServerExtras
from holdfast.wire.agent_files import AgentFile


class ServerPlan(msgspec.Struct, frozen=True):
    local: str
    where: str
    server: McpServer
    unset: Sequence[str]  # what is secret of it, and not in the file


async def planned_servers(file: AgentFile, servers: McpServers, warnings: list[str], now_us: int) -> list[ServerPlan]:
    """One that could not be added here by hand is left out."""
    plans: list[ServerPlan] = []
    for number, (local, entry) in enumerate(file.sections.servers.items()):
        server = _described(entry.server, servers, now_us + number)
        try:
            await require_usable(servers, server)
        except (Invalid, Unprocessable) as error:
            warnings.append(f"{entry.where}: it is left out, and its tools come without it. {error.message}")
            continue
        plans.append(ServerPlan(local, entry.where, server, _unset(entry)))
    return plans


async def write_servers(tx: Transaction, plans: Sequence[ServerPlan], warnings: list[str]) -> dict[str, McpServer]:
    """By their ids in the file. In the order of their names, so that two imports at once do not wait for each other."""
    stored: dict[str, McpServer] = {}
    for plan in sorted(plans, key=lambda plan: plan.server.name):
        known = await server_rows.find_named(tx, plan.server.name)
        if known is None and not await server_rows.insert(tx, plan.server):
            known = await server_rows.find_named(tx, plan.server.name)
        stored[plan.local] = plan.server if known is None else known
        if known is None and plan.unset:
            warnings.append(
                f"{plan.where}: it has no {', '.join(plan.unset)} yet, because no file holds secrets: set them"
            )
        elif known is not None and known.destination != plan.server.destination:
            warnings.append(
                f"{plan.where}: the MCP server of this name that is here has another address or command; it stays as "
                "it is, and the tools of the file are called there"
            )
    return stored


def _described(told: FileServer, servers: McpServers, now_us: int) -> McpServer:
    access = told.access or ServerExtras()
    token = access.auth_token
    secrets = McpSecrets(
        auth_token=token if token and only_names_a_secret(token) else None,
        custom_headers=_named_only(access.custom_headers),
        env=_named_only(access.env),
    )
    stdio = told.stdio_config if told.server_type == "stdio" else None
    return McpServer(
        id=ids.new("mcp_server"),
        name=told.server_name,
        kind=told.server_type,
        url=told.server_url if stdio is None else None,
        auth_header=access.auth_header,
        command=None if stdio is None else stdio.command,
        args=tuple((stdio.args if stdio else None) or ()),
        secrets=servers.seal(secrets),
        organization_id=ids.DEFAULT_ORG,
        created_us=now_us,
        updated_us=now_us,
    )


def _named_only(told: dict[str, str] | None) -> dict[str, str] | None:
    """Values that name a secret of the agent's are all that a file can tell."""
    kept = {name: value for name, value in (told or {}).items() if only_names_a_secret(value)}
    return kept or None


def _unset(entry: ServerEntry) -> list[str]:
    access = entry.server.access or ServerExtras()
    maps: dict[str, Mapping[str, str]] = {"header": access.custom_headers or {}, "variable": access.env or {}}
    missing = [
        f"{what} {name}"
        for what, told in maps.items()
        for name, value in told.items()
        if not only_names_a_secret(value)
    ]
    is_unset = access.auth_token is not None and not only_names_a_secret(access.auth_token)
    return [*(["auth_token"] if is_unset else []), *missing]

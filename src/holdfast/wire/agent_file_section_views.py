"""Groups, folders with their files, MCP servers and identities as they are written into agent files.

Files of other programs forbid keys that they do not know in folders, files and windows, so these have none of ours.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.core.mcp import McpSecrets, McpServer, only_names_a_secret
from holdfast.core.records import AgentFile, File, Folder, Group, Identity, Tool
from holdfast.wire.agent_file_ids import LocalIds
from holdfast.wire.times import optional_timestamp

SLEEPTIME: Final = "sleeptime"


class StoredFile(msgspec.Struct, frozen=True):
    """A file with its text; None: it was not read yet, or could not be."""

    file: File
    text: str | None = None


class StoredServer(msgspec.Struct, frozen=True):
    server: McpServer
    secrets: McpSecrets


def group_view(group: Group, local: LocalIds, *, enabled: bool) -> dict[str, Any]:
    """`enabled`: whether the agents of a sleeptime group are set to work at all."""
    config: dict[str, Any] = {"manager_type": group.manager_type}
    if group.manager_agent_id is not None:
        config["manager_agent_id"] = local.find("agent", group.manager_agent_id)
    if group.manager_type in ("round_robin", "dynamic"):
        config["max_turns"] = group.max_turns
    if group.manager_type == "dynamic":
        config["termination_token"] = group.termination_token
    if group.manager_type == SLEEPTIME:
        config["sleeptime_agent_frequency"] = group.sleeptime_agent_frequency
    shared = [local.find("block", block_id) for block_id in group.shared_block_ids]
    return {
        "agent_ids": [local.find("agent", agent_id) for agent_id in group.agent_ids],
        "description": group.description,
        "manager_config": config,
        "project_id": None,
        "shared_block_ids": sorted((block for block in shared if block is not None), key=_number),
        "hidden": group.hidden,
        "id": local.of("group", group.id),
        **({"enable_sleeptime": enabled} if group.manager_type == SLEEPTIME else {}),
    }


def folder_view(folder: Folder, local: LocalIds) -> dict[str, Any]:
    config = folder.embedding_config or {}
    return {
        "name": folder.name,
        "description": folder.description,
        "instructions": folder.instructions,
        "metadata": folder.metadata,
        "embedding": None if folder.embedding == config.get("handle") else folder.embedding,
        "embedding_chunk_size": folder.chunk_size,
        "embedding_config": folder.embedding_config,
        "id": local.of("source", folder.id),
    }


def file_view(stored: StoredFile, folder: Folder, local: LocalIds) -> dict[str, Any]:
    file = stored.file
    return {
        "source_id": local.of("source", folder.id),
        "file_name": f"{folder.name}/{file.name}",
        "original_file_name": file.original_name,
        "file_path": None,
        "file_type": file.media_type,
        "file_size": file.size,
        "file_creation_date": None,
        "file_last_modified_date": None,
        "processing_status": file.status,
        "error_message": file.error,
        "total_chunks": file.total_chunks,
        "chunks_embedded": file.chunks_embedded,
        "content": stored.text,
        "id": local.of("file", file.id),
    }


def window_view(seen: AgentFile, local: LocalIds) -> dict[str, Any]:
    """What is visible follows from the file and the lines."""
    return {
        "agent_id": local.of("agent", seen.agent_id),
        "file_id": local.of("file", seen.file_id),
        "source_id": local.of("source", seen.folder_id),
        "file_name": seen.full_name,
        "is_open": seen.is_open,
        "visible_content": None,
        "last_accessed_at": optional_timestamp(seen.accessed_us),
        "start_line": seen.first_line,
        "end_line": seen.last_line,
        "id": local.of("file_agent", seen.id),
    }


def server_view(stored: StoredServer, local: LocalIds) -> dict[str, Any]:
    """Without what is secret: its names are there, and values that only name a secret of the agent."""
    server, secrets = stored.server, stored.secrets
    stdio = {"server_name": server.name, "type": "stdio", "command": server.command, "args": list(server.args)}
    access = {
        "auth_header": server.auth_header,
        "auth_token": None if secrets.auth_token is None else _told(secrets.auth_token),
        "custom_headers": _all_told(secrets.custom_headers),
        "env": _all_told(secrets.env),
    }
    return {
        "id": local.of("mcp_server", server.id),
        "server_type": server.kind,
        "server_name": server.name,
        "server_url": server.url,
        "stdio_config": stdio if server.kind == "stdio" else None,
        "metadata_": {},
        "access": {name: value for name, value in access.items() if value is not None},
    }


def mcp_metadata(tool: Tool, local: LocalIds) -> dict[str, Any]:
    """What a tool says of its MCP server, which has another id in the file."""
    about: Any = tool.metadata.get("mcp")
    if tool.mcp_server_id is None or not isinstance(about, dict):
        return tool.metadata
    named = {"server_id": local.find("mcp_server", tool.mcp_server_id), "tool_name": tool.mcp_name}
    return {**tool.metadata, "mcp": {**about, **named}}


def identity_view(identity: Identity, local: LocalIds) -> dict[str, Any]:
    """With those of its agents and blocks that are in the file."""
    agents = [local.find("agent", agent_id) for agent_id in identity.agent_ids]
    blocks = [local.find("block", block_id) for block_id in identity.block_ids]
    return {
        "id": local.of("identity", identity.id),
        "identifier_key": identity.identifier_key,
        "name": identity.name,
        "identity_type": identity.identity_type,
        "properties": list(identity.properties),
        "agent_ids": sorted((each for each in agents if each is not None), key=_number),
        "block_ids": sorted((each for each in blocks if each is not None), key=_number),
    }


def _number(local: str) -> int:
    return int(local.rpartition("-")[2])


def _told(secret: str) -> str:
    return secret if only_names_a_secret(secret) else ""


def _all_told(secrets: dict[str, str] | None) -> dict[str, str] | None:
    return None if secrets is None else {name: _told(value) for name, value in secrets.items()}

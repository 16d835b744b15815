"""Agent files (`.af`) as they are written: no record keeps the id that it has here, and no secret its value.

Ids are numbers, in the order in which records are met. Files of other programs forbid keys that they do not know in
folders, files and windows, so these have none of ours. What the format has no place for in a message, such as which
rows came from one reply, stands in keys of its own, which other readers ignore.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, cast

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core import model_history
from holdfast.core.mcp import McpSecrets, McpServer, only_names_a_secret
from holdfast.core.messages import Approve, ClientReturn, Deny, Message, Summary, Thoughts, ToolCall, ToolReturn
from holdfast.core.model_history import are_one_reply
from holdfast.core.records import Agent, AgentFile, Archive, Block, File, Folder, Group, Identity, Passage, Tool
from holdfast.wire.agent_files import MADE_HERE
from holdfast.wire.blocks import block_view
from holdfast.wire.bounds import MAX_ITEMS, Handle, Id, Many, Name, Source
from holdfast.wire.messages import stored_call, stored_decision, stored_part, stored_return
from holdfast.wire.model_settings import llm_config_view, settings_view
from holdfast.wire.times import optional_timestamp, timestamp
from holdfast.wire.tool_rules import rules_view
from holdfast.wire.tools import tool_view

# What may be said when an agent is created, and what an agent that exists does not say.
_UNSAID: Final[dict[str, Any]] = {
    "memory_blocks": [],
    "tools": [],
    "folder_ids": None,
    "initial_message_sequence": None,
    "include_base_tools": False,
    "include_multi_agent_tools": False,
    "include_base_tool_rules": False,
    "include_default_source": False,
    "model": None,
    "context_window_limit": None,
    "embedding_chunk_size": None,
    "max_tokens": None,
    "max_reasoning_tokens": None,
    "enable_reasoner": False,
    "reasoning": None,
    "from_template": None,
    "template": False,
    "project": None,
    "memory_variables": None,
    "project_id": None,
    "template_id": None,
    "base_template_id": None,
    "identity_ids": None,
    "parallel_tool_calls": None,
}
SLEEPTIME: Final = "sleeptime"


class Skill(BaseModel):
    name: Name
    files: Annotated[dict[Name, Source], Field(max_length=MAX_ITEMS)] | None = None
    source_url: Handle | None = None


class ExportAgentRequest(BaseModel):
    skills: Many[Skill] = []
    conversation_id: Id | None = None
    scrub_messages: bool = False
    include_archives: bool = False
    include_identities: bool = False
    include_files: bool = True


class ImportedView(TypedDict):
    """`repairs` and `warnings` are ours; clients pass over what they do not know."""

    agent_ids: list[str]
    repairs: list[str]
    warnings: list[str]


class StoredFile(msgspec.Struct, frozen=True):
    """A file with its text; None: it was not read yet, or could not be."""

    file: File
    text: str | None = None


class StoredServer(msgspec.Struct, frozen=True):
    server: McpServer
    secrets: McpSecrets


class AgentContents(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to one agent of a file."""

    agent: Agent
    blocks: Sequence[Block]
    tools: Sequence[Tool]
    tags: Sequence[str]
    secret_names: Sequence[str]
    messages: Sequence[Message]
    folders: Sequence[Folder] = ()
    windows: Sequence[AgentFile] = ()  # what it sees of their files
    archive: Archive | None = None
    passages: Sequence[Passage] = ()


class FileContents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that goes into a file. The first agent is the one that was asked for."""

    agents: Sequence[AgentContents]
    groups: Sequence[Group] = ()
    files: Sequence[StoredFile] = ()
    servers: Sequence[StoredServer] = ()
    identities: Sequence[Identity] = ()


def agent_file_view(contents: FileContents, skills: Sequence[Skill], version: str, now_us: int) -> dict[str, Any]:
    """Takes long for a long history: use a thread."""
    local = _LocalIds()
    for each in contents.agents:
        local.of("agent", each.agent.id)
    for group in contents.groups:
        local.of("group", group.id)
    servers = [_server_view(stored, local) for stored in contents.servers]
    blocks = {block.id: block for each in contents.agents for block in each.blocks}
    tools = {tool.id: tool for each in contents.agents for tool in each.tools}
    folders = {folder.id: folder for each in contents.agents for folder in each.folders}
    folders_by_age = sorted(folders.values(), key=lambda folder: (folder.created_us, folder.id))
    archives = {each.archive.id: each for each in contents.agents if each.archive is not None}
    # By age, as each agent lists them: imported in this order, they are listed in the same.
    by_age = sorted(blocks.values(), key=lambda block: (block.created_us, block.id))
    shown_blocks = [_block_view(block, local) for block in by_age]
    shown_folders = [_folder_view(folder, local) for folder in folders_by_age]
    shown_files = [_file_view(stored, folders[stored.file.folder_id], local) for stored in contents.files]
    shown_archives = [_archive_view(each, local) for each in archives.values()]
    identities = [_identity_view(identity, local) for identity in contents.identities]
    enabled = {each.agent.id: bool(each.agent.enable_sleeptime) for each in contents.agents}
    return {
        "agents": [_agent_view(each, contents.groups, local) for each in contents.agents],
        "groups": [
            _group_view(group, local, enabled=enabled.get(group.manager_agent_id or "", False))
            for group in contents.groups
        ],
        "blocks": shown_blocks,
        "files": shown_files,
        "sources": shown_folders,
        "tools": [_tool_view(tool, local) for tool in tools.values()],
        "mcp_servers": servers,
        "skills": [skill.model_dump() for skill in skills],
        # Only where they were asked for: readers that know nothing of them are not to stumble over them.
        **({"archives": shown_archives} if shown_archives else {}),
        **({"identities": identities} if identities else {}),
        "metadata": {"revision_id": f"{MADE_HERE}{version}"},
        "created_at": timestamp(now_us),
    }


def _agent_view(contents: AgentContents, groups: Sequence[Group], local: _LocalIds) -> dict[str, Any]:
    agent, config = contents.agent, contents.agent.embedding_config or {}
    own_id = local.of("agent", agent.id)
    messages = _MessageWriter(agent.timezone, own_id, local).written(contents.messages)
    secrets = dict.fromkeys(contents.secret_names, "")
    managed = [group for group in groups if group.manager_agent_id == agent.id]
    return {
        **_UNSAID,
        "name": agent.name,
        "tool_ids": [local.of("tool", tool.id) for tool in contents.tools],
        "block_ids": [local.of("block", block.id) for block in contents.blocks],
        "source_ids": [local.of("source", folder.id) for folder in contents.folders],
        "tool_rules": rules_view(agent.tool_rules),
        "tags": list(contents.tags),
        "system": agent.system,
        "agent_type": agent.agent_type,
        "description": agent.description,
        "metadata": agent.metadata,
        "llm_config": llm_config_view(agent.model),
        # The old server refuses some of the nulls that it shows. Left out, they mean the same: the model's default.
        "model_settings": _without_nulls(settings_view(agent.model)),
        "embedding_config": agent.embedding_config,
        "embedding": None if agent.embedding == config.get("handle") else agent.embedding,
        # Only what was chosen: the rest follows from the agent's model, which may be another where it is imported.
        "compaction_settings": msgspec.to_builtins(agent.compaction) or None,
        "tool_exec_environment_variables": secrets,
        "secrets": secrets,
        "message_buffer_autoclear": agent.message_buffer_autoclear,
        # The group tells it: a reader that saw it here as well would make a second group.
        "enable_sleeptime": False
        if any(group.manager_type == SLEEPTIME for group in managed)
        else agent.enable_sleeptime,
        "response_format": agent.model.response_format,
        "timezone": agent.timezone,
        "max_files_open": agent.max_files_open,
        "per_file_view_window_char_limit": agent.per_file_view_window_char_limit,
        "hidden": agent.hidden,
        "id": own_id,
        "in_context_message_ids": [message["id"] for message in messages],
        "messages": messages,
        "files_agents": [_window_view(seen, local) for seen in contents.windows],
        "group_ids": [local.of("group", group.id) for group in managed],
        **({} if contents.archive is None else {"archive_ids": [local.of("archive", contents.archive.id)]}),
    }


def _without_nulls(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


def _block_view(block: Block, local: _LocalIds) -> dict[str, Any]:
    shown: dict[str, Any] = {**block_view(block), "id": local.of("block", block.id), "project_id": None}
    del shown["created_by_id"], shown["last_updated_by_id"]
    return shown


def _tool_view(tool: Tool, local: _LocalIds) -> dict[str, Any]:
    shown = {**tool_view(tool), "id": local.of("tool", tool.id), "project_id": None}
    return {**shown, "metadata_": _mcp_metadata(tool, local)}


def _archive_view(contents: AgentContents, local: _LocalIds) -> dict[str, Any]:
    archive = cast("Archive", contents.archive)
    return {
        "id": local.of("archive", archive.id),
        "name": archive.name,
        "description": archive.description,
        "embedding": archive.embedding,
        "embedding_config": archive.embedding_config,
        "passages": [
            {
                "text": passage.text,
                "tags": list(passage.tags),
                "metadata": passage.metadata,
                "created_at": timestamp(passage.created_us),
            }
            for passage in contents.passages
        ],
    }


def _group_view(group: Group, local: _LocalIds, *, enabled: bool) -> dict[str, Any]:
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


def _folder_view(folder: Folder, local: _LocalIds) -> dict[str, Any]:
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


def _file_view(stored: StoredFile, folder: Folder, local: _LocalIds) -> dict[str, Any]:
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


def _window_view(seen: AgentFile, local: _LocalIds) -> dict[str, Any]:
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


def _server_view(stored: StoredServer, local: _LocalIds) -> dict[str, Any]:
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


def _mcp_metadata(tool: Tool, local: _LocalIds) -> dict[str, Any]:
    """What a tool says of its MCP server, which has another id in the file."""
    about: Any = tool.metadata.get("mcp")
    if tool.mcp_server_id is None or not isinstance(about, dict):
        return tool.metadata
    named = {"server_id": local.find("mcp_server", tool.mcp_server_id), "tool_name": tool.mcp_name}
    return {**tool.metadata, "mcp": {**about, **named}}


def _identity_view(identity: Identity, local: _LocalIds) -> dict[str, Any]:
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


class _MessageWriter:
    """Writes the rows of one agent under numbers that count through the whole file. Returns and summaries stand in the
    envelopes that a model is shown them in: readers of these files know them so."""

    def __init__(self, timezone: str, agent: str, local: _LocalIds) -> None:
        self._timezone = timezone
        self._agent = agent
        self._local = local
        self._steps: dict[str, str] = {}

    def written(self, rows: Sequence[Message]) -> list[dict[str, Any]]:
        paired = {row.step_id for before, row in pairwise(rows) if are_one_reply(before, row)}
        return [self._message(row, row.step_id if row.step_id in paired else None) for row in rows]

    def _message(self, row: Message, step_id: str | None) -> dict[str, Any]:
        returns = [self._returned(row, each) for each in row.returns]
        verdict = next((each for each in row.decisions if not isinstance(each, ClientReturn)), None)
        shown: dict[str, Any] = {
            "type": "message",
            "otid": row.otid,
            "group_id": self._named("group", row.group_id),
            "role": row.role,
            # Returns stand in it a second time, as text.
            "content": self._content(row)
            + [_text_view(each["func_response"]) for each in returns if isinstance(each["func_response"], str)],
            "name": row.name,
            "sender_id": self._named("agent", row.sender_id),
            "batch_item_id": row.batch_item_id,
            "id": self._local.of("message", row.id),
            "model": row.model,
            "agent_id": self._agent,
            "tool_calls": [_call_view(call) for call in row.calls] or None,
            "tool_call_id": row.returns[0].call_id if row.returns else None,
            "tool_returns": returns,
            "created_at": timestamp(row.created_us),
            "approve": None if verdict is None else isinstance(verdict, Approve),
            "approval_request_id": verdict and verdict.call_id,
            "denial_reason": verdict.reason if isinstance(verdict, Deny) else None,
            "approvals": [stored_decision(each) for each in row.decisions],
        }
        if step_id is not None:
            shown["step_id"] = self._steps.setdefault(step_id, f"step-{len(self._steps)}")
        for part in row.parts:
            if isinstance(part, Summary):
                shown |= {"compaction": msgspec.to_builtins(part.stats), "shown": part.shown}
        return shown

    def _named(self, prefix: str, id: str | None) -> str | None:
        """Whom a message is from may be told by a name that is no id of this server."""
        if id is None or not ids.is_id(prefix, id):
            return id
        return self._local.find(prefix, id)

    def _content(self, row: Message) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = []
        for part in row.parts:
            match part:
                case Summary(text, stats):
                    content.append(_text_view(model_history.summary_text(text, stats, row.created_us, self._timezone)))
                case Thoughts(text):
                    content.append({"type": "reasoning", "is_native": False, "reasoning": text, "signature": None})
                case _:
                    content += stored_part(part)
        return content

    def _returned(self, row: Message, given: ToolReturn) -> dict[str, Any]:
        shown = stored_return(given)
        if isinstance(given.content, str):
            packed = model_history.tool_return_text(given.content, given.status, row.created_us, self._timezone)
            shown["func_response"] = packed
        return shown


def _call_view(call: ToolCall) -> dict[str, Any]:
    return stored_call(call) | ({} if call.signature is None else {"signature": call.signature})


def _text_view(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "signature": None}


class _LocalIds:
    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def of(self, prefix: str, id: str) -> str:
        known = self._known.setdefault(prefix, {})
        return known.setdefault(id, f"{prefix}-{len(known)}")

    def find(self, prefix: str, id: str) -> str | None:
        """None for what is not in the file."""
        return self._known.get(prefix, {}).get(id)

"""Agent files (`.af`) as they are written: no record keeps the id that it has here, and no secret its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.messages import Message
from holdfast.core.records import Agent, AgentFile, Archive, Block, Folder, Group, Identity, Passage, Tool
from holdfast.wire.agent_file_ids import LocalIds
from holdfast.wire.agent_file_message_views import MessageWriter
from holdfast.wire.agent_file_section_views import (
    SLEEPTIME,
    StoredFile,
    StoredServer,
    file_view,
    folder_view,
    group_view,
    identity_view,
    mcp_metadata,
    server_view,
    window_view,
)
from holdfast.wire.agent_files import MADE_HERE
from holdfast.wire.blocks import block_view
from holdfast.wire.bounds import MAX_ITEMS, Handle, Id, Many, Name, Source
from holdfast.wire.model_settings import llm_config_view, settings_view
from holdfast.wire.times import timestamp
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
    local = LocalIds()
    for each in contents.agents:
        local.of("agent", each.agent.id)
    for group in contents.groups:
        local.of("group", group.id)
    servers = [server_view(stored, local) for stored in contents.servers]
    blocks = {block.id: block for each in contents.agents for block in each.blocks}
    tools = {tool.id: tool for each in contents.agents for tool in each.tools}
    folders = {folder.id: folder for each in contents.agents for folder in each.folders}
    folders_by_age = sorted(folders.values(), key=lambda folder: (folder.created_us, folder.id))
    archives = {each.archive.id: each for each in contents.agents if each.archive is not None}
    # By age, as each agent lists them: imported in this order, they are listed in the same.
    by_age = sorted(blocks.values(), key=lambda block: (block.created_us, block.id))
    shown_blocks = [_block_view(block, local) for block in by_age]
    shown_folders = [folder_view(folder, local) for folder in folders_by_age]
    shown_files = [file_view(stored, folders[stored.file.folder_id], local) for stored in contents.files]
    shown_archives = [_archive_view(each, local) for each in archives.values()]
    identities = [identity_view(identity, local) for identity in contents.identities]
    enabled = {each.agent.id: bool(each.agent.enable_sleeptime) for each in contents.agents}
    return {
        "agents": [_agent_view(each, contents.groups, local) for each in contents.agents],
        "groups": [
            group_view(group, local, enabled=enabled.get(group.manager_agent_id or "", False))
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


def _agent_view(contents: AgentContents, groups: Sequence[Group], local: LocalIds) -> dict[str, Any]:
    agent, config = contents.agent, contents.agent.embedding_config or {}
    own_id = local.of("agent", agent.id)
    messages = MessageWriter(agent.timezone, own_id, local).written(contents.messages)
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
        "files_agents": [window_view(seen, local) for seen in contents.windows],
        "group_ids": [local.of("group", group.id) for group in managed],
        **({} if contents.archive is None else {"archive_ids": [local.of("archive", contents.archive.id)]}),
    }


def _without_nulls(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


def _block_view(block: Block, local: LocalIds) -> dict[str, Any]:
    shown: dict[str, Any] = {**block_view(block), "id": local.of("block", block.id), "project_id": None}
    del shown["created_by_id"], shown["last_updated_by_id"]
    return shown


def _tool_view(tool: Tool, local: LocalIds) -> dict[str, Any]:
    shown = {**tool_view(tool), "id": local.of("tool", tool.id), "project_id": None}
    return {**shown, "metadata_": mcp_metadata(tool, local)}


def _archive_view(contents: AgentContents, local: LocalIds) -> dict[str, Any]:
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

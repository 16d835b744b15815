"""Agent files (`.af`) as they are written: no record keeps the id that it has here, and no secret its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import msgspec
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.core.messages import Message
from holdfast.core.records import Agent, Archive, Block, Passage, Tool
from holdfast.wire.agent_file_message_views import MessageWriter
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
    "source_ids": [],
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
    "files_agents": [],
    "group_ids": [],
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


class ImportedView(TypedDict):
    """`repairs` and `warnings` are ours; clients pass over what they do not know."""

    agent_ids: list[str]
    repairs: list[str]
    warnings: list[str]


class AgentContents(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one agent that goes into a file."""

    agent: Agent
    blocks: Sequence[Block]
    tools: Sequence[Tool]
    tags: Sequence[str]
    secret_names: Sequence[str]
    messages: Sequence[Message]
    archive: Archive | None = None
    passages: Sequence[Passage] = ()


def agent_file_view(contents: AgentContents, skills: Sequence[Skill], version: str, now_us: int) -> dict[str, Any]:
    """Takes long for a long history: use a thread."""
    archives = [] if contents.archive is None else [_archive_view(contents.archive, contents.passages)]
    return {
        "agents": [_agent_view(contents)],
        "groups": [],
        "blocks": [_block_view(block, number) for number, block in enumerate(contents.blocks)],
        "files": [],
        "sources": [],
        "tools": [
            {**tool_view(tool), "id": f"tool-{number}", "project_id": None}
            for number, tool in enumerate(contents.tools)
        ],
        "mcp_servers": [],
        "skills": [skill.model_dump() for skill in skills],
        # Only where it was asked for: readers that know nothing of it are not to stumble over it.
        **({"archives": archives} if archives else {}),
        "metadata": {"revision_id": f"{MADE_HERE}{version}"},
        "created_at": timestamp(now_us),
    }


def _agent_view(contents: AgentContents) -> dict[str, Any]:
    agent, config = contents.agent, contents.agent.embedding_config or {}
    messages = MessageWriter(agent.timezone, "agent-0", 0).written(contents.messages)
    secrets = dict.fromkeys(contents.secret_names, "")
    return {
        **_UNSAID,
        "name": agent.name,
        "tool_ids": [f"tool-{number}" for number in range(len(contents.tools))],
        "block_ids": [f"block-{number}" for number in range(len(contents.blocks))],
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
        "enable_sleeptime": agent.enable_sleeptime,
        "response_format": agent.model.response_format,
        "timezone": agent.timezone,
        "max_files_open": agent.max_files_open,
        "per_file_view_window_char_limit": agent.per_file_view_window_char_limit,
        "hidden": agent.hidden,
        "id": "agent-0",
        "in_context_message_ids": [message["id"] for message in messages],
        "messages": messages,
        **({"archive_ids": ["archive-0"]} if contents.archive is not None else {}),
    }


def _without_nulls(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value is not None
    }


def _block_view(block: Block, number: int) -> dict[str, Any]:
    shown: dict[str, Any] = {**block_view(block), "id": f"block-{number}", "project_id": None}
    del shown["created_by_id"], shown["last_updated_by_id"]
    return shown


def _archive_view(archive: Archive, passages: Sequence[Passage]) -> dict[str, Any]:
    return {
        "id": "archive-0",
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
            for passage in passages
        ],
    }

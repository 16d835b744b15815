"""An agent as clients ask for it, and as they see it: its own row, and those of its relations that were asked for.

Unknown keys of a request are ignored, as they always were.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from holdfast import ids
from holdfast.core import default_texts
from holdfast.core.messages import Message
from holdfast.core.records import Agent, Block, CompactionSettings, Folder, Group, Identity, Tool
from holdfast.core.system_prompt import file_limits
from holdfast.wire import messages, times
from holdfast.wire.blocks import BlockResponse, CreateBlock, Tag, block_view
from holdfast.wire.bounds import MAX_ITEMS, MAX_LINES, MAX_NAME, MAX_NAME_BYTES, Handle, Id, JsonObject, Many, Name
from holdfast.wire.folders import FileBlockView, SourceView, source_view
from holdfast.wire.groups import GroupView, group_view
from holdfast.wire.identities import IdentityView, identity_view
from holdfast.wire.model_settings import (
    EmbeddingConfig,
    EmbeddingHandle,
    LLMConfig,
    ModelSettings,
    ModelViews,
    ResponseFormat,
    Tokens,
)
from holdfast.wire.tool_rules import ToolRules, rules_view
from holdfast.wire.tools import ToolView, tool_view

MASKED: Final = "********"

# The retired names of relations, and what they are called now.
_RELATIONSHIPS: Final = {
    "tools": "agent.tools",
    "sources": "agent.sources",
    "memory": "agent.blocks",
    "tags": "agent.tags",
    "identity_ids": "agent.identities",
    "multi_agent_group": "agent.managed_group",
    "tool_exec_environment_variables": "agent.secrets",
    "secrets": "agent.secrets",
}
AgentType = Literal[
    "memgpt_agent",
    "memgpt_v2_agent",
    "letta_v1_agent",
    "react_agent",
    "workflow_agent",
    "split_thread_agent",
    "sleeptime_agent",
    "voice_convo_agent",
    "voice_sleeptime_agent",
]
Include = Literal[
    "agent.blocks",
    "agent.identities",
    "agent.managed_group",
    "agent.pending_approval",
    "agent.secrets",
    "agent.sources",
    "agent.tags",
    "agent.tools",
]
ALL_RELATIONS: Final = frozenset(get_args(Include))  # those that can be filled


class Secret(msgspec.Struct, frozen=True):
    """One declared secret as it is shown; `value` is None where it stays hidden."""

    id: str
    key: str
    value: str | None
    description: str | None = None


class Relations(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown beside the agent's own row. What was not asked for is empty, never absent."""

    message_ids: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    tools: Sequence[Tool] = ()
    tags: Sequence[str] = ()
    secrets: Sequence[Secret] = ()
    identities: Sequence[Identity] = ()
    managed_group: Group | None = None
    folders: Sequence[Folder] = ()
    pending_approval: Message | None = None
    changed_secrets: Sequence[str] = ()  # since the pending approval was asked for


class SecretView(TypedDict):
    id: str
    key: str
    value: str
    value_enc: str | None
    description: str | None
    agent_id: str
    organization_id: str
    created_at: str | None
    updated_at: str | None
    created_by_id: str
    last_updated_by_id: str


class MemoryView(TypedDict):
    agent_type: str
    git_enabled: bool
    blocks: list[BlockResponse]
    file_blocks: list[FileBlockView]
    prompt_template: str


class AgentState(TypedDict):
    id: str
    name: str
    agent_type: str
    system: str
    description: str | None
    metadata: dict[str, Any] | None
    model: str
    model_settings: dict[str, Any]
    llm_config: dict[str, Any]
    embedding: str | None
    embedding_config: dict[str, Any] | None
    compaction_settings: dict[str, Any]
    response_format: dict[str, Any] | None
    tool_rules: list[dict[str, Any]]
    message_ids: list[str]
    memory: MemoryView
    blocks: list[BlockResponse]
    tools: list[ToolView]
    sources: list[SourceView]
    tags: list[str]
    secrets: list[SecretView]
    tool_exec_environment_variables: list[SecretView]
    identity_ids: list[str]
    identities: list[IdentityView]
    pending_approval: dict[str, Any] | None
    multi_agent_group: GroupView | None
    managed_group: GroupView | None
    message_buffer_autoclear: bool
    enable_sleeptime: bool | None
    timezone: str
    max_files_open: int
    per_file_view_window_char_limit: int
    hidden: bool | None
    project_id: str | None
    template_id: str | None
    base_template_id: str | None
    deployment_id: str | None
    entity_id: str | None
    last_stop_reason: str | None
    last_run_completion: str | None
    last_run_duration_ms: int | None
    created_at: str
    updated_at: str
    created_by_id: str
    last_updated_by_id: str


def shown_relations(
    include: Collection[str], include_relationships: Iterable[str] | None, *, whole: bool
) -> frozenset[str]:
    """Whoever names some, under either parameter, gets only those. `whole`: whoever names none gets all."""
    if whole and not include and include_relationships is None:
        return ALL_RELATIONS
    return included(include, include_relationships)


def included(include: Iterable[str], include_relationships: Iterable[str] | None = None) -> frozenset[str]:
    """The relations asked for, by their present names. Blocks bring tags along, as they always did."""
    names = set(include)
    for entry in include_relationships or ():
        names |= {_RELATIONSHIPS[name.strip()] for name in entry.split(",") if name.strip() in _RELATIONSHIPS}
    if "agent.blocks" in names:
        names.add("agent.tags")
    return frozenset(names)


def agent_state(agent: Agent, relations: Relations, models: ModelViews) -> AgentState:
    blocks = [block_view(block) for block in relations.blocks]
    secrets = [_secret_view(agent, secret) for secret in relations.secrets]
    group = None if relations.managed_group is None else group_view(relations.managed_group)
    limits = file_limits(agent)
    model_settings, llm_config = models.of(agent.model)
    return {
        "id": agent.id,
        "name": agent.name,
        "agent_type": agent.agent_type,
        "system": agent.system,
        "description": agent.description,
        "metadata": agent.metadata,
        "model": agent.model.handle,
        "model_settings": model_settings,
        "llm_config": llm_config,
        "embedding": agent.embedding,
        "embedding_config": agent.embedding_config,
        "compaction_settings": compaction_view(agent.compaction, agent.model.handle),
        "response_format": agent.model.response_format,
        "tool_rules": rules_view(agent.tool_rules),
        "message_ids": list(relations.message_ids),
        "memory": memory_view(agent.agent_type, blocks),
        "blocks": blocks,
        "tools": [tool_view(tool) for tool in relations.tools],
        "sources": [source_view(folder) for folder in relations.folders],
        "tags": list(relations.tags),
        "secrets": secrets,
        "tool_exec_environment_variables": secrets,
        "identity_ids": [identity.id for identity in relations.identities],
        "identities": [identity_view(identity) for identity in relations.identities],
        "pending_approval": _approval_view(relations.pending_approval, relations.changed_secrets),
        "multi_agent_group": group,
        "managed_group": group,
        "message_buffer_autoclear": agent.message_buffer_autoclear,
        "enable_sleeptime": agent.enable_sleeptime,
        "timezone": agent.timezone,
        "max_files_open": limits.most_open,
        "per_file_view_window_char_limit": limits.characters,
        "hidden": agent.hidden,
        "project_id": agent.project_id,
        "template_id": agent.template_id,
        "base_template_id": agent.base_template_id,
        "deployment_id": None,
        "entity_id": None,
        "last_stop_reason": agent.last_stop_reason,
        "last_run_completion": times.optional_timestamp(agent.last_run_completion_us),
        "last_run_duration_ms": None if agent.last_run_duration_ns is None else agent.last_run_duration_ns // 1_000_000,
        "created_at": times.timestamp(agent.created_us),
        "updated_at": times.timestamp(agent.updated_us),
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
    }


def memory_view(agent_type: str, blocks: list[BlockResponse], file_blocks: Sequence[FileBlockView] = ()) -> MemoryView:
    return {
        "agent_type": agent_type,
        "git_enabled": False,
        "blocks": blocks,
        "file_blocks": list(file_blocks),
        "prompt_template": "",
    }


def compaction_view(settings: CompactionSettings, handle: str) -> dict[str, Any]:
    """Unset choices are shown as what they mean: the agent's own model, the prompt of the mode."""
    return {
        "mode": settings.mode,
        "sliding_window_percentage": settings.sliding_window_percentage,
        "clip_chars": settings.clip_chars,
        "model": settings.model or handle,
        "model_settings": settings.model_settings,
        "prompt": settings.prompt or default_texts.SUMMARY[settings.mode],
        "prompt_acknowledgement": settings.prompt_acknowledgement,
    }


def _secret_view(agent: Agent, secret: Secret) -> SecretView:
    return {
        "id": secret.id,
        "key": secret.key,
        "value": MASKED if secret.value is None else secret.value,
        "value_enc": None,
        "description": secret.description,
        "agent_id": agent.id,
        "organization_id": ids.DEFAULT_ORG,
        "created_at": None,
        "updated_at": None,
        "created_by_id": ids.DEFAULT_USER,
        "last_updated_by_id": ids.DEFAULT_USER,
    }


def _approval_view(request: Message | None, changed_secrets: Sequence[str]) -> dict[str, Any] | None:
    """The message as it stands in the history, and the changed secrets only when there are any."""
    if request is None:
        return None
    shown = messages.to_wire(request)
    found = next((item for item in shown if item["message_type"] == "approval_request_message"), None)
    return {**found, "changed_secrets": list(changed_secrets)} if found and changed_secrets else found


def _valid_name(name: str) -> str:
    if not name.strip():
        raise ValueError("the name must not be empty")
    if (size := len(name.encode())) > MAX_NAME_BYTES:
        raise ValueError(f"the name takes {size} bytes in UTF-8; at most {MAX_NAME_BYTES} are accepted")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise ValueError("the name must not hold control characters, such as tabs and ends of lines")
    return name


def _valid_first_name(name: str) -> str:
    """Stricter than what an agent may be renamed to: both as programs found them."""
    for character in name:
        if unicodedata.category(character)[0] not in "LNM" and character not in " -_'":
            raise ValueError(
                f"the name may hold letters, digits, spaces, hyphens, underscores and apostrophes, not {character!r}"
            )
    return name


def _valid_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is not an IANA time zone such as Europe/Berlin") from error
    return name


def _valid_secrets(secrets: dict[str, str]) -> dict[str, str]:
    for key in secrets:
        if not key or "=" in key:
            raise ValueError(f"{key!r} cannot be the name of an environment variable")
    return secrets


AgentName = Annotated[str, Field(max_length=1024), AfterValidator(_valid_name)]
FirstAgentName = Annotated[AgentName, AfterValidator(_valid_first_name)]
Timezone = Annotated[str, Field(max_length=256), AfterValidator(_valid_timezone)]
SecretName = Annotated[str, Field(max_length=MAX_NAME)]
Secrets = Annotated[dict[SecretName, str], Field(max_length=MAX_ITEMS), AfterValidator(_valid_secrets)]
SmallInt = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class InitialMessage(BaseModel):
    role: Name
    content: str | Many[JsonObject]
    otid: Id | None = None
    name: Id | None = None
    sender_id: Id | None = None
    group_id: Id | None = None
    batch_item_id: Id | None = None


class CompactionRequestSettings(BaseModel):
    model_config = ConfigDict(protected_namespaces=())

    mode: Literal["all", "sliding_window", "self_compact_all", "self_compact_sliding_window"] = "sliding_window"
    sliding_window_percentage: Annotated[float, Field(gt=0, le=1)] = 0.30
    clip_chars: Annotated[int, Field(ge=1, le=10_000_000)] | None = 50_000
    model: EmbeddingHandle | None = None
    model_settings: ModelSettings | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool = False


class AgentFields(BaseModel):
    """What create and update have in common. `model_fields_set` tells what was sent from what was not."""

    model_config = ConfigDict(protected_namespaces=())

    name: AgentName | None = None
    system: str | None = None
    description: str | None = None
    metadata: JsonObject | None = None
    model: Handle | None = None
    llm_config: LLMConfig | None = None
    model_settings: ModelSettings | None = None
    context_window_limit: Tokens | None = None
    max_tokens: Tokens | None = None
    reasoning: bool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    embedding: EmbeddingHandle | None = None
    embedding_config: EmbeddingConfig | None = None
    compaction_settings: CompactionRequestSettings | None = None
    tool_ids: Many[Id] | None = None
    block_ids: Many[Id] | None = None
    tags: Many[Tag] | None = None
    tool_rules: ToolRules | None = None
    secrets: Secrets | None = None
    tool_exec_environment_variables: Secrets | None = None
    folder_ids: Many[Id] | None = None
    source_ids: Many[Id] | None = None
    identity_ids: Many[Id] | None = None
    project_id: Id | None = None
    template_id: Id | None = None
    base_template_id: Id | None = None
    message_buffer_autoclear: bool | None = None
    enable_sleeptime: bool | None = None
    timezone: Timezone | None = None
    max_files_open: SmallInt | None = None
    per_file_view_window_char_limit: SmallInt | None = None
    hidden: bool | None = None

    @property
    def given_secrets(self) -> dict[str, str] | None:
        return self.tool_exec_environment_variables if self.secrets is None else self.secrets

    @property
    def given_folders(self) -> list[str] | None:
        """Sources are what folders were called."""
        return self.source_ids if self.folder_ids is None else self.folder_ids

    @property
    def unbuilt(self) -> str | None:
        """A thing asked for that this server does not have yet; better refused than silently left out."""
        return None


class CreateAgentRequest(AgentFields):
    name: FirstAgentName | None = None
    agent_type: AgentType = "letta_v1_agent"
    memory_blocks: Many[CreateBlock] | None = None
    tools: Many[Name] | None = None
    include_base_tools: bool = True
    include_multi_agent_tools: bool = False
    include_base_tool_rules: bool | None = None
    include_default_source: bool = False
    initial_message_sequence: Many[InitialMessage] | None = None
    max_reasoning_tokens: Annotated[int, Field(ge=0)] | None = None
    enable_reasoner: bool | None = None
    from_template: Id | None = None

    @model_validator(mode="after")
    def _voice_needs_sleeptime(self) -> CreateAgentRequest:
        if self.agent_type == "voice_convo_agent" and not self.enable_sleeptime:
            raise ValueError("a voice_convo_agent needs enable_sleeptime to be true")
        return self

    @property
    def unbuilt(self) -> str | None:
        if self.include_multi_agent_tools:
            return "The multi-agent tools are not built yet: leave out include_multi_agent_tools."
        if self.include_default_source:
            return "No folder is made with an agent: make one, and send its id in folder_ids."
        if self.from_template:
            return "Templates belong to the hosted service: leave out from_template."
        return super().unbuilt


class UpdateAgent(AgentFields):
    """Only what is sent changes. Null clears what may be empty and leaves the rest alone."""

    message_ids: Annotated[list[Id], Field(max_length=MAX_LINES, fail_fast=True)] | None = None

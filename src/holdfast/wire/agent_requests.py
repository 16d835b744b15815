"""What callers may ask of an agent when they create or change it. Unknown keys are ignored, as they always were."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from holdfast.wire.blocks import CreateBlock, Tag
from holdfast.wire.bounds import MAX_ITEMS, MAX_LINES, MAX_NAME, MAX_NAME_BYTES, Handle, Id, JsonObject, Many, Name
from holdfast.wire.model_settings import LLMConfig, ModelSettings, ResponseFormat, Tokens
from holdfast.wire.tool_rules import ToolRules

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


def _valid_handle(handle: str) -> str:
    provider, slash, model = handle.partition("/")
    if not (provider and slash and model):
        raise ValueError(f"{handle!r} is not a handle of the form provider/model")
    return handle


def _valid_secrets(secrets: dict[str, str]) -> dict[str, str]:
    for key in secrets:
        if not key or "=" in key:
            raise ValueError(f"{key!r} cannot be the name of an environment variable")
    return secrets


AgentName = Annotated[str, Field(max_length=1024), AfterValidator(_valid_name)]
FirstAgentName = Annotated[AgentName, AfterValidator(_valid_first_name)]
Timezone = Annotated[str, Field(max_length=256), AfterValidator(_valid_timezone)]
EmbeddingHandle = Annotated[str, Field(max_length=1_024), AfterValidator(_valid_handle)]
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


class EmbeddingConfig(BaseModel):
    """The retired way to choose an embedding model; kept and shown as it was sent."""

    embedding_endpoint_type: Name
    embedding_model: Handle
    embedding_dim: Annotated[int, Field(ge=1, le=65_536)]
    embedding_endpoint: Handle | None = None
    embedding_chunk_size: int | None = 300
    handle: Handle | None = None
    batch_size: int = 32
    azure_endpoint: Handle | None = None
    azure_version: Handle | None = None
    azure_deployment: Handle | None = None


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

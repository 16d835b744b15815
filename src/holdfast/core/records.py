"""The ordinary records: agents, blocks, tools, threads, runs, steps. Rows and wire shapes are projections of them.

Times are microseconds since the epoch, UTC; durations are nanoseconds.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from holdfast.core import egress_policy
from holdfast.core.egress_policy import Egress
from holdfast.core.tool_rules import Rule
from holdfast.core.usage import Usage

# Of a label, a tag or a name: columns with an index hold them, of which PostgreSQL takes 2,704 bytes.
LONGEST_NAME: Final = 512
MOST_TAGS: Final = 1_000  # of one passage, or of one search
# In the metadata of a run that another one has started with a tool.
PARENT: Final = "parent_run_id"
PARENT_WAITS: Final = "parent_waits"
RunStatus = Literal["created", "running", "completed", "failed", "cancelled"]
StepStatus = Literal["pending", "success", "failed", "cancelled"]
FileStatus = Literal["pending", "parsing", "embedding", "completed", "error"]
StopReason = Literal[
    "end_turn",
    "error",
    "llm_api_error",
    "invalid_llm_response",
    "invalid_tool_call",
    "max_steps",
    "max_tokens_exceeded",
    "no_tool_call",
    "tool_rule",
    "cancelled",
    "insufficient_credits",
    "requires_approval",
    "context_window_overflow_in_system_prompt",
]
STATUS_OF_STOP: dict[str, RunStatus] = {
    "end_turn": "completed",
    "tool_rule": "completed",
    "max_steps": "completed",
    "requires_approval": "completed",
    "cancelled": "cancelled",
}  # every other stop reason means failed
# Failed, but in order: clients are given what was said and done, not an error. The run's metadata says what was wrong.
FAILED_WITH_ANSWER: frozenset[StopReason] = frozenset({"max_tokens_exceeded", "invalid_tool_call"})
RETRY_SAFE_TAG = "retry-safe"
MCP_TAG = "mcp:"  # before the name of the server that offers a tool


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    tool_type: str  # wire value: custom, letta_core, letta_memory_core, …
    description: str
    json_schema: dict[str, Any]  # {name, description, parameters}
    source_code: str | None = None
    source_type: str = "python"
    args_json_schema: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    return_char_limit: int = 50_000
    pip_requirements: list[dict[str, Any]] | None = None
    npm_requirements: list[dict[str, Any]] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool = False
    metadata: dict[str, Any] = {}
    project_id: str | None = None
    version: int = 1  # grows whenever source or schema change; a hold remembers it
    created_us: int = 0
    updated_us: int = 0
    mcp_server_id: str | None = None  # of the MCP server that runs it
    mcp_name: str | None = None  # what that server calls it, which may be taken here

    @property
    def retry_safe(self) -> bool:
        """Whether a call that a crash cut off may be run again, with the same call id. Its owner says so with a tag."""
        return RETRY_SAFE_TAG in self.tags

    @property
    def egress(self) -> Egress | None:
        """What its owner lets it connect to, said with tags such as `egress:none`; None leaves it to the server."""
        return egress_policy.of_tags(self.tags)

    @property
    def gets_secrets(self) -> bool:
        """What a model has written is given none. Of the built-in tools only `web_search` needs one; those that run
        programs give each tool what is its own, and the code nothing. Those of MCP servers have them in their
        headers."""
        return self.tool_type in ("custom", "external_mcp") or self.name == "web_search"

    @property
    def calls_others(self) -> bool:
        """Whether it runs programs that call the agent's other tools, so that a change of one of them is a change of
        it."""
        return self.tool_type != "custom" and self.name in ("run_code", "run_code_with_tools")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str
    value: str = ""
    limit: int = 100_000
    description: str | None = None
    read_only: bool = False
    metadata: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    hidden: bool | None = None
    is_template: bool = False
    template_name: str | None = None
    project_id: str | None = None
    version: int = 1
    created_us: int = 0
    updated_us: int = 0


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    mode: Literal["sliding_window", "all", "self_compact_all", "self_compact_sliding_window"] = "sliding_window"
    sliding_window_percentage: float = 0.30
    clip_chars: int | None = 50_000
    model: str | None = None  # None: the agent's own
    prompt: str | None = None  # None: the mode's own
    prompt_acknowledgement: bool = False
    model_settings: dict[str, Any] | None = None


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which model, and how it is to be called."""

    handle: str
    context_window: int
    provider_category: Literal["base", "byok"] = "base"  # whose key it is called with: the server's, or a user's
    max_output_tokens: int | None = None
    temperature: float | None = None
    parallel_tool_calls: bool = False
    response_format: dict[str, Any] | None = None
    settings: dict[str, Any] = {}  # what only some vendors take, as they are sent it: see llm.presets


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str
    agent_type: str
    system: str
    model: ModelChoice
    embedding: str | None = None
    embedding_config: dict[str, Any] | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    tool_rules: tuple[Rule, ...] = ()
    compaction: CompactionSettings = CompactionSettings()
    timezone: str = "UTC"
    message_buffer_autoclear: bool = False
    enable_sleeptime: bool | None = None
    max_files_open: int | None = None
    per_file_view_window_char_limit: int | None = None
    hidden: bool | None = None
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    last_stop_reason: StopReason | None = None
    last_run_completion_us: int | None = None
    last_run_duration_ns: int | None = None
    created_us: int = 0
    updated_us: int = 0


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's default history (its id is the agent's) or a named conversation (`conv-…`)."""

    id: str
    agent_id: str
    summary: str | None = None
    description: str | None = None
    model: str | None = None
    model_settings: dict[str, Any] | None = None
    context_window_limit: int | None = None
    isolated_block_ids: tuple[str, ...] = ()
    hidden: bool | None = None
    forked_from: str | None = None  # the thread whose messages it began with
    archived_us: int | None = None
    created_us: int = 0
    updated_us: int = 0
    last_message_us: int | None = None
    last_run_completion_us: int | None = None

    @property
    def is_default(self) -> bool:
        return self.id == self.agent_id

    @property
    def conversation_id(self) -> str | None:
        return None if self.is_default else self.id


class Run(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    agent_id: str
    thread_id: str
    status: RunStatus
    background: bool = False
    stop_reason: StopReason | None = None
    metadata: dict[str, Any] = {}
    request_config: dict[str, Any] = {}
    request_key: str | None = None
    callback_url: str | None = None
    callback_sent_us: int | None = None
    callback_status_code: int | None = None
    callback_error: str | None = None
    created_us: int = 0
    started_us: int | None = None
    completed_us: int | None = None
    ttft_ns: int | None = None
    total_duration_ns: int | None = None
    lease: int = 0
    lease_owner: str | None = None
    lease_expires_us: int | None = None
    cancel_asked_us: int | None = None
    checkpoints: int = 0  # how many have been written

    @property
    def conversation_id(self) -> str | None:
        return None if self.thread_id == self.agent_id else self.thread_id

    @property
    def is_active(self) -> bool:
        return self.status in ("created", "running")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One model call and the tools it caused."""

    id: str
    run_id: str
    agent_id: str
    number: int
    status: StepStatus
    model_handle: str
    context_window_limit: int
    provider_name: str = ""
    provider_category: str = "base"
    provider_id: str | None = None  # only providers that users brought have one; looked up, not stored
    model_endpoint: str | None = None
    usage: Usage = Usage()
    stop_reason: StopReason | None = None
    error_type: str | None = None
    error_data: dict[str, Any] | None = None
    feedback: str | None = None
    tags: tuple[str, ...] = ()
    trace_id: str | None = None
    created_us: int = 0
    step_start_ns: int | None = None
    llm_request_start_ns: int | None = None
    llm_request_ns: int | None = None
    tool_execution_ns: int | None = None
    step_ns: int | None = None
    ttft_ns: int | None = None  # from the request to the first content of its reply
    cost_usd: float | None = None  # None: the price is not known


class ProviderTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What a vendor was sent for a step and what it said, without keys and cut to size."""

    step_id: str
    run_id: str
    agent_id: str
    request: dict[str, Any]
    response: dict[str, Any]
    created_us: int
    agent_tags: tuple[str, ...] = ()  # as they are when it is read; not stored with it


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider that a user brought. Its keys are sealed."""

    id: str
    name: str  # the first half of its handles
    provider_type: str
    base_url: str | None = None
    region: str | None = None
    api_version: str | None = None
    api_key: str | None = None
    access_key: str | None = None
    last_synced_us: int | None = None
    created_us: int = 0
    updated_us: int = 0
    deleted_us: int | None = None


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of passages, which agents may share. It owns the model that its vectors are made with."""

    id: str
    name: str
    description: str | None = None
    embedding: str | None = None  # a handle; None: its passages are found by their words alone
    embedding_config: dict[str, Any] | None = None
    created_us: int = 0
    updated_us: int = 0


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A text in an archive."""

    id: str
    archive_id: str
    text: str
    tags: tuple[str, ...] = ()  # in the order in which they were given
    metadata: dict[str, Any] = {}
    created_us: int = 0
    updated_us: int = 0
    file_id: str | None = None  # the file that it is a chunk of; its archive is then the file's folder


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A collection of files, which agents may share. It owns the model that the vectors of its chunks are made with."""

    id: str
    name: str
    organization_id: str
    description: str | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    embedding: str | None = None  # a handle; None: its files are found by their words alone
    embedding_config: dict[str, Any] | None = None
    chunk_size: int  # in tokens
    created_us: int = 0
    updated_us: int = 0

    @property
    def archive(self) -> Archive:
        """Chunks of files are stored and found as passages are: a folder is an archive to them."""
        return Archive(id=self.id, name=self.name, embedding=self.embedding, embedding_config=self.embedding_config)


class File(msgspec.Struct, frozen=True, kw_only=True):
    """What was uploaded to a folder, and how far its ingestion has come."""

    id: str
    folder_id: str
    name: str  # within its folder, where it is the only one of this name
    original_name: str
    kind: str  # how it is parsed and cut into chunks: one of `core.file_types.Kind`
    media_type: str
    size: int  # in bytes
    status: FileStatus = "pending"
    error: str | None = None
    total_chunks: int | None = None  # None: it is not parsed yet
    chunks_stored: int = 0
    chunks_embedded: int = 0
    lines: int = 0
    created_us: int = 0
    updated_us: int = 0


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as one agent sees it."""

    id: str
    agent_id: str
    file_id: str
    folder_id: str
    folder_name: str
    name: str
    status: FileStatus
    error: str | None
    lines: int
    is_open: bool
    first_line: int | None = None  # None: it is shown from its beginning
    last_line: int | None = None  # None: to its end
    accessed_us: int | None = None
    created_us: int = 0

    @property
    def full_name(self) -> str:
        return f"{self.folder_name}/{self.name}"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A person or an organisation as a program outside knows it, with the agents and blocks that belong to it."""

    id: str
    identifier_key: str
    name: str
    identity_type: str  # wire value: org, user, other
    project_id: str | None = None
    properties: tuple[dict[str, Any], ...] = ()  # key, value and type of each
    agent_ids: tuple[str, ...] = ()
    block_ids: tuple[str, ...] = ()
    created_us: int = 0
    updated_us: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Agents that work together. Of a sleeptime group, they look after the memory of the agent that manages it."""

    id: str
    manager_type: str  # wire value: sleeptime, round_robin, supervisor, dynamic
    agent_ids: tuple[str, ...]
    description: str = ""
    manager_agent_id: str | None = None
    shared_block_ids: tuple[str, ...] = ()
    project_id: str | None = None
    max_turns: int | None = None
    termination_token: str | None = None
    sleeptime_agent_frequency: int | None = None  # of a sleeptime group; None: after every turn
    turns_counter: int | None = None  # of a sleeptime group: 0 when its agents have just been set to work
    last_processed_message_id: str | None = None
    hidden: bool | None = None
    created_us: int = 0
    updated_us: int = 0


class Discussion(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a group, and what became of it. The group as it was then."""

    id: str
    group_id: str
    manager_type: str
    agent_ids: tuple[str, ...]
    request: dict[str, Any]  # as it was sent, with its messages
    manager_agent_id: str | None = None
    termination_token: str | None = None
    max_turns: int | None = None
    request_key: str | None = None
    created_us: int = 0
    ended_us: int | None = None
    stop_reason: StopReason | None = None
    error: dict[str, Any] | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Work that outlives the request that asked for it. It exists until it is done."""

    id: str
    organization_id: str
    kind: str
    subject_id: str
    payload: dict[str, Any]
    attempts: int = 0  # including the one under way
    lease: int = 0

"""The tables of agents, their threads and their runs, and what `archive_tables` and `group_tables` begin with.

The tables are the one schema source for both databases. Rules that must hold whatever the code does are written here as
indexes: one active run per thread, one run per request key, one undecided hold per thread, one block per label of an
agent, one batch of frames per first number. Times are microseconds since the epoch; JSON is text. The conditions of
partial indexes are spelt once, for SQLite, because naming another dialect loads it; migrations spell them for both, and
a test compares.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData()

# SQLite gives a growing rowid only to a column declared exactly INTEGER PRIMARY KEY.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")


def _agent_key() -> Column[str]:
    return Column("agent_id", Text, ForeignKey("agents.id", ondelete="CASCADE"), nullable=False)


agents = Table(
    "agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("agent_type", Text, nullable=False),
    Column("system", Text, nullable=False),
    Column("model", Text, nullable=False),  # ModelChoice
    Column("embedding", Text),
    Column("embedding_config", Text),
    Column("description", Text),
    Column("metadata", Text),
    Column("tool_rules", Text, nullable=False),
    Column("compaction", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("message_buffer_autoclear", Boolean, nullable=False),
    Column("enable_sleeptime", Boolean),
    Column("max_files_open", Integer),
    Column("per_file_view_window_char_limit", BigInteger),
    Column("hidden", Boolean),
    Column("project_id", Text),
    Column("template_id", Text),
    Column("base_template_id", Text),
    Column("last_stop_reason", Text),
    Column("last_run_completion_us", BigInteger),
    Column("last_run_duration_ns", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("agents_by_age", "created_us", "id"),
    Index("agents_by_change", "updated_us", "id"),
    Index("agents_by_name", "name", "id"),  # with the id, so that names are searched without reading agents
)

agent_tags = Table(
    "agent_tags",
    metadata,
    _agent_key(),
    Column("tag", Text, nullable=False),
    PrimaryKeyConstraint("agent_id", "tag"),
    Index("agent_tags_by_tag", "tag"),
)

agent_secrets = Table(
    "agent_secrets",
    metadata,
    _agent_key(),
    Column("id", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("value_enc", LargeBinary, nullable=False),
    Column("description", Text),
    PrimaryKeyConstraint("agent_id", "key"),
)

tools = Table(
    "tools",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("tool_type", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("json_schema", Text, nullable=False),
    Column("source_code", Text),
    Column("source_type", Text, nullable=False),
    Column("args_json_schema", Text),
    Column("tags", Text, nullable=False),
    Column("return_char_limit", Integer, nullable=False),
    Column("pip_requirements", Text),
    Column("npm_requirements", Text),
    Column("default_requires_approval", Boolean),
    Column("enable_parallel_execution", Boolean, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("project_id", Text),
    Column("version", Integer, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("mcp_server_id", Text, ForeignKey("mcp_servers.id")),  # whose tools go before it does
    Column("mcp_name", Text),  # as that server calls it
    Index("tools_by_age", "created_us", "id"),
    Index("tools_of_mcp_server", "mcp_server_id", "mcp_name", unique=True),
)

agent_tools = Table(
    "agent_tools",
    metadata,
    _agent_key(),
    Column("tool_id", Text, ForeignKey("tools.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("agent_id", "tool_id"),
    Index("agent_tools_by_tool", "tool_id"),
)
mcp_servers = Table(
    "mcp_servers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("url", Text),
    Column("auth_header", Text),
    Column("command", Text),
    Column("args", Text, nullable=False),
    Column("secrets", Text),  # sealed
    Column("synced_us", BigInteger),
    Column("sync_error", Text),
    Column("left_out", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    UniqueConstraint("organization_id", "name", name="mcp_servers_by_name"),
)
mcp_logins = Table(
    "mcp_logins",
    metadata,
    Column("id", Text, primary_key=True),
    Column("server_id", Text, ForeignKey("mcp_servers.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("status", Text, nullable=False),
    Column("state", Text, unique=True),
    Column("secrets", Text),  # sealed
    Column("error", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
)

blocks = Table(
    "blocks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("label", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("limit", BigInteger, nullable=False),
    Column("description", Text),
    Column("read_only", Boolean, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("hidden", Boolean),
    Column("is_template", Boolean, nullable=False),
    Column("template_name", Text),
    Column("project_id", Text),
    Column("version", Integer, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Index("blocks_by_age", "created_us", "id"),
    Index("blocks_by_label", "label"),
)

block_tags = Table(
    "block_tags",
    metadata,
    Column("block_id", Text, ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
    Column("tag", Text, nullable=False),
    PrimaryKeyConstraint("block_id", "tag"),
    Index("block_tags_by_tag", "tag"),
)

agent_blocks = Table(
    "agent_blocks",
    metadata,
    _agent_key(),
    Column("block_id", Text, ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
    Column("label", Text, nullable=False),
    PrimaryKeyConstraint("agent_id", "block_id"),
    UniqueConstraint("agent_id", "label", name="one_block_per_label"),
    Index("agent_blocks_by_block", "block_id"),
)

threads = Table(
    "threads",
    metadata,
    Column("id", Text, primary_key=True),  # the agent's id for its default history, else conv-…
    _agent_key(),
    Column("summary", Text),
    Column("description", Text),
    Column("model", Text),
    Column("model_settings", Text),
    Column("context_window_limit", BigInteger),
    Column("isolated_block_ids", Text, nullable=False),
    Column("hidden", Boolean),
    Column("archived_us", BigInteger),
    Column("deleted_us", BigInteger),
    Column("next_position", BigInteger, nullable=False),
    Column("system_digest", Text),  # of what the stored system message was compiled from
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("last_message_us", BigInteger),
    Column("last_run_completion_us", BigInteger),
    Column("forked_from", Text),  # the thread whose messages it began with, which may be gone
    Index("threads_of_agent", "agent_id", "created_us", "id"),
)

messages = Table(
    "messages",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),  # order of insertion over everything
    Column("id", Text, nullable=False, unique=True),
    _agent_key(),
    Column("run_id", Text),
    Column("step_id", Text),
    Column("role", Text, nullable=False),
    Column("parts", Text, nullable=False),
    Column("otid", Text),
    Column("name", Text),
    Column("sender_id", Text),
    Column("group_id", Text),
    Column("batch_item_id", Text),
    Column("model", Text),
    Column("created_us", BigInteger, nullable=False),
    Index("messages_of_run", "run_id", "seq"),
    Index("messages_of_step", "step_id", "seq", sqlite_where=text("step_id IS NOT NULL")),
    Index("messages_of_agent", "agent_id", "seq"),
    Index("messages_of_group", "group_id", "run_id", sqlite_where=text("group_id IS NOT NULL")),
)

# The context window is this relation, never a second list of ids. `position` is the order of history and never
# changes; `context_position` is null for what has left the window. A summary takes the place of the last message it
# replaced.
thread_messages = Table(
    "thread_messages",
    metadata,
    Column("thread_id", Text, ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("message_id", Text, ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
    Column("context_position", BigInteger),
    PrimaryKeyConstraint("thread_id", "position"),
    UniqueConstraint("message_id", "thread_id", name="a_message_once_per_thread"),  # in this order: also by message
    Index(
        "thread_window",
        "thread_id",
        "context_position",
        unique=True,
        sqlite_where=text("context_position IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)

_ACTIVE = "status IN ('created', 'running')"

runs = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    _agent_key(),
    Column("thread_id", Text, ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
    Column("status", Text, nullable=False),
    Column("stop_reason", Text),
    Column("background", Boolean, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("request_config", Text, nullable=False),
    Column("request_key", Text),
    Column("callback_url", Text),
    Column("callback_sent_us", BigInteger),
    Column("callback_status_code", Integer),
    Column("callback_error", Text),
    Column("callback_due_us", BigInteger),  # when the next delivery is to be tried; null: nothing to deliver
    Column("callback_attempts", Integer, nullable=False, server_default="0"),
    Column("created_us", BigInteger, nullable=False),
    Column("started_us", BigInteger),
    Column("completed_us", BigInteger),
    Column("ttft_ns", BigInteger),
    Column("total_duration_ns", BigInteger),
    Column("lease", BigInteger, nullable=False),
    Column("lease_owner", Text),
    Column("lease_expires_us", BigInteger),
    Column("cancel_asked_us", BigInteger),
    Column("checkpoints", BigInteger, nullable=False, server_default="0"),  # how many have been written
    Index("runs_by_age", "created_us", "id"),
    Index("runs_of_agent", "agent_id", "created_us", "id"),
    Index("runs_of_thread", "thread_id", "created_us", "id"),
    Index("runs_by_end", "completed_us", "id", sqlite_where=text("completed_us IS NOT NULL")),
    Index(
        "one_active_run_per_thread",
        "thread_id",
        unique=True,
        sqlite_where=text(_ACTIVE),
    ),
    Index(
        "one_run_per_request",
        "thread_id",
        "request_key",
        unique=True,
        sqlite_where=text("request_key IS NOT NULL"),
    ),
    Index(
        "callbacks_due",
        "callback_due_us",
        sqlite_where=text("callback_due_us IS NOT NULL"),
    ),
)

# Which run a client's otid belongs to, so that a stream can be found, and a cancel asked, by the client's own key.
run_otids = Table(
    "run_otids",
    metadata,
    Column("thread_id", Text, ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
    Column("otid", Text, nullable=False),
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("thread_id", "otid", "run_id"),
    Index("run_otids_of_run", "run_id"),  # for deleting a run
    sqlite_with_rowid=False,
)

# The part of a run's spec that many runs share: model, tools, rules. Stored once, under the hash of its text.
specs = Table(
    "specs",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("spec", Text, nullable=False),
    Column("used_us", BigInteger, nullable=False),  # when a server last began to use it, not when a run last did
)

run_events = Table(
    "run_events",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("event", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    # Of a first event. Without one the event holds the whole spec, as all did before revision 0005.
    Column("spec_hash", Text, ForeignKey("specs.hash")),
    PrimaryKeyConstraint("run_id", "number"),
    Index("run_events_by_spec", "spec_hash", sqlite_where=text("spec_hash IS NOT NULL")),
)

# What waits for a human or for the client. Undecided while decided_us is null.
holds = Table(
    "holds",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("thread_id", Text, ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
    _agent_key(),
    Column("request_id", Text, nullable=False, unique=True),  # the approval request message
    Column("hold", Text, nullable=False),
    Column("asked_us", BigInteger, nullable=False),
    Column("decided_us", BigInteger),
    Column("decided_by_run", Text),
    Index(
        "one_open_hold_per_thread",
        "thread_id",
        unique=True,
        sqlite_where=text("decided_us IS NULL"),
    ),
)

# One row per batch of frames: last_seq + 1 of one batch is first_seq of the next, unless an owner died between them.
frames = Table(
    "frames",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("frames", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_id", "first_seq"),
)

steps = Table(
    "steps",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    _agent_key(),
    Column("number", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("model_handle", Text, nullable=False),
    Column("provider_name", Text, nullable=False),
    Column("provider_category", Text, nullable=False),
    Column("model_endpoint", Text),
    Column("context_window_limit", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_input_tokens", BigInteger),
    Column("cache_write_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("usage_estimated", Boolean, nullable=False),
    Column("stop_reason", Text),
    Column("error_type", Text),
    Column("error_data", Text),
    Column("feedback", Text),
    Column("tags", Text, nullable=False),
    Column("trace_id", Text),
    Column("created_us", BigInteger, nullable=False),
    Column("step_start_ns", BigInteger),
    Column("llm_request_start_ns", BigInteger),
    Column("llm_request_ns", BigInteger),
    Column("tool_execution_ns", BigInteger),
    Column("step_ns", BigInteger),
    Column("ttft_ns", BigInteger),
    Column("cost_usd", Float),  # none when the price of the model is not known
    Index("steps_by_age", "created_us", "id"),
    Index("steps_of_run", "run_id", "number"),
    Index("steps_of_agent", "agent_id", "created_us", "id"),
)

# What a vendor was sent for a step and what it said, when tracing is on. Keys are hidden and long bodies cut.
provider_traces = Table(
    "provider_traces",
    metadata,
    Column("step_id", Text, ForeignKey("steps.id", ondelete="CASCADE"), primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("response", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Index("provider_traces_by_age", "created_us"),
)

# Providers that users brought, with their keys sealed. One that was deleted keeps its row, and with it its name.
providers = Table(
    "providers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("provider_type", Text, nullable=False),
    Column("base_url", Text),
    Column("region", Text),
    Column("api_version", Text),
    Column("api_key", Text),
    Column("access_key", Text),
    Column("last_synced_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("deleted_us", BigInteger),
)
# The bucket of each limit of a provider that is configured (`core/rate_limits.py`), shared by all processes.
rate_limits = Table(
    "rate_limits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("full_at_us", BigInteger, nullable=False),  # when it holds all that it can hold again
)
# Which run waits for the rate limit of a provider, and until when, so that any process can say it.
rate_waits = Table(
    "rate_waits",
    metadata,
    Column("run_id", Text, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("provider", Text, nullable=False),
    Column("until_us", BigInteger, nullable=False),
    Index("rate_waits_by_end", "until_us"),
)

# Where deleted items stood in their lists, for a day: a walk goes on after an item that was deleted meanwhile.
tombstones = Table(
    "tombstones",
    metadata,
    Column("id", Text, primary_key=True),
    Column("what", Text, nullable=False),
    Column("within", Text, nullable=False),  # the archive of a passage; else empty
    Column("sort_values", Text, nullable=False),  # by the name of the column that a list is sorted by
    Column("deleted_us", BigInteger, nullable=False),
    Index("tombstones_by_age", "deleted_us"),
)

# Work that outlives the request that asked for it: ingesting a file, say. A row is added in the transaction that makes
# the work due, and deleted in the one that ends it, so that no work is lost or done twice.
tasks = Table(
    "tasks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject_id", Text, nullable=False),  # what it is about: a file, a run
    Column("payload", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("due_us", BigInteger, nullable=False),
    Column("lease", BigInteger, nullable=False, server_default="0"),
    Column("lease_owner", Text),
    Column("lease_expires_us", BigInteger),
    Column("created_us", BigInteger, nullable=False),
    UniqueConstraint("kind", "subject_id", name="one_task_per_subject"),
    Index("tasks_by_due", "due_us", "id"),
)

# Small facts about this database: the token estimate learnt per model, and whatever a later release needs.
facts = Table(
    "facts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("number", Float),
)

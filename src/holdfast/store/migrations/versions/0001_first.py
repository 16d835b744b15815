"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _agents() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("agent_type", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("embedding", sa.Text(), nullable=True),
        sa.Column("embedding_config", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("tool_rules", sa.Text(), nullable=False),
        sa.Column("compaction", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("message_buffer_autoclear", sa.Boolean(), nullable=False),
        sa.Column("enable_sleeptime", sa.Boolean(), nullable=True),
        sa.Column("max_files_open", sa.Integer(), nullable=True),
        sa.Column("per_file_view_window_char_limit", sa.BigInteger(), nullable=True),
        sa.Column("hidden", sa.Boolean(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("template_id", sa.Text(), nullable=True),
        sa.Column("base_template_id", sa.Text(), nullable=True),
        sa.Column("last_stop_reason", sa.Text(), nullable=True),
        sa.Column("last_run_completion_us", sa.BigInteger(), nullable=True),
        sa.Column("last_run_duration_ns", sa.BigInteger(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("agents_by_age", "agents", ["created_us", "id"])
    op.create_index("agents_by_name", "agents", ["name"])


def _blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("read_only", sa.Boolean(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=True),
        sa.Column("is_template", sa.Boolean(), nullable=False),
        sa.Column("template_name", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("blocks_by_age", "blocks", ["created_us", "id"])
    op.create_index("blocks_by_label", "blocks", ["label"])


def _facts() -> None:
    op.create_table(
        "facts",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("number", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("key"),
    )


def _tools() -> None:
    op.create_table(
        "tools",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, unique=True),
        sa.Column("tool_type", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("json_schema", sa.Text(), nullable=False),
        sa.Column("source_code", sa.Text(), nullable=True),
        sa.Column("source_type", sa.Text(), nullable=False),
        sa.Column("args_json_schema", sa.Text(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("return_char_limit", sa.Integer(), nullable=False),
        sa.Column("pip_requirements", sa.Text(), nullable=True),
        sa.Column("npm_requirements", sa.Text(), nullable=True),
        sa.Column("default_requires_approval", sa.Boolean(), nullable=True),
        sa.Column("enable_parallel_execution", sa.Boolean(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("tools_by_age", "tools", ["created_us", "id"])


def _agent_blocks() -> None:
    op.create_table(
        "agent_blocks",
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("block_id", sa.Text(), sa.ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "block_id"),
        sa.UniqueConstraint("agent_id", "label", name="one_block_per_label"),
    )
    op.create_index("agent_blocks_by_block", "agent_blocks", ["block_id"])


def _agent_secrets() -> None:
    op.create_table(
        "agent_secrets",
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value_enc", sa.LargeBinary(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("agent_id", "key"),
    )


def _agent_tags() -> None:
    op.create_table(
        "agent_tags",
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "tag"),
    )
    op.create_index("agent_tags_by_tag", "agent_tags", ["tag"])


def _agent_tools() -> None:
    op.create_table(
        "agent_tools",
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("tool_id", sa.Text(), sa.ForeignKey("tools.id", ondelete="CASCADE"), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "tool_id"),
    )
    op.create_index("agent_tools_by_tool", "agent_tools", ["tool_id"])


def _block_tags() -> None:
    op.create_table(
        "block_tags",
        sa.Column("block_id", sa.Text(), sa.ForeignKey("blocks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("block_id", "tag"),
    )
    op.create_index("block_tags_by_tag", "block_tags", ["tag"])


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False, unique=True),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("step_id", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("otid", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("sender_id", sa.Text(), nullable=True),
        sa.Column("group_id", sa.Text(), nullable=True),
        sa.Column("batch_item_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("messages_of_agent", "messages", ["agent_id", "seq"])
    op.create_index("messages_of_run", "messages", ["run_id", "seq"])
    op.create_index("messages_of_step", "messages", ["step_id", "seq"])


def _threads() -> None:
    op.create_table(
        "threads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("summary", sa.Text(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("model_settings", sa.Text(), nullable=True),
        sa.Column("context_window_limit", sa.BigInteger(), nullable=True),
        sa.Column("isolated_block_ids", sa.Text(), nullable=False),
        sa.Column("hidden", sa.Boolean(), nullable=True),
        sa.Column("archived_us", sa.BigInteger(), nullable=True),
        sa.Column("deleted_us", sa.BigInteger(), nullable=True),
        sa.Column("next_position", sa.BigInteger(), nullable=False),
        sa.Column("system_digest", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("updated_us", sa.BigInteger(), nullable=False),
        sa.Column("last_message_us", sa.BigInteger(), nullable=True),
        sa.Column("last_run_completion_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("threads_of_agent", "threads", ["agent_id", "created_us", "id"])


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("request_config", sa.Text(), nullable=False),
        sa.Column("request_key", sa.Text(), nullable=True),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("callback_sent_us", sa.BigInteger(), nullable=True),
        sa.Column("callback_status_code", sa.Integer(), nullable=True),
        sa.Column("callback_error", sa.Text(), nullable=True),
        sa.Column("callback_due_us", sa.BigInteger(), nullable=True),
        sa.Column("callback_attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("completed_us", sa.BigInteger(), nullable=True),
        sa.Column("ttft_ns", sa.BigInteger(), nullable=True),
        sa.Column("total_duration_ns", sa.BigInteger(), nullable=True),
        sa.Column("lease", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_expires_us", sa.BigInteger(), nullable=True),
        sa.Column("cancel_asked_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )


def _run_indexes() -> None:
    op.create_index(
        "active_runs",
        "runs",
        ["lease_expires_us"],
        sqlite_where=sa.text("status IN ('created', 'running')"),
        postgresql_where=sa.text("status IN ('created', 'running')"),
    )
    op.create_index(
        "callbacks_due",
        "runs",
        ["callback_due_us"],
        sqlite_where=sa.text("callback_due_us IS NOT NULL"),
        postgresql_where=sa.text("callback_due_us IS NOT NULL"),
    )
    op.create_index(
        "one_active_run_per_thread",
        "runs",
        ["thread_id"],
        unique=True,
        sqlite_where=sa.text("status IN ('created', 'running')"),
        postgresql_where=sa.text("status IN ('created', 'running')"),
    )
    op.create_index(
        "one_run_per_request",
        "runs",
        ["thread_id", "request_key"],
        unique=True,
        sqlite_where=sa.text("request_key IS NOT NULL"),
        postgresql_where=sa.text("request_key IS NOT NULL"),
    )
    op.create_index("runs_by_age", "runs", ["created_us", "id"])
    op.create_index("runs_of_agent", "runs", ["agent_id", "created_us", "id"])
    op.create_index("runs_of_thread", "runs", ["thread_id", "created_us", "id"])


def _thread_messages() -> None:
    op.create_table(
        "thread_messages",
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.Text(), sa.ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
        sa.Column("context_position", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("thread_id", "position"),
        sa.UniqueConstraint("thread_id", "message_id", name="a_message_once_per_thread"),
    )
    op.create_index("thread_messages_by_message", "thread_messages", ["message_id"])
    op.create_index(
        "thread_window",
        "thread_messages",
        ["thread_id", "context_position"],
        unique=True,
        sqlite_where=sa.text("context_position IS NOT NULL"),
        postgresql_where=sa.text("context_position IS NOT NULL"),
    )


def _frames() -> None:
    op.create_table(
        "frames",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("frames", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_seq"),
    )


def _holds() -> None:
    op.create_table(
        "holds",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False, unique=True),
        sa.Column("hold", sa.Text(), nullable=False),
        sa.Column("asked_us", sa.BigInteger(), nullable=False),
        sa.Column("decided_us", sa.BigInteger(), nullable=True),
        sa.Column("decided_by_run", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_index(
        "one_open_hold_per_thread",
        "holds",
        ["thread_id"],
        unique=True,
        sqlite_where=sa.text("decided_us IS NULL"),
        postgresql_where=sa.text("decided_us IS NULL"),
    )


def _run_events() -> None:
    op.create_table(
        "run_events",
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number"),
    )


def _run_otids() -> None:
    op.create_table(
        "run_otids",
        sa.Column("thread_id", sa.Text(), sa.ForeignKey("threads.id", ondelete="CASCADE"), nullable=False),
        sa.Column("otid", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.PrimaryKeyConstraint("thread_id", "otid", "run_id"),
    )


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("agent_id", sa.Text(), sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("model_handle", sa.Text(), nullable=False),
        sa.Column("provider_name", sa.Text(), nullable=False),
        sa.Column("provider_category", sa.Text(), nullable=False),
        sa.Column("model_endpoint", sa.Text(), nullable=True),
        sa.Column("context_window_limit", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cache_write_tokens", sa.BigInteger(), nullable=True),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=True),
        sa.Column("usage_estimated", sa.Boolean(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("error_type", sa.Text(), nullable=True),
        sa.Column("error_data", sa.Text(), nullable=True),
        sa.Column("feedback", sa.Text(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("step_start_ns", sa.BigInteger(), nullable=True),
        sa.Column("llm_request_start_ns", sa.BigInteger(), nullable=True),
        sa.Column("llm_request_ns", sa.BigInteger(), nullable=True),
        sa.Column("tool_execution_ns", sa.BigInteger(), nullable=True),
        sa.Column("step_ns", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("steps_by_age", "steps", ["created_us", "id"])
    op.create_index("steps_of_agent", "steps", ["agent_id", "created_us", "id"])
    op.create_index("steps_of_run", "steps", ["run_id", "number"])


def upgrade() -> None:
    _agents()
    _blocks()
    _facts()
    _tools()
    _agent_blocks()
    _agent_secrets()
    _agent_tags()
    _agent_tools()
    _block_tags()
    _messages()
    _threads()
    _runs()
    _run_indexes()
    _thread_messages()
    _frames()
    _holds()
    _run_events()
    _run_otids()
    _steps()

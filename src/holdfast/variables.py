"""The environment variables of the server: which there are, and what they mean. `setting_values.py` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from holdfast.core import egress_policy, rate_limits
from holdfast.errors import ConfigError
from holdfast.setting_values import (
    allowed_hosts,
    comma_list,
    database_url,
    declared_models,
    directory,
    egress_mode,
    handle,
    http_url,
    log_level,
    model_prices,
    one_of,
    openai_responses,
    seconds,
    truth,
    whole,
)


class Variable(msgspec.Struct, frozen=True):
    field: str
    names: tuple[str, ...]  # the first that is set and not empty counts
    parse: Callable[[str], object]
    meaning: str

    def read(self, environment: Mapping[str, str]) -> dict[str, object]:
        for name in self.names:
            if text := environment.get(name, "").strip():
                try:
                    return {self.field: self.parse(text)}
                except ValueError as error:
                    raise ConfigError(f"{name} {error}.") from error
        return {}


def _untruth(text: str) -> bool:
    return not truth(text)


_DAY: Final = 86_400.0

VARIABLES: Final[tuple[Variable, ...]] = (
    Variable("data_dir", ("HOLDFAST_DATA_DIR", "LETTA_DIR"), directory, "Where the database and the key file live."),
    Variable("host", ("HOLDFAST_HOST",), str, "The address to listen on."),
    Variable("port", ("HOLDFAST_PORT",), whole(0, 65_535), "The port to listen on; 0 takes any free one."),
    Variable(
        "database_url", ("HOLDFAST_DATABASE_URL", "LETTA_PG_URI"), database_url, "PostgreSQL; unset means SQLite."
    ),
    Variable(
        "database_direct_url",
        ("HOLDFAST_DATABASE_DIRECT_URL",),
        database_url,
        "PostgreSQL itself, for signals between servers, where the other address is a proxy that pools transactions.",
    ),
    Variable("api_key", ("HOLDFAST_API_KEY", "LETTA_SERVER_PASSWORD"), str, "Required of every request when set."),
    Variable(
        "secrets_key",
        ("HOLDFAST_SECRETS_KEY",),
        str,
        "Does what the API key does, and also reads agents' secrets in clear; unset means that nobody does.",
    ),
    Variable(
        "encryption_key",
        ("HOLDFAST_ENCRYPTION_KEY", "LETTA_ENCRYPTION_KEY"),
        str,
        "Seals stored secrets instead of the key file in the data directory.",
    ),
    Variable(
        "old_encryption_key",
        ("HOLDFAST_OLD_ENCRYPTION_KEY",),
        str,
        "The encryption key before this one: opens what it sealed, until `holdfast reseal` was run.",
    ),
    Variable("max_body_bytes", ("HOLDFAST_MAX_BODY_BYTES",), whole(1024, 2**32), "The largest request accepted."),
    Variable("max_file_bytes", ("HOLDFAST_MAX_FILE_BYTES",), whole(1024, 2**30), "The largest file accepted."),
    Variable("file_memory_bytes", ("HOLDFAST_FILE_MEMORY_BYTES",), whole(2**27, 2**40), "Memory to read a file in."),
    Variable("file_timeout_s", ("HOLDFAST_FILE_TIMEOUT_S",), seconds(1, 3600), "How long reading a file may take."),
    Variable(
        "header_timeout_s",
        ("HOLDFAST_HEADER_TIMEOUT_S",),
        seconds(0.1, 600),
        "How long a connection may take to send a whole request header.",
    ),
    Variable(
        "body_timeout_s",
        ("HOLDFAST_BODY_TIMEOUT_S",),
        seconds(0.1, 3600),
        "The longest silence in the middle of a request's body.",
    ),
    Variable(
        "max_connections_per_peer",
        ("HOLDFAST_MAX_CONNECTIONS_PER_PEER",),
        whole(0, 1_000_000),
        "How many connections one address may have open; 0: as many as the server has, which suits a proxy.",
    ),
    Variable(
        "acceptable_origins",
        ("HOLDFAST_ACCEPTABLE_ORIGINS", "ACCEPTABLE_ORIGINS"),
        comma_list,
        "Web origins, besides this machine, whose pages may call the API.",
    ),
    Variable(
        "allowed_hosts",
        ("HOLDFAST_ALLOWED_HOSTS",),
        allowed_hosts,
        "Private hosts or networks that webhooks, image URLs, MCP servers and providers that users bring may reach.",
    ),
    Variable(
        "allow_private_addresses",
        ("HOLDFAST_ALLOW_PRIVATE_ADDRESSES",),
        truth,
        "`true` lets webhooks, image URLs, MCP servers and providers that users bring reach every private address, "
        "`false` none but the allowed hosts; unset, only these providers may, and only without a key on loopback.",
    ),
    Variable(
        "default_model",
        ("HOLDFAST_DEFAULT_MODEL", "LETTA_DEFAULT_LLM_HANDLE"),
        handle,
        "The model of an agent that names none; the offline model when no provider is configured.",
    ),
    Variable(
        "default_embedding",
        ("HOLDFAST_DEFAULT_EMBEDDING", "LETTA_DEFAULT_EMBEDDING_HANDLE"),
        handle,
        "The embedding model of an agent that names none.",
    ),
    Variable(
        "archival_token_limit",
        ("HOLDFAST_ARCHIVAL_TOKEN_LIMIT", "LETTA_ARCHIVAL_MEMORY_TOKEN_LIMIT"),
        whole(1, 1_000_000),
        "How long a passage of archival memory may be, in tokens of four bytes.",
    ),
    Variable(
        "max_context_window",
        ("HOLDFAST_MAX_CONTEXT_WINDOW", "GLOBAL_MAX_CONTEXT_WINDOW_LIMIT"),
        whole(1_000, 100_000_000),
        "How much of a larger context window an agent gets unless it asks for more, in tokens.",
    ),
    Variable(
        "models",
        ("HOLDFAST_MODELS",),
        declared_models,
        "Models of servers that cannot list them, such as `vllm/my-model=32768`; the number is the context window.",
    ),
    Variable(
        "model_prices",
        ("HOLDFAST_MODEL_PRICES",),
        model_prices,
        "Prices instead of the known ones, in US dollars per million tokens of input, output, cached input and cache "
        "writes; the last two may be left out: `openai/gpt-4o=2.5/10/1.25`.",
    ),
    Variable(
        "openai_responses",
        ("HOLDFAST_OPENAI_RESPONSES",),
        openai_responses,
        "Whether OpenAI is called through its Responses API; `auto`: for its reasoning models, if the extra is there.",
    ),
    Variable(
        "model_timeout_s",
        ("HOLDFAST_MODEL_TIMEOUT_S", "LETTA_LLM_REQUEST_TIMEOUT_SECONDS"),
        seconds(1, 1800),
        "How long a model may stay silent before its first byte.",
    ),
    Variable(
        "model_stream_timeout_s",
        ("HOLDFAST_MODEL_STREAM_TIMEOUT_S", "LETTA_LLM_STREAM_TIMEOUT_SECONDS"),
        seconds(1, 1800),
        "How long a whole reply may take.",
    ),
    Variable(
        "embedding_timeout_s",
        ("HOLDFAST_EMBEDDING_TIMEOUT_S",),
        seconds(0.1, 1800),
        "How long a search waits for embedding models, and an insert for each batch; then words must do.",
    ),
    Variable(
        "model_retries",
        ("HOLDFAST_MODEL_RETRIES", "ANTHROPIC_MAX_RETRIES"),
        whole(0, 20),
        "How often a model call is tried again after a rate limit, an overload or a lost connection.",
    ),
    Variable(
        "model_retry_s",
        ("HOLDFAST_MODEL_RETRY_S",),
        seconds(0, 60),
        "The pause before the first of these tries; each later one is twice as long.",
    ),
    Variable(
        "provider_limits",
        ("HOLDFAST_PROVIDER_LIMITS",),
        rate_limits.parse_limits,
        "What all servers together may ask of a provider, in requests or tokens per `s`, `min`, `hour` or `day`: "
        "`openai=500/min,openai=200000 tokens/min,anthropic=50/s`. A call beyond it waits.",
    ),
    Variable(
        "provider_wait_s",
        ("HOLDFAST_PROVIDER_WAIT_S",),
        seconds(0, rate_limits.LONGEST_WAIT_S),
        "How long a call waits for such a limit before it fails.",
    ),
    Variable(
        "keepalive_s",
        ("HOLDFAST_KEEPALIVE_S", "LETTA_KEEPALIVE_INTERVAL"),
        seconds(0.05, 3600),
        "The longest silence on an event stream.",
    ),
    Variable(
        "queue_wait_s",
        ("HOLDFAST_QUEUE_WAIT_S",),
        seconds(0, 600),
        "How long a blocking message waits for a busy conversation before it is answered 409.",
    ),
    Variable("lease_ttl_s", ("HOLDFAST_LEASE_TTL_S",), seconds(0.1, 600), "After this a dead worker's runs move on."),
    Variable(
        "database_timeout_s",
        ("HOLDFAST_DATABASE_TIMEOUT_S",),
        seconds(0.5, 600),
        "How long PostgreSQL may take for a connection, and for a transaction, before it is given up.",
    ),
    Variable(
        "unready_s",
        ("HOLDFAST_UNREADY_S",),
        seconds(0, 600),
        "How long a server that is told to stop still serves as before, but for `/v1/ready`, which is 503.",
    ),
    Variable("drain_s", ("HOLDFAST_DRAIN_S",), seconds(0, 600), "How long a stopping server lets requests finish."),
    Variable(
        "max_runs",
        ("HOLDFAST_MAX_RUNS",),
        whole(1, 1_000_000),
        "How many runs a server drives at once. More of them wait, unless somebody waits for their answer.",
    ),
    Variable(
        "max_runs_per_agent",
        ("HOLDFAST_MAX_RUNS_PER_AGENT",),
        whole(0, 1_000_000),
        "How many runs of one agent all servers together drive before its further background runs wait; 0: any number.",
    ),
    Variable(
        "max_foreground_runs",
        ("HOLDFAST_MAX_FOREGROUND_RUNS",),
        whole(0, 1_000_000),
        "How many runs a server drives while somebody waits for them; more are answered 503. 0: any number.",
    ),
    Variable(
        "max_waiting_runs",
        ("HOLDFAST_MAX_WAITING_RUNS",),
        whole(0, 100_000_000),
        "How many runs may wait for a worker, in all; further background runs are answered 503. 0: any number.",
    ),
    Variable(
        "worker",
        ("HOLDFAST_WORKER",),
        truth,
        "Whether a server drives background runs. Without, it leaves them to `holdfast worker`.",
    ),
    Variable(
        "worker_port",
        ("HOLDFAST_WORKER_PORT",),
        whole(0, 65_535),
        "Where `holdfast worker` serves `/metrics`, `/v1/health/` and `/v1/ready/`; unset: nowhere.",
    ),
    Variable(
        "processes",
        ("HOLDFAST_PROCESSES",),
        whole(1, 256),
        "How many processes `holdfast serve` starts on one port; more than one needs PostgreSQL.",
    ),
    Variable(
        "frame_retention_s",
        ("HOLDFAST_FRAME_RETENTION_S",),
        seconds(60, 365 * _DAY),
        "How long a finished stream can be replayed.",
    ),
    Variable(
        "frame_retention_bytes",
        ("HOLDFAST_FRAME_RETENTION_BYTES",),
        whole(0, 2**50),
        "How much of finished streams is kept in all; beyond it, those of the runs that ended first go. 0: any amount.",
    ),
    Variable(
        "run_retention_s",
        ("HOLDFAST_RUN_RETENTION_S",),
        seconds(0, 3650 * _DAY),
        "How long the journal of an ended run is kept; 0 keeps it for ever. The run, its messages and steps stay.",
    ),
    Variable(
        "run_retention_bytes",
        ("HOLDFAST_RUN_RETENTION_BYTES",),
        whole(0, 2**50),
        "How much of the journals of ended runs is kept in all, in the same way. 0: any amount.",
    ),
    Variable(
        "trace_provider",
        ("HOLDFAST_TRACE_PROVIDER", "LETTA_TRACK_PROVIDER_TRACE"),
        truth,
        "Keeps what vendors were sent and what they said, prompts included; keys and secrets are hidden.",
    ),
    Variable(
        "trace_max_bytes",
        ("HOLDFAST_TRACE_MAX_BYTES",),
        whole(1024, 2**30),
        "How much is kept of a request, and how much of its reply.",
    ),
    Variable(
        "trace_retention_s",
        ("HOLDFAST_TRACE_RETENTION_S",),
        seconds(60, 365 * _DAY),
        "How long it is kept.",
    ),
    Variable(
        "trace_retention_bytes",
        ("HOLDFAST_TRACE_RETENTION_BYTES",),
        whole(0, 2**50),
        "How much of it is kept in all of ended runs, in the same way. 0: any amount.",
    ),
    Variable(
        "otlp_endpoint",
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "LETTA_OTEL_EXPORTER_OTLP_ENDPOINT"),
        http_url,
        "Where OpenTelemetry spans are sent (OTLP over HTTP); needs `holdfast[telemetry]`.",
    ),
    Variable(
        "tool_timeout_s",
        ("HOLDFAST_TOOL_TIMEOUT_S", "TOOL_SANDBOX_TIMEOUT"),
        seconds(0.1, _DAY),
        "How long a custom tool may run.",
    ),
    Variable(
        "tool_memory_bytes",
        ("HOLDFAST_TOOL_MEMORY_BYTES",),
        whole(64 << 20, 2**40),
        "The memory that all processes of one call of a custom tool may use together.",
    ),
    Variable(
        "tool_disk_bytes",
        ("HOLDFAST_TOOL_DISK_BYTES",),
        whole(1 << 20, 2**40),
        "How much one call of a custom tool may keep in files.",
    ),
    Variable(
        "tool_processes",
        ("HOLDFAST_TOOL_PROCESSES",),
        whole(16, 30_000),
        "How many processes and threads one call of a custom tool may have at once.",
    ),
    Variable(
        "tools_memory_bytes",
        ("HOLDFAST_TOOLS_MEMORY_BYTES",),
        whole(64 << 20, 2**44),
        "The memory of all running calls of custom tools together; unset means half of the machine's.",
    ),
    Variable(
        "unsafe_tools",
        ("HOLDFAST_UNSAFE_TOOLS",),
        truth,
        "Runs custom tools also where nothing keeps them away from the data directory and the server; for tests only.",
    ),
    Variable(
        "tool_egress",
        ("HOLDFAST_TOOL_EGRESS",),
        egress_mode,
        "What custom tools may connect to: `none`, `public` (the internet only), `allow-list` or `all`.",
    ),
    Variable(
        "tool_egress_allow",
        ("HOLDFAST_TOOL_EGRESS_ALLOW",),
        egress_policy.entries,
        "For `allow-list`: hosts, addresses and networks, each with or without `:PORT`, separated by commas.",
    ),
    Variable(
        "metrics",
        ("HOLDFAST_METRICS",),
        one_of("key", "open", "off"),
        "Who may read `/metrics`: `key`, who has the API key, or everybody if there is none; `open`, everybody; `off`.",
    ),
    Variable(
        "process",
        ("HOLDFAST_PROCESS",),
        whole(0, 255),
        "The number of this process among those on one port, a label of its metrics; `serve --processes` sets it.",
    ),
    Variable("log_level", ("HOLDFAST_LOG_LEVEL", "LETTA_LOGGING_LOG_LEVEL"), log_level, "How much is logged."),
    Variable(
        "log_format",
        ("HOLDFAST_LOG_FORMAT",),
        one_of("text", "json"),
        "`text` for people, or `json`: one object per line, with the ids of requests and runs.",
    ),
    Variable(
        "mcp_stdio",
        ("MCP_DISABLE_STDIO",),
        _untruth,
        "The old server's word for the next, the other way round: `false` allows MCP servers that are programs.",
    ),
    Variable(
        "mcp_stdio",
        ("HOLDFAST_MCP_STDIO",),
        truth,
        "Allows MCP servers that are programs on this machine: whoever may call the API may then start any program.",
    ),
    Variable(
        "mcp_connect_timeout_s",
        ("HOLDFAST_MCP_CONNECT_TIMEOUT_S", "MCP_CONNECT_TO_SERVER_TIMEOUT"),
        seconds(0.1, 3600),
        "How long a connection to an MCP server may take, its handshake included.",
    ),
    Variable(
        "mcp_list_timeout_s",
        ("HOLDFAST_MCP_LIST_TIMEOUT_S", "MCP_LIST_TOOLS_TIMEOUT"),
        seconds(0.1, 3600),
        "How long an MCP server may take to list its tools.",
    ),
    Variable(
        "mcp_call_timeout_s",
        ("HOLDFAST_MCP_CALL_TIMEOUT_S", "MCP_EXECUTE_TOOL_TIMEOUT"),
        seconds(0.1, 86_400),
        "How long an MCP server may take for a call of a tool.",
    ),
    Variable(
        "mcp_answer_bytes",
        ("HOLDFAST_MCP_ANSWER_BYTES",),
        whole(1024, 2**30),
        "The largest answer that an MCP server may give.",
    ),
    Variable(
        "mcp_trust_annotations",
        ("HOLDFAST_MCP_TRUST_ANNOTATIONS",),
        truth,
        "Believes MCP servers that say of a tool that it may be repeated: a call of it that a crash cut off is.",
    ),
    Variable(
        "public_url",
        ("HOLDFAST_PUBLIC_URL", "LETTA_AGENTS_ENDPOINT"),
        http_url,
        "How browsers reach this server, for logins at MCP servers; unset means its host and port.",
    ),
)

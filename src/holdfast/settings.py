"""One frozen Settings, read once from the environment and passed in. `variables.py` lists what is read.

Where an old deployment has a name for the same thing, that name is honoured after ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import quote, unquote, urlsplit

import msgspec
import platformdirs

from holdfast.core import egress_policy
from holdfast.core.rate_limits import Limit
from holdfast.core.usage import Price
from holdfast.errors import ConfigError
from holdfast.private_files import DATABASE_FILE, make_private
from holdfast.setting_values import DeclaredModel
from holdfast.variables import VARIABLES

OFFLINE_MODEL: Final = "holdfast/offline"
_EVERYWHERE: Final = ("0.0.0.0/0", "::/0")

# Any of these enables a provider; the rest of PROVIDER_VARIABLES only tunes one.
ENABLING_VARIABLES: Final = frozenset(
    {
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_CLOUD_LOCATION",
        "OLLAMA_BASE_URL",
        "VLLM_API_BASE",
        "SGLANG_API_BASE",
        "LMSTUDIO_BASE_URL",
        "AZURE_API_KEY",
        "AWS_ACCESS_KEY_ID",
        "MISTRAL_API_KEY",
        "COHERE_API_KEY",
        "OPENROUTER_API_KEY",
        "GROQ_API_KEY",
        "TOGETHER_API_KEY",
        "DEEPSEEK_API_KEY",
        "XAI_API_KEY",
        "ZAI_API_KEY",
        "MINIMAX_API_KEY",
        "BASETEN_API_KEY",
        "FIREWORKS_API_KEY",
    }
)
PROVIDER_VARIABLES: Final = ENABLING_VARIABLES | frozenset(
    {
        "OPENAI_BASE_URL",
        "OPENAI_API_BASE",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_SONNET_1M",
        "ANTHROPIC_OPUS_1M",
        "GEMINI_BASE_URL",
        "GOOGLE_CLOUD_PROJECT",
        "VLLM_HANDLE_BASE",
        "SGLANG_HANDLE_BASE",
        "AZURE_BASE_URL",
        "AZURE_API_VERSION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
        "MISTRAL_BASE_URL",
        "COHERE_BASE_URL",
        "OPENROUTER_HANDLE_BASE",
        "OPENROUTER_REFERER",
        "OPENROUTER_TITLE",
        "GROQ_BASE_URL",
        "TOGETHER_BASE_URL",
        "DEEPSEEK_BASE_URL",
        "XAI_BASE_URL",
        "ZAI_BASE_URL",
        "MINIMAX_BASE_URL",
        "BASETEN_BASE_URL",
        "FIREWORKS_BASE_URL",
    }
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8283
    database_url: str | None = None
    database_direct_url: str | None = None
    api_key: str | None = None
    secrets_key: str | None = None
    encryption_key: str | None = None
    old_encryption_key: str | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    max_file_bytes: int = 50 * 1024 * 1024
    file_memory_bytes: int = 1 << 30
    file_timeout_s: float = 60.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    max_connections_per_peer: int = 0
    acceptable_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allow_private_addresses: bool | None = None
    default_model: str | None = None
    default_embedding: str | None = None
    archival_token_limit: int = 8_192
    max_context_window: int = 128_000
    models: tuple[DeclaredModel, ...] = ()
    model_prices: Mapping[str, Price] = {}
    openai_responses: Literal["auto", "always", "never"] = "auto"
    model_timeout_s: float = 60.0
    model_stream_timeout_s: float = 600.0
    embedding_timeout_s: float = 10.0
    model_retries: int = 3
    model_retry_s: float = 0.5
    provider_limits: tuple[Limit, ...] = ()
    provider_wait_s: float = 300.0
    keepalive_s: float = 20.0
    queue_wait_s: float = 20.0
    lease_ttl_s: float = 10.0
    unready_s: float = 0.0
    drain_s: float = 10.0
    max_runs: int = 1_000
    max_runs_per_agent: int = 0
    max_foreground_runs: int = 1_000
    max_waiting_runs: int = 10_000
    worker: bool = True
    worker_port: int | None = None
    processes: int = 1
    database_timeout_s: float = 10.0
    frame_retention_s: float = 3 * 3600.0
    frame_retention_bytes: int = 0
    run_retention_s: float = 0.0
    run_retention_bytes: int = 0
    trace_provider: bool = False
    trace_max_bytes: int = 256 * 1024
    trace_retention_s: float = 86_400.0
    trace_retention_bytes: int = 0
    otlp_endpoint: str | None = None
    tool_timeout_s: float = 180.0
    tool_memory_bytes: int = 2 << 30
    tool_disk_bytes: int = 256 << 20
    tool_processes: int = 512
    tools_memory_bytes: int | None = None
    unsafe_tools: bool = False
    tool_egress: egress_policy.Mode = "public"
    tool_egress_allow: tuple[egress_policy.Entry, ...] = ()
    mcp_stdio: bool = False
    mcp_connect_timeout_s: float = 30.0
    mcp_list_timeout_s: float = 30.0
    mcp_call_timeout_s: float = 60.0
    mcp_answer_bytes: int = 8 * 1024 * 1024
    mcp_trust_annotations: bool = False
    public_url: str | None = None
    metrics: Literal["key", "open", "off"] = "key"
    process: int = 0
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"
    providers: Mapping[str, str] = {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        values: dict[str, Any] = {"data_dir": Path(platformdirs.user_data_dir("holdfast", appauthor=False))}
        for variable in VARIABLES:
            values |= variable.read(environment)
        # Without the line end that a file with a key in it usually has.
        said = {name: environment.get(name, "").strip() for name in sorted(PROVIDER_VARIABLES)}
        providers = {name: value for name, value in said.items() if value}
        if not ENABLING_VARIABLES & providers.keys():
            values.setdefault("default_model", OFFLINE_MODEL)
        return cls(**values, providers=providers)

    @property
    def signals_address(self) -> str:
        """Of PostgreSQL itself, where `database_url` names a proxy that pools transactions."""
        return self.database_direct_url or self.database_address

    @property
    def database_address(self) -> str:
        return self.database_url or f"sqlite:///{quote(str((self.data_dir / DATABASE_FILE).absolute()))}"

    @property
    def database_file(self) -> Path | None:
        """SQLite's file, or nothing where the database is a server."""
        address = urlsplit(self.database_address)
        return Path(unquote(address.path)[1:]) if address.scheme.startswith("sqlite") and address.path[1:] else None

    @property
    def egress(self) -> egress_policy.Egress:
        """Which addresses custom tools may connect to."""
        return egress_policy.Egress(self.tool_egress, self.tool_egress_allow)

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    @property
    def guards_providers(self) -> bool:
        """Whether the providers that users bring are kept out of private networks.

        Without a key on loopback, callers are programs of this machine: they can reach by themselves what it can.
        Behind a proxy on the same machine it is the key that tells that callers come from elsewhere.
        """
        if self.allow_private_addresses is not None:
            return not self.allow_private_addresses
        return self.api_key is not None or not self.is_local

    @property
    def browser_url(self) -> str:
        """Where a browser finds this server: without a slash at its end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def reachable_hosts(self) -> tuple[str, ...]:
        """Besides public addresses, for webhooks and images: a URL in a message may be written by anybody, whoever
        calls."""
        return _EVERYWHERE if self.allow_private_addresses else self.allowed_hosts

    def require_safe_binding(self) -> None:
        """Everybody who can reach the port can run tools on this machine."""
        if self.api_key is None and not self.is_local:
            raise ConfigError(
                f"Refusing to listen on {self.host} without an API key, because anyone who can reach that address "
                f"could run code here: set HOLDFAST_API_KEY (LETTA_SERVER_PASSWORD is honoured too), or listen on "
                f"127.0.0.1."
            )

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the same database."""
        return self.database_address.startswith("postgres")

    def require_shared(self, what: str) -> None:
        if not self.is_shared:
            raise ConfigError(
                f"{what} needs PostgreSQL: SQLite belongs to one process. Set HOLDFAST_DATABASE_URL=postgresql://…; "
                "`holdfast move` copies what there is."
            )

    def make_data_dir(self) -> None:
        make_private(self.data_dir, self.database_file)

    def __repr__(self) -> str:
        # Settings end up in logs and tracebacks; keys must not.
        return f"Settings(data_dir={str(self.data_dir)!r}, host={self.host!r}, port={self.port}, …)"


def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

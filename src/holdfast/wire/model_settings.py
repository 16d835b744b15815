"""How a model is to be called: `model_settings`, the retired `llm_config` and `embedding_config`, and their
projections of one ModelChoice.

Old clients know a fixed set of providers. A provider outside it (ours, or any OpenAI-compatible server) is shown to
them as `openai`, whose settings it shares.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from holdfast.core.records import ModelChoice
from holdfast.wire.bounds import Handle, JsonObject, Name

SettingsProvider = Literal[
    "openai",
    "sglang",
    "anthropic",
    "google_ai",
    "google_vertex",
    "azure",
    "xai",
    "moonshot",
    "moonshot_coding",
    "zai",
    "groq",
    "deepseek",
    "together",
    "bedrock",
    "baseten",
    "openrouter",
    "chatgpt_oauth",
    "ollama",
    "vllm",
    "lmstudio",
    "lmstudio_openai",
    "mistral",
    "fireworks",
    "cerebras",
    "minimax",
    "hugging-face",
    "zai_coding",
    "cohere",
    "holdfast",
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]

# What a client always sees, per provider; every other provider has the plain fields. What else was set is added.
_PLAIN: Final = ("temperature", "response_format")
_OPENAI: Final = ("temperature", "reasoning", "response_format", "strict")
_GOOGLE: Final = ("temperature", "thinking_config", "response_schema")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "openai": _OPENAI,
    "sglang": (*_OPENAI, "tool_call_parser"),
    "anthropic": ("temperature", "thinking", "response_format", "verbosity", "effort", "strict"),
    "google_ai": _GOOGLE,
    "google_vertex": _GOOGLE,
    "zai": (*_PLAIN, "thinking"),
    "baseten": ("temperature",),
    "chatgpt_oauth": ("temperature", "reasoning"),
}

# What the client's types accept, by provider name; the rest is shown as openai.
_SETTINGS_SHOWN: Final = frozenset(
    {
        "openai",
        "sglang",
        "anthropic",
        "google_ai",
        "google_vertex",
        "azure",
        "xai",
        "moonshot",
        "moonshot_coding",
        "zai",
    }
    | {"groq", "deepseek", "together", "bedrock", "baseten", "openrouter", "chatgpt_oauth"}
)
_ENDPOINTS_SHOWN: Final = frozenset(
    {"openai", "anthropic", "google_ai", "google_vertex", "azure", "groq", "ollama", "lmstudio", "vllm", "hugging-face"}
    | {"minimax", "mistral", "together", "bedrock", "deepseek", "xai", "zai", "zai_coding", "baseten", "fireworks"}
    | {"openrouter", "chatgpt_oauth"}
)


class TextResponseFormat(BaseModel):
    type: Literal["text"]


class JsonObjectResponseFormat(BaseModel):
    type: Literal["json_object"]


def _named_schema(described: dict[str, Any]) -> dict[str, Any]:
    """Clients wrap the schema in its name, or send it as it is."""
    if not isinstance(described.get("schema", {}), dict | None):
        raise ValueError("`schema` must be an object: the JSON schema that answers are to be valid against")
    return described


class JsonSchemaResponseFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: Annotated[JsonObject, AfterValidator(_named_schema)]


ResponseFormat = Annotated[
    TextResponseFormat | JsonObjectResponseFormat | JsonSchemaResponseFormat, Field(discriminator="type")
]


class Reasoning(BaseModel):
    reasoning_effort: Effort | None = None


class Thinking(BaseModel):
    type: Literal["enabled", "disabled"] | None = None
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    clear_thinking: bool | None = None


class ThinkingConfig(BaseModel):
    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Field(ge=-1)] | None = None


class CallFields(BaseModel):
    """What `model_settings` and `llm_config` call by the same name. What is not sent stays as it is; null stands for
    what the model has by default."""

    model_config = ConfigDict(protected_namespaces=())

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    strict: bool | None = None
    tool_call_parser: Name | None = None


class ModelSettings(CallFields):
    """The union of every provider's settings; what a model does not take is not kept."""

    provider_type: SettingsProvider | None = None
    max_output_tokens: Tokens | None = None
    response_schema: ResponseFormat | None = None  # what Google calls the response_format
    reasoning: Reasoning | None = None
    thinking: Thinking | None = None
    thinking_config: ThinkingConfig | None = None


def _valid_handle(handle: str) -> str:
    provider, slash, model = handle.partition("/")
    if not (provider and slash and model):
        raise ValueError(f"{handle!r} is not a handle of the form provider/model")
    return handle


EmbeddingHandle = Annotated[str, Field(max_length=1_024), AfterValidator(_valid_handle)]


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


class LLMConfig(CallFields):
    """The retired way to choose a model; only what still means something is read."""

    model: Handle
    handle: Handle | None = None
    provider_name: Name | None = None
    model_endpoint_type: Name | None = None
    context_window: Tokens | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    enable_reasoner: bool | None = None
    max_reasoning_tokens: Annotated[int, Field(ge=-1)] | None = None
    reasoning_effort: Effort | None = None
    put_inner_thoughts_in_kwargs: bool | None = None

    @property
    def chosen_handle(self) -> str:
        if self.handle:
            return self.handle
        if "/" in self.model:
            return self.model
        return f"{self.provider_name or self.model_endpoint_type or ''}/{self.model}"


def sent_settings(settings: ModelSettings) -> dict[str, Any]:
    """What the caller really said, for storing beside the agent's own."""
    return settings.model_dump(exclude_unset=True, exclude_none=True)


class ModelViews:
    """How a model is shown in `model_settings` and in `llm_config`. Most agents of a list have the same one, which is
    made once."""

    def __init__(self) -> None:
        self._choice: ModelChoice | None = None
        self._views: tuple[dict[str, Any], dict[str, Any]] = {}, {}

    def of(self, choice: ModelChoice) -> tuple[dict[str, Any], dict[str, Any]]:
        if choice != self._choice:
            self._choice, self._views = choice, (settings_view(choice), llm_config_view(choice))
        return self._views


def settings_view(choice: ModelChoice) -> dict[str, Any]:
    provider = shown_provider(_provider_of(choice))
    fields = _FIELDS.get(provider, _PLAIN)
    format_name = "response_schema" if "response_schema" in fields else "response_format"
    settings = choice.settings
    told: dict[str, Any] = {
        "temperature": choice.temperature,
        "thinking": settings.get("thinking"),
        "thinking_config": settings.get("thinking_config"),
        "reasoning": settings.get("reasoning") or ({"reasoning_effort": None} if "reasoning" in fields else None),
        format_name: choice.response_format,
        "verbosity": settings.get("verbosity"),
        "effort": settings.get("effort"),
        "strict": bool(settings.get("strict")),
        "tool_call_parser": settings.get("tool_call_parser"),
    }
    return {
        "provider_type": provider,
        "max_output_tokens": choice.max_output_tokens,
        "parallel_tool_calls": choice.parallel_tool_calls,
        **{name: value for name, value in told.items() if name in fields or value},
    }


def llm_config_view(choice: ModelChoice) -> dict[str, Any]:
    provider, _, model = choice.handle.partition("/")
    settings = choice.settings
    return {
        "model": model,
        "display_name": model,
        "model_endpoint_type": shown_endpoint(_provider_of(choice)),
        "model_endpoint": None,
        "provider_name": provider,
        "provider_category": choice.provider_category,
        "model_wrapper": None,
        "context_window": choice.context_window,
        "put_inner_thoughts_in_kwargs": writes_thoughts(settings),
        "handle": choice.handle,
        "temperature": choice.temperature,
        "max_tokens": choice.max_output_tokens,
        "enable_reasoner": is_reasoner(settings),
        "reasoning_effort": _part(settings, "reasoning").get("reasoning_effort"),
        "max_reasoning_tokens": _reasoning_budget(settings),
        "effort": settings.get("effort"),
        "frequency_penalty": None,
        "compatibility_type": None,
        "verbosity": settings.get("verbosity"),
        "tier": None,
        "parallel_tool_calls": choice.parallel_tool_calls,
        "response_format": choice.response_format,
        "strict": bool(settings.get("strict")),
        "return_logprobs": False,
        "top_logprobs": None,
        "return_token_ids": False,
        "tool_call_parser": settings.get("tool_call_parser"),
    }


def writes_thoughts(settings: dict[str, Any]) -> bool:
    """Whether a model that does not reason by itself is asked for its thoughts in an argument of each call."""
    return bool(settings.get("put_inner_thoughts_in_kwargs") and settings.get("enable_reasoner", True))


def is_reasoner(settings: dict[str, Any]) -> bool:
    """Whether the model reasons: as it is told to, where it can be told, and by its nature where it cannot."""
    if told := _part(settings, "thinking").get("type"):
        return told == "enabled"
    if "thinking_config" in settings:
        return bool(_part(settings, "thinking_config").get("include_thoughts"))
    return bool(settings.get("enable_reasoner"))


def _provider_of(choice: ModelChoice) -> str:
    """Whose settings the model takes. Its handle does not always tell: a provider may have any name."""
    return choice.settings.get("provider_type") or choice.handle.partition("/")[0]


def shown_provider(provider: str) -> str:
    return provider if provider in _SETTINGS_SHOWN else "openai"


def shown_endpoint(provider: str) -> str:
    return provider if provider in _ENDPOINTS_SHOWN else "openai"


def _reasoning_budget(settings: dict[str, Any]) -> int:
    budget = _part(settings, "thinking").get("budget_tokens")
    return budget or _part(settings, "thinking_config").get("thinking_budget") or 0


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return settings.get(name) or {}

"""How a model is to be called: `model_settings`, the retired `llm_config`, and their projections of one ModelChoice.

Old clients know a fixed set of providers. A provider outside it (ours, or any OpenAI-compatible server) is shown to
them as `openai`, whose settings it shares.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

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

# Defaults that a client sees beside what was set, per provider; every other provider has the plain ones.
_COMMON: Final[dict[str, Any]] = {"temperature": 0.7, "response_format": None}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "openai": _COMMON | {"reasoning": {"reasoning_effort": "high"}, "strict": True},
    "sglang": _COMMON | {"reasoning": {"reasoning_effort": "high"}, "strict": True, "tool_call_parser": None},
    "anthropic": {
        "temperature": 1.0,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "response_format": None,
        "verbosity": None,
        "effort": None,
        "strict": False,
    },
    "google_ai": {
        "temperature": 0.7,
        "thinking_config": {"include_thoughts": True, "thinking_budget": 1024},
        "response_schema": None,
    },
    "zai": _COMMON | {"thinking": {"type": "enabled", "clear_thinking": False}},
    "baseten": {"temperature": 0.7},
    "chatgpt_oauth": {"temperature": 0.7, "reasoning": {"reasoning_effort": "medium"}},
}
_DEFAULTS["google_vertex"] = _DEFAULTS["google_ai"]
_MAX_OUTPUT_TOKENS: Final = {"google_ai": 65_536, "google_vertex": 65_536}

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


class JsonSchemaResponseFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: JsonObject


ResponseFormat = Annotated[
    TextResponseFormat | JsonObjectResponseFormat | JsonSchemaResponseFormat, Field(discriminator="type")
]


class Reasoning(BaseModel):
    reasoning_effort: Effort = "high"


class Thinking(BaseModel):
    type: Literal["enabled", "disabled"] = "enabled"
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    clear_thinking: bool | None = None


class ThinkingConfig(BaseModel):
    include_thoughts: bool = True
    thinking_budget: int = 1024


class ModelSettings(BaseModel):
    """The union of every provider's settings; what a provider does not know it ignores."""

    model_config = ConfigDict(protected_namespaces=())

    provider_type: SettingsProvider = "openai"
    max_output_tokens: Tokens | None = None
    parallel_tool_calls: bool = True
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    response_format: ResponseFormat | None = None
    response_schema: ResponseFormat | None = None
    reasoning: Reasoning | None = None
    thinking: Thinking | None = None
    thinking_config: ThinkingConfig | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    strict: bool | None = None
    tool_call_parser: Name | None = None


class LLMConfig(BaseModel):
    """The retired way to choose a model; only what still means something is read."""

    model_config = ConfigDict(protected_namespaces=())

    model: Handle
    handle: Handle | None = None
    provider_name: Name | None = None
    model_endpoint_type: Name | None = None
    context_window: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    enable_reasoner: bool | None = None
    max_reasoning_tokens: Annotated[int, Field(ge=0)] | None = None
    reasoning_effort: Effort | None = None

    @property
    def chosen_handle(self) -> str:
        if self.handle:
            return self.handle
        if "/" in self.model:
            return self.model
        return f"{self.provider_name or self.model_endpoint_type or ''}/{self.model}"


def sent_settings(settings: ModelSettings) -> dict[str, Any]:
    """What the caller really said, for storing: defaults are added when it is shown."""
    return settings.model_dump(exclude_unset=True, exclude_none=True) | {"provider_type": settings.provider_type}


def settings_view(choice: ModelChoice) -> dict[str, Any]:
    provider = choice.settings.get("provider_type") or shown_provider(choice.handle)
    defaults = _DEFAULTS.get(provider, _COMMON)
    shown: dict[str, Any] = {
        "provider_type": provider,
        "max_output_tokens": choice.max_output_tokens or _MAX_OUTPUT_TOKENS.get(provider, 4096),
        "parallel_tool_calls": choice.parallel_tool_calls,
        **defaults,
        **{key: value for key, value in choice.settings.items() if key in defaults},
    }
    if choice.temperature is not None:
        shown["temperature"] = choice.temperature
    if choice.response_format is not None:
        shown["response_schema" if "response_schema" in defaults else "response_format"] = choice.response_format
    return shown


def llm_config_view(choice: ModelChoice) -> dict[str, Any]:
    provider, _, model = choice.handle.partition("/")
    settings = choice.settings
    return {
        "model": model,
        "display_name": model,
        "model_endpoint_type": shown_endpoint(choice.handle),
        "model_endpoint": None,
        "provider_name": provider,
        "provider_category": choice.provider_category,
        "model_wrapper": None,
        "context_window": choice.context_window,
        "put_inner_thoughts_in_kwargs": False,
        "handle": choice.handle,
        "temperature": 1.0 if choice.temperature is None else choice.temperature,
        "max_tokens": choice.max_output_tokens,
        "enable_reasoner": settings.get("enable_reasoner", True),
        "reasoning_effort": _part(settings, "reasoning").get("reasoning_effort"),
        "max_reasoning_tokens": _reasoning_budget(settings),
        "effort": settings.get("effort"),
        "frequency_penalty": None,
        "compatibility_type": None,
        "verbosity": settings.get("verbosity"),
        "tier": None,
        "parallel_tool_calls": choice.parallel_tool_calls,
        "response_format": choice.response_format,
        "strict": settings.get("strict", False),
        "return_logprobs": False,
        "top_logprobs": None,
        "return_token_ids": False,
        "tool_call_parser": settings.get("tool_call_parser"),
    }


def shown_provider(handle: str) -> str:
    provider = handle.partition("/")[0]
    return provider if provider in _SETTINGS_SHOWN else "openai"


def shown_endpoint(handle: str) -> str:
    provider = handle.partition("/")[0]
    return provider if provider in _ENDPOINTS_SHOWN else "openai"


def _reasoning_budget(settings: dict[str, Any]) -> int:
    if "max_reasoning_tokens" in settings:
        return settings["max_reasoning_tokens"]
    return _part(settings, "thinking").get("budget_tokens") or 0


def _part(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return settings.get(name) or {}

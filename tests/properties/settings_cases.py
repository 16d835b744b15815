"""Models of every provider, and whatever can be said about how they are called."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.discovery import named_model
from holdfast.llm.endpoint import OFFICIAL, Endpoint
from holdfast.llm.offline.model import OFFLINE

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "openai": (
        "gpt-4o-mini",
        "gpt-4.1",
        "gpt-5",
        "gpt-5-pro",
        "gpt-5.1",
        "gpt-5.2",
        "gpt-5.4",
        "o3-mini",
        "unheard-of",
    ),
    "anthropic": (
        "claude-3-5-haiku-20241022",
        "claude-sonnet-4-5-20250929",
        "claude-opus-4-5",
        "claude-opus-4-6",
        "claude-opus-4-7",
        "claude-haiku-5-5",
        "claude-opus-5-5",
        "unheard-of",
    ),
    "google_ai": ("gemini-2.0-flash", "gemini-2.5-flash", "gemini-3-pro"),
    "google_vertex": ("gemini-2.5-pro",),
    "bedrock": ("anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-opus-4-7-v1:0", "amazon.nova-pro-v1:0"),
    "azure": ("gpt-5", "my-deployment"),
    "groq": ("llama-3.1-8b-instant", "openai/gpt-oss-120b"),
    "openrouter": ("anthropic/claude-sonnet-4.5", "openai/gpt-5"),
    "zai": ("glm-4.6", "glm-4-plus"),
    "chatgpt_oauth": ("gpt-5.1",),
    **dict.fromkeys(("deepseek",), ("deepseek-chat", "deepseek-reasoner")),
    **dict.fromkeys(("xai", "together", "baseten", "moonshot", "moonshot_coding", "sglang"), ("unheard-of",)),
    **dict.fromkeys(("ollama", "vllm", "lmstudio_openai", "fireworks", "cerebras"), ("qwen3", "llama3")),
    **dict.fromkeys(("mistral", "cohere", "minimax", "hugging-face", "zai_coding"), ("unheard-of",)),
}


def _known(provider_type: str, name: str) -> ModelInfo:
    address = OFFICIAL.get(provider_type, "http://127.0.0.1:9")
    return named_model(Endpoint(provider_name=provider_type, provider_type=provider_type, base_url=address), name)


MODELS: Final = (OFFLINE, *(_known(provider, name) for provider, names in NAMES.items() for name in names))

_FORMATS: Final[tuple[dict[str, Any], ...]] = (
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object", "properties": {}}}},
)
_EFFORT = st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh"])
_FORMAT = st.sampled_from(_FORMATS)
_BUDGET = st.sampled_from([0, 500, 1024, 3000, 9000])
_LIMIT = st.sampled_from([1, 500, 1024, 1025, 4000, 16_384, 200_000])


def _or_null(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | one


def _object(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: _or_null(value) for name, value in fields.items()})


_COMMON: Final[dict[str, st.SearchStrategy[Any]]] = {
    "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.5, 2.0]),
    "parallel_tool_calls": st.booleans(),
    "response_format": _FORMAT,
    "effort": st.sampled_from(["low", "medium", "high", "xhigh", "max"]),
    "verbosity": st.sampled_from(["low", "medium", "high"]),
    "strict": st.booleans(),
    "tool_call_parser": st.just("hermes"),
}
MODEL_SETTINGS: Final = _object(
    **_COMMON,
    provider_type=st.sampled_from(["openai", "anthropic", "google_ai", "groq", "zai"]),
    max_output_tokens=_LIMIT,
    response_schema=_FORMAT,
    reasoning=_object(reasoning_effort=_EFFORT),
    thinking=_object(
        type=st.sampled_from(["enabled", "disabled"]), budget_tokens=_BUDGET, clear_thinking=st.booleans()
    ),
    thinking_config=_object(include_thoughts=st.booleans(), thinking_budget=_BUDGET | st.just(-1)),
)
LLM_CONFIG: Final = _object(
    **_COMMON,
    context_window=st.sampled_from([4_000, 30_000, 128_000, 1_000_000]),
    max_tokens=_LIMIT | st.just(0),
    enable_reasoner=st.booleans(),
    max_reasoning_tokens=_BUDGET,
    reasoning_effort=_EFFORT,
)
ALIASES: Final = _object(
    max_tokens=_LIMIT, reasoning=st.booleans(), parallel_tool_calls=st.booleans(), response_format=_FORMAT
)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of one request that are about the model, without its handle."""
    said: dict[str, Any] = draw(ALIASES)
    if draw(st.booleans()):
        said["model_settings"] = draw(_or_null(MODEL_SETTINGS))
    if draw(st.booleans()):
        said["llm_config"] = draw(LLM_CONFIG)
    return said


def addressed(said: dict[str, Any], handle: str) -> dict[str, Any]:
    """The same, said of the model with this handle."""
    config = said.get("llm_config")
    named = {} if config is None else {"llm_config": {**config, "model": "any", "handle": handle}}
    return {**said, **named, "model": handle}

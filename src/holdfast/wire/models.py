"""Models and embedding models as listed to clients."""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from typing_extensions import TypedDict

from holdfast.core.records import ModelChoice
from holdfast.wire.model_settings import llm_config_view

ProviderCategory = Literal["base", "byok"]
ProviderType = Literal[
    "anthropic",
    "azure",
    "baseten",
    "bedrock",
    "cerebras",
    "chatgpt_oauth",
    "deepseek",
    "fireworks",
    "google_ai",
    "google_vertex",
    "groq",
    "hugging-face",
    "letta",
    "lmstudio_openai",
    "minimax",
    "moonshot",
    "moonshot_coding",
    "mistral",
    "ollama",
    "openai",
    "together",
    "vllm",
    "sglang",
    "openrouter",
    "xai",
    "zai",
    "zai_coding",
]
_EMBEDDING_ENDPOINTS = frozenset(
    {
        "openai",
        "anthropic",
        "bedrock",
        "google_ai",
        "google_vertex",
        "azure",
        "groq",
        "ollama",
        "lmstudio",
        "vllm",
        "hugging-face",
        "mistral",
        "together",
    }
)
_PROVIDER_TYPES = frozenset(ProviderType.__args__)  # pyright: ignore[reportAttributeAccessIssue]


class Model(TypedDict):
    handle: str
    name: str
    display_name: str
    provider_type: str
    provider_name: str
    provider_category: str
    model_type: Literal["llm"]
    max_context_window: int
    model: str
    model_endpoint_type: str
    model_endpoint: str | None
    model_wrapper: str | None
    context_window: int
    put_inner_thoughts_in_kwargs: bool
    temperature: float
    max_tokens: int
    enable_reasoner: bool
    reasoning_effort: str | None
    max_reasoning_tokens: int
    effort: str | None
    frequency_penalty: float | None
    compatibility_type: str | None
    verbosity: str | None
    tier: str | None
    parallel_tool_calls: bool
    response_format: dict[str, Any] | None
    strict: bool
    return_logprobs: bool
    top_logprobs: int | None
    return_token_ids: bool
    tool_call_parser: str | None
    abilities: dict[str, bool]
    price: dict[str, float | None] | None


class EmbeddingConfig(TypedDict):
    handle: str
    embedding_dim: int
    embedding_model: str
    embedding_endpoint_type: str
    embedding_endpoint: str | None
    embedding_chunk_size: int
    batch_size: int
    azure_endpoint: str | None
    azure_version: str | None
    azure_deployment: str | None


class EmbeddingModel(EmbeddingConfig):
    name: str
    display_name: str
    provider_type: str
    provider_name: str
    model_type: Literal["embedding"]


def shown_provider_type(provider_type: str) -> str:
    """A type the client's enum knows; anything else speaks the OpenAI protocol as far as a client can tell."""
    return provider_type if provider_type in _PROVIDER_TYPES else "openai"


def shown_embedding_endpoint(provider_type: str) -> str:
    """The client's enum for embeddings is a shorter one."""
    provider_type = "lmstudio" if provider_type == "lmstudio_openai" else provider_type
    return provider_type if provider_type in _EMBEDDING_ENDPOINTS else "openai"


def model_view(
    usual: ModelChoice,
    *,
    name: str,
    provider_name: str,
    provider_type: str,
    endpoint: str | None,
    abilities: object = None,
    price: object = None,
) -> Model:
    """`usual`: how an agent calls the model that says nothing, with the whole window. `abilities` and `price` are
    objects with fields; a price is in US dollars for a million tokens."""
    shown: dict[str, Any] = {
        **llm_config_view(usual),
        "name": name,
        "model": name,
        "display_name": name,
        "provider_type": shown_provider_type(provider_type),
        "provider_name": provider_name,
        "model_type": "llm",
        "max_context_window": usual.context_window,
        "model_endpoint": endpoint,
        "abilities": msgspec.to_builtins(abilities) if abilities is not None else {},
        "price": msgspec.to_builtins(price),
    }
    return cast("Model", shown)


def embedding_model_view(found: dict[str, Any]) -> EmbeddingModel:
    handle = str(found["handle"])
    provider, _, name = handle.partition("/")
    provider_type = str(found.get("provider_type", provider))
    return {
        "name": found.get("name", name),
        "display_name": found.get("display_name", name),
        "provider_type": shown_provider_type(provider_type),
        "provider_name": found.get("provider_name", provider),
        "model_type": "embedding",
        **embedding_config_view(found),
    }


def embedding_config_view(found: dict[str, Any]) -> EmbeddingConfig:
    """The legacy configuration object of an embedding model, also kept on agents that use it."""
    provider, _, name = str(found["handle"]).partition("/")
    return {
        "handle": found["handle"],
        "embedding_dim": found["embedding_dim"],
        "embedding_model": found.get("name", name),
        "embedding_endpoint_type": shown_embedding_endpoint(str(found.get("provider_type", provider))),
        "embedding_endpoint": found.get("embedding_endpoint"),
        "embedding_chunk_size": found.get("embedding_chunk_size", 300),
        "batch_size": found.get("batch_size", 32),
        "azure_endpoint": None,
        "azure_version": None,
        "azure_deployment": None,
    }

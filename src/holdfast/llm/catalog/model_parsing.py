"""One entry of a provider's list, read as a model. Every vendor has its own words for the same few facts."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from holdfast.llm.base import Abilities, ModelInfo, Price
from holdfast.llm.catalog.base_urls import is_official
from holdfast.llm.catalog.known_models import (
    Spec,
    default_window,
    embedding_dimension,
    is_embedding_name,
    price_of,
    spec_of,
    wide_window,
)
from holdfast.llm.endpoint import Endpoint

_CHAT_TYPES: Final = frozenset({"chat", "language", "code", "llm", "vlm", "model", "base", "text"})
_EMBEDDING_TYPES: Final = frozenset({"embedding", "embeddings"})
_NOT_CHAT: Final = re.compile(r"whisper|\btts\b|moderation|rerank", re.IGNORECASE)
_NOT_CHAT_AT_OPENAI: Final = re.compile(
    r"whisper|tts|dall-e|image|moderation|realtime|transcribe|audio|sora|davinci|babbage|computer-use|-instruct|search"
    r"|deep-research|live"
)
# A line of a Modelfile, as Ollama tells it back: the window that it runs the model with.
_NUM_CTX: Final = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
_WINDOWS: Final = ("loaded_context_length", "context_length", "context_window", "max_model_len", "max_context_length")


class Entry(msgspec.Struct, frozen=True):
    id: str
    fields: dict[str, Any]

    def number(self, *names: str) -> int | None:
        """The first of these that is a positive number; a dot leads into an object."""
        for name in names:
            value = self.value(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return int(value)
        return None

    def truth(self, *names: str) -> bool | None:
        return next((value for name in names if isinstance(value := self.value(name), bool)), None)

    def words(self, name: str) -> list[str] | None:
        value = self.value(name)
        try:
            return msgspec.convert(value, list[str])
        except msgspec.ValidationError:
            return None

    def value(self, path: str) -> Any:
        found: Any = self.fields
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return found  # pyright: ignore[reportUnknownVariableType]

    def does(self, method: str) -> bool:
        """Gemini's word for what a model is for."""
        return method in (self.words("supportedGenerationMethods") or ())


def named_model(endpoint: Endpoint, name: str, window: int | None = None) -> ModelInfo:
    """A model of which nothing but its name is known."""
    return _model(endpoint, name, window=window)


def chat_model(endpoint: Endpoint, entry: Entry) -> ModelInfo | None:
    """None for what cannot hold a conversation."""
    if not _converses(endpoint, entry):
        return None
    known = _model(
        endpoint,
        entry.id,
        described_as=_text(entry.fields.get("model")),
        window=entry.number(*_WINDOWS, "meta.n_ctx", "meta.n_ctx_train"),
        output=entry.number("top_provider.max_completion_tokens", "max_completion_tokens"),
    )
    price = _price(entry) or known.price
    return msgspec.structs.replace(known, abilities=_abilities(entry, known.abilities), price=price)


def claude_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(
        endpoint,
        entry.id,
        window=wide_window(entry.id, endpoint.options) or entry.number("max_input_tokens"),
        output=entry.number("max_tokens"),
    )
    abilities = Abilities(
        images=_listed_or(entry.truth("capabilities.image_input.supported"), known.abilities.images),
        reasoning=_listed_or(entry.truth("capabilities.thinking.supported"), known.abilities.reasoning),
    )
    return msgspec.structs.replace(known, abilities=abilities)


def gemini_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(
        endpoint,
        entry.id.removeprefix("models/"),
        window=entry.number("inputTokenLimit"),
        output=entry.number("outputTokenLimit"),
    )
    reasoning = _listed_or(entry.truth("thinking"), known.abilities.reasoning)
    abilities = Abilities(tools=known.abilities.tools, images=known.abilities.images, reasoning=reasoning)
    return msgspec.structs.replace(known, abilities=abilities)


def cohere_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(endpoint, entry.id, window=entry.number("context_length"))
    can = entry.words("features")
    if can is None:
        return known
    abilities = Abilities(tools="tools" in can, images="vision" in can, reasoning="reasoning" in can)
    return msgspec.structs.replace(known, abilities=abilities)


def ollama_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(endpoint, entry.id, window=_num_ctx(entry) or _of_architecture(entry, "context_length"))
    can = entry.words("capabilities")
    if can is None:  # a server from before it told
        return known
    abilities = Abilities(tools="tools" in can, images="vision" in can, reasoning="thinking" in can)
    return msgspec.structs.replace(known, abilities=abilities)


def ollama_dimension(entry: Entry) -> int | None:
    return _of_architecture(entry, "embedding_length") or embedding_dimension(entry.id)


def only_embeds(entry: Entry) -> bool:
    can = entry.words("capabilities")
    return is_embedding_name(entry.id) if can is None else "completion" not in can


def is_embedding(entry: Entry) -> bool:
    kind = entry.fields.get("type")
    return kind in _EMBEDDING_TYPES or (kind not in _CHAT_TYPES - {"model"} and is_embedding_name(entry.id))


def dimension(entry: Entry) -> int | None:
    listed = entry.number("embedding_dimension", "embedding_dimensions", "dimensions", "embed_dim", "meta.n_embd")
    return listed or embedding_dimension(entry.id)


def _converses(endpoint: Endpoint, entry: Entry) -> bool:
    if is_embedding(entry) or entry.fields.get("active") is False:
        return False
    if entry.truth("capabilities.completion_chat", "supports_chat") is False:
        return False
    kind = entry.fields.get("type")
    if isinstance(kind, str) and kind not in _CHAT_TYPES:
        return False
    at_openai = endpoint.provider_type == "openai" and is_official("openai", endpoint.base_url)
    return not (_NOT_CHAT_AT_OPENAI if at_openai else _NOT_CHAT).search(entry.id)


def _model(
    endpoint: Endpoint,
    name: str,
    *,
    described_as: str | None = None,
    window: int | None = None,
    output: int | None = None,
) -> ModelInfo:
    spec = spec_of(described_as or name) or Spec(None)
    window = window or wide_window(name, endpoint.options) or spec.window or default_window(endpoint.provider_type)
    official = is_official(endpoint.provider_type, endpoint.base_url)
    output = output or spec.output
    return ModelInfo(
        handle=f"{endpoint.provider_name}/{name}",
        name=name,
        provider_name=endpoint.provider_name,
        provider_type=endpoint.provider_type,
        context_window=window,
        endpoint=endpoint.base_url,
        max_output_tokens=min(output, window) if output else None,
        provider_category=endpoint.category,
        abilities=msgspec.structs.replace(
            spec.abilities, strict_tools=spec.abilities.strict_tools and _is_strict(endpoint, official)
        ),
        # The maker's own price: whoever else serves a model of that name may ask anything.
        price=price_of(endpoint.provider_type, name) if official else None,
    )


def _is_strict(endpoint: Endpoint, official: bool) -> bool:
    """Whether schemas are enforced is a matter of the server, not only of the model."""
    return endpoint.provider_type == "azure" or (endpoint.provider_type == "openai" and official)


def _abilities(entry: Entry, known: Abilities) -> Abilities:
    parameters = entry.words("supported_parameters")
    modalities = entry.words("architecture.input_modalities")
    tools = "tools" in parameters if parameters else entry.truth("supports_tools", "capabilities.function_calling")
    images = "image" in modalities if modalities else entry.truth("supports_image_input", "capabilities.vision")
    if entry.fields.get("type") == "vlm":
        images = True
    return msgspec.structs.replace(
        known,
        tools=_listed_or(tools, known.tools),
        images=_listed_or(images, known.images),
        reasoning="reasoning" in parameters if parameters else known.reasoning,
    )


def _price(entry: Entry) -> Price | None:
    """Per token in texts, as OpenRouter writes it, or per million in numbers, where zero means: not for sale."""
    prompt, completion = _amount(entry, "pricing.prompt"), _amount(entry, "pricing.completion")
    if prompt is not None and completion is not None:
        return Price(
            prompt, completion, _amount(entry, "pricing.input_cache_read"), _amount(entry, "pricing.input_cache_write")
        )
    input, output = entry.value("pricing.input"), entry.value("pricing.output")
    if isinstance(input, int | float) and isinstance(output, int | float) and input > 0 and output > 0:
        return Price(input, output)
    return None


def _amount(entry: Entry, path: str) -> float | None:
    value = entry.value(path)
    try:
        amount = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        return None
    return round(amount * 1_000_000, 6) if 0 <= amount < 1 else None


def _num_ctx(entry: Entry) -> int | None:
    found = _NUM_CTX.search(_text(entry.fields.get("parameters")) or "")
    return int(found[1]) if found else None


def _of_architecture(entry: Entry, fact: str) -> int | None:
    """Ollama puts the architecture before the name of the fact, such as `llama.context_length`."""
    try:
        info = msgspec.convert(entry.fields.get("model_info"), dict[str, Any])
    except msgspec.ValidationError:
        return None
    values = [value for key, value in info.items() if key.endswith(f".{fact}")]
    return Entry(entry.id, {fact: values[0]}).number(fact) if values else None


def _listed_or(listed: bool | None, known: bool) -> bool:
    return known if listed is None else listed


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

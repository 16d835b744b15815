"""Asks a provider which models it has, in its own dialect, and reads as much of the answer as it gives.

Every vendor has its own words for the same few facts. What a server says of a model comes first, then the table of
well-known models, then a default. Lists are tolerant: an entry that makes no sense is left out, and a field of an
unexpected type counts as not said.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from holdfast.errors import BadReply, ModelError, ModelTimedOut, Rejected
from holdfast.llm.base import Abilities, ModelInfo, Price
from holdfast.llm.catalog.known_models import (
    Spec,
    default_window,
    embedding_dimension,
    is_embedding_name,
    price_of,
    spec_of,
    wide_window,
)
from holdfast.llm.endpoint import Endpoint, headers_of, is_official, without_version

LISTING_S: Final = 10.0
_SHOWN_AT_ONCE: Final = 8
_MAX_PAGES: Final = 20
_AZURE_LISTING_VERSION: Final = "2023-03-15-preview"  # the last one that tells deployments from models
# Their lists want signed requests, which only their own libraries make.
_CANNOT_LIST: Final = frozenset({"bedrock", "google_vertex"})
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


class EmbeddingInfo(msgspec.Struct, frozen=True):
    name: str
    dimension: int


class Listing(msgspec.Struct, frozen=True):
    """`models` holds every model that can hold a conversation; those without tools are known but not shown."""

    models: tuple[ModelInfo, ...] = ()
    embeddings: tuple[EmbeddingInfo, ...] = ()


class JsonSource(Protocol):
    async def json(
        self, endpoint: Endpoint, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any: ...


def can_list(provider_type: str) -> bool:
    return provider_type not in _CANNOT_LIST


async def list_models(source: JsonSource, endpoint: Endpoint, *, within_s: float = LISTING_S) -> Listing:
    """Raises a ModelError."""
    read = _DIALECTS.get(endpoint.provider_type, _openai)
    try:
        async with asyncio.timeout(within_s):
            return await read(source, endpoint)
    except TimeoutError as error:
        raise ModelTimedOut(
            f"{endpoint.provider_name} ({endpoint.base_url}) did not list its models within {within_s:g} seconds."
        ) from error


async def check(source: JsonSource, endpoint: Endpoint) -> None:
    """Raises a ModelError unless the provider is there and takes the key."""
    if endpoint.provider_type == "openrouter":  # whose list is open to anybody
        await source.json(endpoint, "/key", headers=headers_of(endpoint))
    else:
        await list_models(source, endpoint)


def named_model(endpoint: Endpoint, name: str, window: int | None = None) -> ModelInfo:
    """A model of which nothing but its name is known."""
    return _model(endpoint, name, window=window)


async def _openai(source: JsonSource, endpoint: Endpoint) -> Listing:
    return _listing(endpoint, await _get(source, endpoint, "/models"))


async def _lmstudio(source: JsonSource, endpoint: Endpoint) -> Listing:
    """Its own list tells windows and kinds; servers that only speak like it have the common one."""
    try:
        answer = await _get(source, endpoint, without_version(endpoint.base_url) + "/api/v0/models")
    except (Rejected, BadReply):
        return await _openai(source, endpoint)
    return _listing(endpoint, answer)


async def _azure(source: JsonSource, endpoint: Endpoint) -> Listing:
    """The newer interface has no list of deployments, so that of the older one is asked, which begins at the root."""
    root = endpoint.base_url.removesuffix("/openai/v1")
    path = f"{root}/openai/deployments?api-version={_AZURE_LISTING_VERSION}"
    return _listing(endpoint, await _get(source, endpoint, path))


async def _anthropic(source: JsonSource, endpoint: Endpoint) -> Listing:
    def after(page: dict[str, Any]) -> Any:
        return page.get("last_id") if page.get("has_more") else None

    pages = [page async for page in _pages(source, endpoint, "/v1/models?limit=1000", "after_id", after)]
    entries = [entry for page in pages for entry in _entries(endpoint, page, "data")]
    return Listing(tuple(_claude_model(endpoint, entry) for entry in entries))


async def _google(source: JsonSource, endpoint: Endpoint) -> Listing:
    def after(page: dict[str, Any]) -> Any:
        return page.get("nextPageToken")

    pages = [page async for page in _pages(source, endpoint, "/v1beta/models?pageSize=1000", "pageToken", after)]
    entries = [entry for page in pages for entry in _entries(endpoint, page, "models", id_key="name")]
    models = [_gemini_model(endpoint, entry) for entry in entries if entry.does("generateContent")]
    return Listing(tuple(models), tuple(_embeddings(entry for entry in entries if entry.does("embedContent"))))


async def _cohere(source: JsonSource, endpoint: Endpoint) -> Listing:
    entries = _entries(endpoint, await _get(source, endpoint, "/models?page_size=1000"), "models", id_key="name")
    models = [_cohere_model(endpoint, entry) for entry in entries if "chat" in (entry.words("endpoints") or ())]
    embeds = (entry for entry in entries if "embed" in (entry.words("endpoints") or ()))
    return Listing(tuple(models), tuple(_embeddings(embeds)))


async def _ollama(source: JsonSource, endpoint: Endpoint) -> Listing:
    root = without_version(endpoint.base_url)
    tagged = _entries(endpoint, await _get(source, endpoint, f"{root}/api/tags"), "models", id_key="name")
    gate = asyncio.Semaphore(_SHOWN_AT_ONCE)

    async def shown(entry: Entry) -> Entry:
        async with gate:
            try:
                details = await source.json(endpoint, f"{root}/api/show", body={"model": entry.id})
            except ModelError:
                return entry  # one model that cannot be described is still there
        return Entry(entry.id, _object(details))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shown(entry)) for entry in tagged]
    entries = [task.result() for task in tasks]
    models = [_ollama_model(endpoint, entry) for entry in entries if not _only_embeds(entry)]
    embeddings = [
        EmbeddingInfo(entry.id, dimension)
        for entry in entries
        if _only_embeds(entry) and (dimension := _ollama_dimension(entry))
    ]
    return Listing(tuple(models), tuple(embeddings))


def _listing(endpoint: Endpoint, answer: Any) -> Listing:
    entries = _entries(endpoint, answer, "data", "models")
    models = [model for entry in entries if (model := _chat_model(endpoint, entry))]
    return Listing(tuple(models), tuple(_embeddings(entry for entry in entries if _is_embedding(entry))))


def _embeddings(entries: Iterator[Entry]) -> Iterator[EmbeddingInfo]:
    """One whose dimension nobody knows could not be used."""
    for entry in entries:
        if dimension := _dimension(entry):
            yield EmbeddingInfo(entry.id.removeprefix("models/"), dimension)


def _entries(endpoint: Endpoint, answer: Any, *keys: str, id_key: str = "id") -> list[Entry]:
    fields = _object(answer)
    found = next((fields[key] for key in keys if key in fields), answer)
    try:
        items = msgspec.convert(found, list[dict[str, Any]])
    except msgspec.ValidationError as error:
        raise BadReply(f"{endpoint.provider_name} answered with something that is not a list of models.") from error
    return [Entry(name, item) for item in items if isinstance(name := item.get(id_key), str) and name]


def _object(value: Any) -> dict[str, Any]:
    """Empty when it is something else."""
    try:
        return msgspec.convert(value, dict[str, Any])
    except msgspec.ValidationError:
        return {}


async def _pages(
    source: JsonSource, endpoint: Endpoint, first: str, cursor: str, after: Callable[[dict[str, Any]], Any]
) -> AsyncIterator[Any]:
    """`after`: what the next page begins after, by the page before; nothing, or anything but a text, when it is the
    last. The vendor is told it by the parameter `cursor`."""
    path = first
    for _ in range(_MAX_PAGES):
        page = await _get(source, endpoint, path)
        yield page
        last = after(_object(page))
        if not isinstance(last, str) or not last:
            return
        path = f"{first}&{cursor}={quote(last, safe='')}"


async def _get(source: JsonSource, endpoint: Endpoint, path: str) -> Any:
    return await source.json(endpoint, path, headers=headers_of(endpoint))


_DIALECTS: Final[dict[str, Callable[[JsonSource, Endpoint], Awaitable[Listing]]]] = {
    "anthropic": _anthropic,
    "azure": _azure,
    "cohere": _cohere,
    "google_ai": _google,
    "lmstudio_openai": _lmstudio,
    "ollama": _ollama,
}


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


def _chat_model(endpoint: Endpoint, entry: Entry) -> ModelInfo | None:
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


def _claude_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
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


def _gemini_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(
        endpoint,
        entry.id.removeprefix("models/"),
        window=entry.number("inputTokenLimit"),
        output=entry.number("outputTokenLimit"),
    )
    reasoning = _listed_or(entry.truth("thinking"), known.abilities.reasoning)
    abilities = Abilities(tools=known.abilities.tools, images=known.abilities.images, reasoning=reasoning)
    return msgspec.structs.replace(known, abilities=abilities)


def _cohere_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(endpoint, entry.id, window=entry.number("context_length"))
    can = entry.words("features")
    if can is None:
        return known
    abilities = Abilities(tools="tools" in can, images="vision" in can, reasoning="reasoning" in can)
    return msgspec.structs.replace(known, abilities=abilities)


def _ollama_model(endpoint: Endpoint, entry: Entry) -> ModelInfo:
    known = _model(endpoint, entry.id, window=_num_ctx(entry) or _of_architecture(entry, "context_length"))
    can = entry.words("capabilities")
    if can is None:  # a server from before it told
        return known
    abilities = Abilities(tools="tools" in can, images="vision" in can, reasoning="thinking" in can)
    return msgspec.structs.replace(known, abilities=abilities)


def _ollama_dimension(entry: Entry) -> int | None:
    return _of_architecture(entry, "embedding_length") or embedding_dimension(entry.id)


def _only_embeds(entry: Entry) -> bool:
    can = entry.words("capabilities")
    return is_embedding_name(entry.id) if can is None else "completion" not in can


def _is_embedding(entry: Entry) -> bool:
    kind = entry.fields.get("type")
    return kind in _EMBEDDING_TYPES or (kind not in _CHAT_TYPES - {"model"} and is_embedding_name(entry.id))


def _dimension(entry: Entry) -> int | None:
    listed = entry.number("embedding_dimension", "embedding_dimensions", "dimensions", "embed_dim", "meta.n_embd")
    return listed or embedding_dimension(entry.id)


def _converses(endpoint: Endpoint, entry: Entry) -> bool:
    if _is_embedding(entry) or entry.fields.get("active") is False:
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

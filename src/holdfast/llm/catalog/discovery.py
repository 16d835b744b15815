"""Asks a provider which models it has, in its own dialect, and reads as much of the answer as it gives.

What a server says of a model comes first, then the table of well-known models, then a default. Lists are tolerant: an
entry that makes no sense is left out, and a field of an unexpected type counts as not said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from holdfast.errors import BadReply, ModelError, ModelTimedOut, Rejected
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog import model_parsing
from holdfast.llm.catalog.base_urls import without_version
from holdfast.llm.catalog.model_parsing import Entry
from holdfast.llm.endpoint import Endpoint, headers_of

LISTING_S: Final = 10.0
_SHOWN_AT_ONCE: Final = 8
_MAX_PAGES: Final = 20
_AZURE_LISTING_VERSION: Final = "2023-03-15-preview"  # the last one that tells deployments from models
# Their lists want signed requests, which only their own libraries make.
_CANNOT_LIST: Final = frozenset({"bedrock", "google_vertex"})


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
    return Listing(tuple(model_parsing.claude_model(endpoint, entry) for entry in entries))


async def _google(source: JsonSource, endpoint: Endpoint) -> Listing:
    def after(page: dict[str, Any]) -> Any:
        return page.get("nextPageToken")

    pages = [page async for page in _pages(source, endpoint, "/v1beta/models?pageSize=1000", "pageToken", after)]
    entries = [entry for page in pages for entry in _entries(endpoint, page, "models", id_key="name")]
    models = [model_parsing.gemini_model(endpoint, entry) for entry in entries if entry.does("generateContent")]
    return Listing(tuple(models), tuple(_embeddings(entry for entry in entries if entry.does("embedContent"))))


async def _cohere(source: JsonSource, endpoint: Endpoint) -> Listing:
    entries = _entries(endpoint, await _get(source, endpoint, "/models?page_size=1000"), "models", id_key="name")
    models = [
        model_parsing.cohere_model(endpoint, entry) for entry in entries if "chat" in (entry.words("endpoints") or ())
    ]
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
    models = [model_parsing.ollama_model(endpoint, entry) for entry in entries if not model_parsing.only_embeds(entry)]
    embeddings = [
        EmbeddingInfo(entry.id, dimension)
        for entry in entries
        if model_parsing.only_embeds(entry) and (dimension := model_parsing.ollama_dimension(entry))
    ]
    return Listing(tuple(models), tuple(embeddings))


def _listing(endpoint: Endpoint, answer: Any) -> Listing:
    entries = _entries(endpoint, answer, "data", "models")
    models = [model for entry in entries if (model := model_parsing.chat_model(endpoint, entry))]
    return Listing(tuple(models), tuple(_embeddings(entry for entry in entries if model_parsing.is_embedding(entry))))


def _embeddings(entries: Iterator[Entry]) -> Iterator[EmbeddingInfo]:
    """One whose dimension nobody knows could not be used."""
    for entry in entries:
        if dimension := model_parsing.dimension(entry):
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

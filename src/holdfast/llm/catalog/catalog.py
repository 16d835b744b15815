"""Which models there are: those of the environment's providers, those of providers that users brought, and the offline
one, last. Handles are `provider/model`.

Providers are asked for their models on demand, never at the start, and not at all for a handle that is known. A handle
that nobody knows is looked for once more; if its provider cannot be asked, the handle is taken at its word, because
refusing a working agent while a list is unavailable would be worse.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakSet

import msgspec

from holdfast.core.failures import RetryPolicy
from holdfast.errors import Invalid, ModelError, NotFound
from holdfast.llm import embedding
from holdfast.llm.base import Model, ModelInfo, Price, ProviderStatus
from holdfast.llm.catalog import adapters, discovery
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.discovery import EmbeddingInfo, JsonSource, Listing, named_model
from holdfast.llm.catalog.environment import OPENAI_NAMES
from holdfast.llm.catalog.known_models import undated_name
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.offline import vectors
from holdfast.llm.offline.model import OFFLINE, OfflineModel
from holdfast.settings import DeclaredModel

LoadEndpoints = Callable[[], Awaitable[list[Endpoint]]]

_NAMES_SHOWN: Final = 10
_OTHER_NAME: Final[dict[str, str]] = dict(zip(OPENAI_NAMES, reversed(OPENAI_NAMES), strict=True))
_NEWEST_TAG: Final = ":latest"  # of Ollama, which leaves it out too
FRESH_US: Final = 60 * 1_000_000


@runtime_checkable
class Closable(Protocol):
    """Adapters with connections of their own; the others share a pool."""

    async def aclose(self) -> None: ...

    async def retire(self) -> None:
        """Close it as soon as no reply comes through it any more."""
        ...


class OfflineProvider:
    """One model for the whole process, so that its open streams can be counted."""

    name = OFFLINE.provider_name

    def __init__(self, model: OfflineModel | None = None) -> None:
        self.model = model or OfflineModel()


def _model_part(handle: str) -> str:
    return handle.partition("/")[2]


async def _nothing_brought() -> list[Endpoint]:
    return []


def _wall_clock_us() -> int:
    return time.time_ns() // 1_000


class ModelCatalog:
    """`brought` loads the providers that users brought; it is asked again when they may have changed. `retry_policy` is
    for embeddings: runs have their own. `offline_embeddings`: the library for them is installed. `declared` and
    `prices`, by handle, are the operator's word, which counts before anybody else's."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint] = (),
        *,
        declared: Iterable[DeclaredModel] = (),
        prices: Mapping[str, Price] | None = None,
        brought: LoadEndpoints = _nothing_brought,
        vendors: Vendors | None = None,
        offline: OfflineProvider | None = None,
        now_us: Callable[[], int] = _wall_clock_us,
        retry_policy: RetryPolicy | None = None,
        offline_embeddings: bool = False,
    ) -> None:
        self._offline_embeddings = offline_embeddings
        self._retry_policy = retry_policy or RetryPolicy()
        self.offline = offline or OfflineProvider()
        self._declared = tuple(declared)
        self._prices = prices or {}
        self._vendors = vendors or Vendors()
        self._now_us = now_us
        self._brought = brought
        self._loaded_us: int | None = None
        self._loading = asyncio.Lock()
        self._base = {one.provider_name: ProviderModels(one, self._declared, self._prices) for one in endpoints}
        self._byok: dict[str, ProviderModels] = {}
        self._known: dict[str, ModelInfo] = {OFFLINE.handle: OFFLINE}
        self._opened: dict[ModelInfo, Model] = {}
        self._retired: WeakSet[Closable] = WeakSet()  # replies may still come through them

    async def models(self) -> list[ModelInfo]:
        await self._bring_up_to_date()
        return [*(info for provider in self._all_providers() for info in provider.models()), OFFLINE]

    async def embedding_models(self) -> list[dict[str, Any]]:
        await self._bring_up_to_date()
        found = [item for provider in self._all_providers() for item in provider.embedding_models()]
        return [*found, vectors.described()] if self._offline_embeddings else found

    async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
        if handle == vectors.HANDLE and self._offline_embeddings:
            return await vectors.embed(texts)
        provider_name, _, model = handle.partition("/")
        await self._load_if_outdated()
        provider = self._provider(provider_name)
        if provider is None:
            raise NotFound(f"Embedding model {handle} not found: no provider is called {provider_name}.")
        return await embedding.embed(self._vendors.http, provider.endpoint, model, texts, self._retry_policy)

    async def providers(self) -> list[ProviderStatus]:
        await self._bring_up_to_date()
        return [provider.status() for provider in self._all_providers()]

    async def find(self, handle: str) -> ModelInfo:
        known = self._known.get(handle)
        if known is not None and not (known.provider_category == "byok" and self._is_outdated()):
            return known
        return await self._look_for(handle)

    def open(self, info: ModelInfo) -> Model:
        if info.provider_name == OFFLINE.provider_name:
            return self.offline.model
        opened = self._opened.get(info)
        if opened is None:
            provider = self._provider(info.provider_name)
            if provider is None:
                raise NotFound(f"Handle {info.handle} not found: the provider {info.provider_name} was removed.")
            opened = self._opened[info] = self._vendors.open(provider.endpoint, info)
        return opened

    def is_reserved(self, provider_name: str) -> bool:
        return provider_name == OFFLINE.provider_name or self._base_provider(provider_name) is not None

    async def reload(self) -> None:
        """A provider that changed in any way starts anew: other key, other models.

        One after the other: who was slow to read must not put back what was deleted meanwhile.
        """
        async with self._loading:
            loaded = [one for one in await self._brought() if not self.is_reserved(one.provider_name)]
            for model in self._stock(loaded):
                self._retired.add(model)
                await model.retire()

    async def refresh(self, provider_name: str) -> None:
        await self._load_if_outdated()
        provider = self._provider(provider_name)
        if provider is None:
            raise NotFound(f"Provider {provider_name} not found")
        if provider.can_list:
            await self._refresh(provider)
        if provider.failure is not None:
            raise provider.failure

    async def check(self, endpoint: Endpoint) -> None:
        await discovery.check(self._vendors.http, endpoint)

    async def aclose(self) -> None:
        opened = [model for model in self._opened.values() if isinstance(model, Closable)]
        for model in (*opened, *self._retired):
            await model.aclose()
        self._opened.clear()
        self._retired.clear()
        await self._vendors.aclose()

    def _stock(self, loaded: list[Endpoint]) -> list[Closable]:
        """The models that are not to be used any more, of those that must be closed."""
        kept = {name: provider for name, provider in self._byok.items() if provider.endpoint in loaded}
        changed = self._byok.keys() - kept.keys()
        self._byok = {
            one.provider_name: kept.get(one.provider_name) or ProviderModels(one, self._declared, self._prices)
            for one in sorted(loaded, key=lambda one: one.provider_name)
        }
        self._loaded_us = self._now_us()
        self._forget(changed)
        retired = [self._opened.pop(info) for info in list(self._opened) if info.provider_name in changed]
        return [model for model in retired if isinstance(model, Closable)]

    async def _look_for(self, handle: str) -> ModelInfo:
        provider_name, slash, model_name = handle.partition("/")
        if not (provider_name and slash and model_name):
            raise Invalid(f"Handle {handle!r} is malformed: write it as provider/model, such as {OFFLINE.handle}.")
        await self._load_if_outdated(always=self._base_provider(provider_name) is None)
        provider = self._provider(provider_name)
        if provider is None:
            offline = provider_name == OFFLINE.provider_name
            missing = (
                f"no provider is called {provider_name}; name its key or address where the server starts, "
                "or add it with POST /v1/providers/"
            )
            raise self._not_found(handle, "it has one model" if offline else missing)
        info = provider.find(model_name)
        if info is None and provider.can_list:
            await self._refresh(provider)
            info = provider.find(model_name)
        if info is None:
            if provider.can_list and provider.failure is None:
                raise self._not_found(handle, f"{provider_name} does not list it")
            info = provider.assume_model(model_name)
        found = renamed(info, handle)
        if self._provider(provider_name) is provider:  # and its provider was not changed while it was asked
            self._known[handle] = found
        return found

    def _not_found(self, handle: str, why: str) -> NotFound:
        known = [*(name for provider in self._all_providers() for name in provider.names()), OFFLINE.handle]
        provider_name, _, model_name = handle.partition("/")
        own = self._provider(provider_name)
        prefix = f"{own.endpoint.provider_name if own else provider_name}/"
        alike = get_close_matches(model_name, {_model_part(name) for name in known}, _NAMES_SHOWN)
        near = [name for model in alike for name in known if _model_part(name) == model] or known
        near = sorted(near, key=lambda name: not name.startswith(prefix))[:_NAMES_SHOWN]
        word = "These exist" if len(near) == len(known) else "Near it" if alike else "Some that exist"
        return NotFound(f"Handle {handle} not found: {why}. {word}: {', '.join(near)}.")

    async def _bring_up_to_date(self) -> None:
        await self._load_if_outdated()
        stale = [provider for provider in self._all_providers() if not provider.is_fresh(self._now_us())]
        async with asyncio.TaskGroup() as group:
            for provider in stale:
                group.create_task(self._refresh(provider))

    async def _refresh(self, provider: ProviderModels) -> None:
        await provider.refresh(self._vendors.http, self._now_us)
        if provider.failure is None:
            self._forget({provider.endpoint.provider_name})

    def _forget(self, provider_names: Iterable[str]) -> None:
        """What was found is looked up again."""
        names = set(provider_names)
        self._known = {handle: info for handle, info in self._known.items() if info.provider_name not in names}

    async def _load_if_outdated(self, *, always: bool = False) -> None:
        if always or self._is_outdated():
            await self.reload()

    def _is_outdated(self) -> bool:
        return self._loaded_us is None or self._now_us() - self._loaded_us >= FRESH_US

    def _all_providers(self) -> list[ProviderModels]:
        return [*self._base.values(), *self._byok.values()]

    def _provider(self, provider_name: str) -> ProviderModels | None:
        return self._base_provider(provider_name) or self._byok.get(provider_name)

    def _base_provider(self, provider_name: str) -> ProviderModels | None:
        """OpenAI goes by two names, depending on its address, and an agent may have been made under the other."""
        return self._base.get(provider_name) or self._base.get(_OTHER_NAME.get(provider_name, ""))


class ProviderModels:
    """`declared`: what the operator says is there, for servers that cannot list. It is believed before their list.
    `prices`, by handle: what the operator says it costs."""

    def __init__(
        self, endpoint: Endpoint, declared: Iterable[DeclaredModel] = (), prices: Mapping[str, Price] | None = None
    ) -> None:
        prefixes = OPENAI_NAMES if endpoint.provider_name in OPENAI_NAMES else (endpoint.provider_name,)
        mine = [one for one in declared if one.handle.partition("/")[0] in prefixes]
        self.endpoint = endpoint
        self._declared = tuple(one for one in mine if one.embedding_dim is None)
        self._declared_embeddings = tuple(
            EmbeddingInfo(one.name, one.embedding_dim) for one in mine if one.embedding_dim is not None
        )
        by_provider = [(handle.partition("/"), price) for handle, price in (prices or {}).items()]
        self._prices = {name: price for (provider, _, name), price in by_provider if provider in prefixes}
        self._listing = Listing()
        self._models: dict[str, ModelInfo] = {}
        self._known: dict[str, ModelInfo] = {}
        self._lock = asyncio.Lock()
        self._answers = 0
        self._asked_us: int | None = None
        self._since_us: int | None = None
        self.failure: ModelError | None = None
        self._load(Listing())

    @property
    def can_list(self) -> bool:
        return discovery.can_list(self.endpoint.provider_type)

    def is_fresh(self, now_us: int) -> bool:
        return not self.can_list or (self._asked_us is not None and now_us - self._asked_us < FRESH_US)

    async def refresh(self, source: JsonSource, now_us: Callable[[], int]) -> None:
        """Asks once for everybody who waits, also for who came later. A failure is remembered, the last list kept."""
        answers = self._answers
        async with self._lock:
            if self._answers > answers:
                return
            asked_us = now_us()
            try:
                listing = await discovery.list_models(source, self.endpoint)
            except ModelError as error:
                if self.failure is None:
                    self._since_us = asked_us
                self.failure = error
            else:
                if self.failure is not None or self._since_us is None:
                    self._since_us = asked_us
                self.failure = None
                self._load(listing)
            self._asked_us = asked_us  # not sooner: an answer that is awaited, or was given up, makes nothing fresh
            self._answers += 1

    def find(self, name: str) -> ModelInfo | None:
        return self._known.get(name)

    def assume_model(self, name: str) -> ModelInfo:
        """A model that was not listed because nothing could be. Forgotten when the provider lists again."""
        info = self._known[name] = self._priced(named_model(self.endpoint, name))
        return info

    def models(self) -> list[ModelInfo]:
        """Those that can call tools, by name. A model without is found when it is named, and not offered."""
        wanted = {one.name for one in self._declared}
        return [info for name, info in sorted(self._models.items()) if info.abilities.tools or name in wanted]

    def names(self) -> Iterator[str]:
        """Each once, although some can be written without their date too."""
        return iter(dict.fromkeys(info.handle for info in self._known.values()))

    def embedding_models(self) -> list[dict[str, Any]]:
        endpoint = self.endpoint
        # Under another address OpenAI's models have another prefix; its embedding models never had.
        prefix = OPENAI_NAMES[0] if endpoint.provider_name == OPENAI_NAMES[1] else endpoint.provider_name
        known = {one.name: one for one in (*self._listing.embeddings, *self._declared_embeddings)}
        return [
            {
                "handle": f"{prefix}/{name}",
                "alias": f"{endpoint.provider_name}/{name}",
                "name": name,
                "embedding_dim": known[name].dimension,
                "provider_name": endpoint.provider_name,
                "provider_type": endpoint.provider_type,
                "embedding_endpoint": endpoint.base_url,
            }
            for name in sorted(known)
        ]

    def status(self) -> ProviderStatus:
        return ProviderStatus(
            name=self.endpoint.provider_name,
            provider_type=self.endpoint.provider_type,
            category=self.endpoint.category,
            endpoint=self.endpoint.base_url,
            status=self._status_word(),
            since_us=self._since_us,
            problem=adapters.missing(self.endpoint) if self.failure is None else self.failure.message,
            models=len(self.models()),
        )

    def _status_word(self) -> Any:
        if not self.can_list:
            return "unlistable"
        if self._asked_us is None:
            return "not_asked"
        return "ok" if self.failure is None else "failed"

    def _load(self, listing: Listing) -> None:
        self._listing = listing
        self._models = {info.name: info for info in listing.models}
        self._models |= {one.name: self._as_declared(one) for one in self._declared}
        self._models = {name: self._priced(info) for name, info in self._models.items()}
        # Vendors date or tag their models, and people leave that out: then the newest is meant.
        self._known = {
            **{short: info for name, info in sorted(self._models.items()) for short in _short_names(name)},
            **self._models,
        }

    def _as_declared(self, one: DeclaredModel) -> ModelInfo:
        """All that is declared of a model is its window; what the server says besides is as true as before."""
        listed, window = self._models.get(one.name), one.context_window
        if listed is None:
            return named_model(self.endpoint, one.name, window)
        if window is None:
            return listed
        output = listed.max_output_tokens
        return msgspec.structs.replace(
            listed, context_window=window, max_output_tokens=min(output, window) if output else None
        )

    def _priced(self, info: ModelInfo) -> ModelInfo:
        """A price for a name without its date is for every date."""
        price = self._prices.get(info.name) or self._prices.get(undated_name(info.name))
        return info if price is None else msgspec.structs.replace(info, price=price)


def _short_names(name: str) -> tuple[str, ...]:
    if name.endswith(_NEWEST_TAG):
        return (name.removesuffix(_NEWEST_TAG),)
    undated = undated_name(name)
    return () if undated == name else (undated, f"{undated}-latest")


def renamed(info: ModelInfo, handle: str) -> ModelInfo:
    """As it was asked for, so that an agent shows the handle that it was given."""
    return info if info.handle == handle else msgspec.structs.replace(info, handle=handle)

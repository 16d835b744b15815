"""Which models there are: those of the environment's providers, those of providers that users brought, and the offline
one, last. Handles are `provider/model`.

Providers are asked for their models on demand, never at the start, and not at all for a handle that is known. A handle
that nobody knows is looked for once more; if its provider cannot be asked, the handle is taken at its word, because
refusing a working agent while a list is unavailable would be worse.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakSet

from holdfast.core.failures import RetryPolicy
from holdfast.errors import Invalid, NotFound
from holdfast.llm import embedding
from holdfast.llm.base import Model, ModelInfo, Price, ProviderStatus
from holdfast.llm.catalog import discovery
from holdfast.llm.catalog.adapters import Vendors
from holdfast.llm.catalog.environment import OPENAI_NAMES
from holdfast.llm.catalog.provider_models import FRESH_US, ProviderModels, renamed
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.offline import vectors
from holdfast.llm.offline.model import OFFLINE, OfflineModel
from holdfast.settings import DeclaredModel

LoadEndpoints = Callable[[], Awaitable[list[Endpoint]]]

_NAMES_SHOWN: Final = 10
_OTHER_NAME: Final[dict[str, str]] = dict(zip(OPENAI_NAMES, reversed(OPENAI_NAMES), strict=True))


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

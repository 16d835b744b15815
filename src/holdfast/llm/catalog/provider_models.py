"""One provider: how it is reached, what it last listed, and how that went."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from holdfast.errors import ModelError
from holdfast.llm.base import ModelInfo, Price, ProviderStatus
from holdfast.llm.catalog import adapters, discovery
from holdfast.llm.catalog.discovery import EmbeddingInfo, JsonSource, Listing
from holdfast.llm.catalog.environment import OPENAI_NAMES
from holdfast.llm.catalog.known_models import undated_name
from holdfast.llm.catalog.model_parsing import named_model
from holdfast.llm.endpoint import Endpoint
from holdfast.settings import DeclaredModel

_NEWEST_TAG: Final = ":latest"  # of Ollama, which leaves it out too
FRESH_US: Final = 60 * 1_000_000


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

"""Which models there are. A provider brings its models and opens them; handles are `provider/model`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from holdfast.errors import Invalid, NotFound
from holdfast.llm.base import Model, ModelInfo
from holdfast.llm.scripted import OFFLINE, OfflineModel


class Provider(Protocol):
    @property
    def name(self) -> str:
        """The first half of its handles."""
        ...

    async def models(self) -> list[ModelInfo]: ...

    async def embedding_models(self) -> list[dict[str, Any]]: ...

    def open(self, info: ModelInfo) -> Model: ...

    async def aclose(self) -> None: ...


class OfflineProvider:
    """One model for the whole process, so that its open streams can be counted."""

    name = OFFLINE.provider_name

    def __init__(self, model: OfflineModel | None = None) -> None:
        self.model = model or OfflineModel()

    async def models(self) -> list[ModelInfo]:
        return [OFFLINE]

    async def embedding_models(self) -> list[dict[str, Any]]:
        return []

    def open(self, info: ModelInfo) -> Model:
        return self.model

    async def aclose(self) -> None:
        pass


class ModelCatalog:
    """The offline provider is always there, last."""

    def __init__(self, providers: Iterable[Provider] = (), offline: OfflineProvider | None = None) -> None:
        self.offline = offline or OfflineProvider()
        self._providers: dict[str, Provider] = {one.name: one for one in (*providers, self.offline)}

    async def models(self) -> list[ModelInfo]:
        return [info for provider in self._providers.values() for info in await provider.models()]

    async def embedding_models(self) -> list[dict[str, Any]]:
        return [item for provider in self._providers.values() for item in await provider.embedding_models()]

    async def find(self, handle: str) -> ModelInfo:
        provider_name, slash, model_name = handle.partition("/")
        if not (provider_name and slash and model_name):
            raise Invalid(f"Handle {handle!r} is malformed: write it as provider/model, such as {OFFLINE.handle}.")
        provider = self._providers.get(provider_name)
        for info in await provider.models() if provider else ():
            if info.handle == handle:
                return info
        existing = ", ".join(info.handle for info in await self.models())
        raise NotFound(f"Handle {handle} not found. These exist: {existing}.")

    def open(self, info: ModelInfo) -> Model:
        return self._providers[info.handle.partition("/")[0]].open(info)

    async def aclose(self) -> None:
        for provider in self._providers.values():
            await provider.aclose()

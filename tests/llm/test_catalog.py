from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import Invalid, NotFound
from holdfast.llm.base import Model, ModelInfo
from holdfast.llm.catalog import ModelCatalog, OfflineProvider
from holdfast.llm.scripted import OFFLINE, OfflineModel


class OtherProvider:
    name = "acme"

    def __init__(self) -> None:
        self.model = OfflineModel()
        self.closed = False

    async def models(self) -> list[ModelInfo]:
        return [
            ModelInfo(
                handle="acme/big/one", name="big/one", provider_name="acme", provider_type="openai", context_window=9
            )
        ]

    async def embedding_models(self) -> list[dict[str, Any]]:
        return [{"handle": "acme/embed"}]

    def open(self, info: ModelInfo) -> Model:
        return self.model

    async def aclose(self) -> None:
        self.closed = True


async def test_the_offline_model_is_always_there() -> None:
    catalog = ModelCatalog()
    assert await catalog.models() == [OFFLINE]
    assert await catalog.embedding_models() == []
    info = await catalog.find("holdfast/offline")
    assert (info.context_window, info.provider_name) == (128_000, "holdfast")
    await catalog.aclose()


async def test_one_offline_model_serves_the_whole_process() -> None:
    model = OfflineModel()
    catalog = ModelCatalog(offline=OfflineProvider(model))
    assert catalog.open(OFFLINE) is catalog.open(OFFLINE) is model


@pytest.mark.parametrize("handle", ["openai/gpt-4o", "holdfast/online", "acme/offline"])
async def test_an_unknown_handle_is_not_found_and_told_what_exists(handle: str) -> None:
    with pytest.raises(NotFound, match=f"Handle {handle} not found.*holdfast/offline"):
        await ModelCatalog().find(handle)


@pytest.mark.parametrize("handle", ["", "offline", "holdfast/", "/offline"])
async def test_a_malformed_handle_is_invalid(handle: str) -> None:
    with pytest.raises(Invalid, match="provider/model"):
        await ModelCatalog().find(handle)


async def test_a_provider_plugs_in_before_the_offline_one() -> None:
    other = OtherProvider()
    catalog = ModelCatalog([other])
    assert [info.handle for info in await catalog.models()] == ["acme/big/one", "holdfast/offline"]
    assert await catalog.embedding_models() == [{"handle": "acme/embed"}]
    assert catalog.open(await catalog.find("acme/big/one")) is other.model
    await catalog.aclose()
    assert other.closed

"""Listing models."""

from __future__ import annotations

from .resources import Served


async def test_the_client_lists_models(served: Served) -> None:
    found = {model.handle: model for model in await served.client.models.list()}
    assert set(found) == {"holdfast/offline", "acme/large"}
    large = found["acme/large"]
    assert (large.name, large.provider_name, large.provider_type) == ("large", "acme", "anthropic")
    assert (large.max_context_window, large.context_window, large.api_model_type) == (200_000, 200_000, "llm")


async def test_models_are_filtered_by_provider(served: Served) -> None:
    async def handles(**query: str) -> list[str]:
        return [model["handle"] for model in await served.ok("GET", "/v1/models/", **query)]

    assert await handles(provider_name="acme") == ["acme/large"]
    assert await handles(provider_type="anthropic") == ["acme/large"]
    assert await handles(provider_category="byok") == []
    assert len(await handles(provider_category="base")) == 2
    assert "provider_type" in await served.refused(422, "GET", "/v1/models/", provider_type="nobody")


async def test_the_client_lists_embedding_models(served: Served) -> None:
    (found,) = await served.client.models.embeddings.list()
    assert (found.handle, found.embedding_dim, found.name) == ("acme/vectors", 8, "vectors")

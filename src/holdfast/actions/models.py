"""Which models this server can use, and how it went to ask its providers for them."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.llm.base import Catalog
from holdfast.llm.catalog.presets import preset
from holdfast.wire import models as wire
from holdfast.wire.providers import ProviderStatusView
from holdfast.wire.times import optional_timestamp


async def list_models(
    catalog: Catalog,
    categories: Collection[str] | None,
    provider_name: str | None,
    provider_type: wire.ProviderType | None,
) -> list[wire.Model]:
    found = [
        model
        for model in await catalog.models()
        if (not categories or model.provider_category in categories)
        and provider_name in (None, model.provider_name)
        and provider_type in (None, wire.shown_provider_type(model.provider_type))
    ]
    return [
        wire.model_view(
            preset(model, model.context_window),
            name=model.name,
            provider_name=model.provider_name,
            provider_type=model.provider_type,
            endpoint=model.endpoint,
            abilities=model.abilities,
            price=model.price,
        )
        for model in found
    ]


async def list_embedding_models(catalog: Catalog) -> list[wire.EmbeddingModel]:
    return [wire.embedding_model_view(found) for found in await catalog.embedding_models()]


async def list_provider_statuses(catalog: Catalog) -> list[ProviderStatusView]:
    """Whether each provider could be asked for its models, and if not, since when and why."""
    return [
        {
            "name": found.name,
            "provider_type": wire.shown_provider_type(found.provider_type),
            "provider_category": found.category,
            "base_url": found.endpoint,
            "status": found.status,
            "since": optional_timestamp(found.since_us),
            "problem": found.problem,
            "models": found.models,
        }
        for found in await catalog.providers()
    ]

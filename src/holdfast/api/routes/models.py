"""Which models this server can use, and how it went to ask its providers for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.json import json_response
from holdfast.api.routing import LazyRouter
from holdfast.llm.catalog.presets import preset
from holdfast.wire import models as wire
from holdfast.wire.providers import ProviderStatusView
from holdfast.wire.times import optional_timestamp

router = LazyRouter(prefix="/v1/models", tags=["models"])


@router.get("/", responses={200: {"model": list[wire.Model]}}, response_model=None)
async def list_models(
    deps: Deps,
    provider_category: Annotated[list[wire.ProviderCategory] | None, Query()] = None,
    provider_name: str | None = None,
    provider_type: wire.ProviderType | None = None,
) -> Response:
    found = [
        model
        for model in await deps.catalog.models()
        if (not provider_category or model.provider_category in provider_category)
        and provider_name in (None, model.provider_name)
        and provider_type in (None, wire.shown_provider_type(model.provider_type))
    ]
    return json_response(
        [
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
    )


@router.get("/embeddings", include_in_schema=False)  # as 0.x clients spell it
@router.get("/embedding", responses={200: {"model": list[wire.EmbeddingModel]}}, response_model=None)
async def list_embedding_models(deps: Deps) -> Response:
    return json_response([wire.embedding_model_view(found) for found in await deps.catalog.embedding_models()])


@router.get("/providers", responses={200: {"model": list[ProviderStatusView]}}, response_model=None)
async def list_provider_statuses(deps: Deps) -> Response:
    """Whether each provider could be asked for its models, and if not, since when and why."""
    shown: list[ProviderStatusView] = [
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
        for found in await deps.catalog.providers()
    ]
    return json_response(shown)

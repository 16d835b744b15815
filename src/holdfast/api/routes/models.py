"""Which models this server can use."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.api.deps import Deps
from holdfast.api.json import json_response
from holdfast.api.routing import LazyRouter
from holdfast.wire import models as wire

router = LazyRouter(prefix="/v1/models", tags=["models"])


@router.get("/", responses={200: {"model": list[wire.Model]}}, response_model=None)
async def list_models(
    deps: Deps,
    provider_category: Annotated[list[wire.ProviderCategory] | None, Query()] = None,
    provider_name: str | None = None,
    provider_type: wire.ProviderType | None = None,
) -> Response:
    if provider_category and "base" not in provider_category:
        return json_response([])
    shown = [
        wire.model_view(
            handle=model.handle,
            name=model.name,
            provider_name=model.provider_name,
            provider_type=model.provider_type,
            context_window=model.context_window,
            endpoint=model.endpoint,
            max_output_tokens=model.max_output_tokens,
        )
        for model in await deps.catalog.models()
        if provider_name in (None, model.provider_name)
    ]
    return json_response([model for model in shown if provider_type in (None, model["provider_type"])])


@router.get("/embedding", responses={200: {"model": list[wire.EmbeddingModel]}}, response_model=None)
async def list_embedding_models(deps: Deps) -> Response:
    return json_response([wire.embedding_model_view(found) for found in await deps.catalog.embedding_models()])

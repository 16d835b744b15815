"""Which models this server can use, and how it went to ask its providers for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from holdfast.actions import models as actions
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import Deps
from holdfast.wire import models as wire
from holdfast.wire.providers import ProviderStatusView

router = LazyRouter(prefix="/v1/models", tags=["models"])


@router.get("/", responses={200: {"model": list[wire.Model]}}, response_model=None)
async def list_models(
    deps: Deps,
    provider_category: Annotated[list[wire.ProviderCategory] | None, Query()] = None,
    provider_name: str | None = None,
    provider_type: wire.ProviderType | None = None,
) -> Response:
    return json_response(await actions.list_models(deps.catalog, provider_category, provider_name, provider_type))


@router.get("/embeddings", include_in_schema=False)  # as 0.x clients spell it
@router.get("/embedding", responses={200: {"model": list[wire.EmbeddingModel]}}, response_model=None)
async def list_embedding_models(deps: Deps) -> Response:
    return json_response(await actions.list_embedding_models(deps.catalog))


@router.get("/providers", responses={200: {"model": list[ProviderStatusView]}}, response_model=None)
async def list_provider_statuses(deps: Deps) -> Response:
    """Whether each provider could be asked for its models, and if not, since when and why."""
    return json_response(await actions.list_provider_statuses(deps.catalog))

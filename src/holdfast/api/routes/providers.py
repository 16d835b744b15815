"""Providers that users bring, beside those of the server's environment."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.actions import providers as actions
from holdfast.actions.dependencies import Holdfast
from holdfast.actions.queries import Page
from holdfast.api.answers import json_response
from holdfast.api.framework.routing import LazyRouter
from holdfast.api.params import After, Before, Deps, Limit, Order, OrderBy, ProviderId
from holdfast.wire import models
from holdfast.wire.providers import ProviderCheck, ProviderCreate, ProviderUpdate, ProviderView, provider_view

router = LazyRouter(prefix="/v1/providers", tags=["providers"])


@router.get("/", responses={200: {"model": list[ProviderView]}}, response_model=None)
async def list_providers(
    deps: Deps,
    before: Before = None,
    after: After = None,
    limit: Limit = 50,
    order: Order = "desc",
    order_by: OrderBy = "created_at",
    name: str | None = None,
    provider_type: models.ProviderType | None = None,
) -> Response:
    page = Page(limit=limit, before=before, after=after, order=order)
    found = await actions.list_providers(deps.database, page, name=name, provider_type=provider_type)
    return json_response([provider_view(provider) for provider in found])


@router.post("/", responses={200: {"model": ProviderView}}, response_model=None)
async def create_provider(deps: Deps, request: ProviderCreate) -> Response:
    created = await actions.create_provider(_around(deps), request, deps.clock.now_us())
    return json_response(provider_view(created))


@router.post("/check", response_model=None)
async def check_keys(deps: Deps, request: ProviderCheck) -> Response:
    """Asks the vendor whether it takes the key; nothing is stored."""
    await actions.check_keys(_around(deps), request)
    return json_response({"message": f"Valid api key for provider_type={request.provider_type}"})


@router.get("/{provider_id}", responses={200: {"model": ProviderView}}, response_model=None)
async def retrieve_provider(deps: Deps, provider_id: ProviderId) -> Response:
    return json_response(provider_view(await actions.read_provider(deps.database, provider_id)))


@router.patch("/{provider_id}", responses={200: {"model": ProviderView}}, response_model=None)
async def update_provider(deps: Deps, provider_id: ProviderId, request: ProviderUpdate) -> Response:
    updated = await actions.update_provider(_around(deps), provider_id, request, deps.clock.now_us())
    return json_response(provider_view(updated))


@router.delete("/{provider_id}", response_model=None)
async def delete_provider(deps: Deps, provider_id: ProviderId) -> Response:
    await actions.delete_provider(_around(deps), provider_id, deps.clock.now_us())
    return json_response({"message": f"Provider id={provider_id} successfully deleted"})


@router.post("/{provider_id}/check", response_model=None)
async def check_provider(deps: Deps, provider_id: ProviderId) -> Response:
    """Asks the vendor whether it takes the stored key."""
    provider = await actions.check_provider(_around(deps), provider_id)
    return json_response({"message": f"Valid api key for provider_type={provider.provider_type}"})


@router.patch("/{provider_id}/refresh", responses={200: {"model": ProviderView}}, response_model=None)
async def refresh_provider(deps: Deps, provider_id: ProviderId) -> Response:
    """Lists the provider's models anew."""
    refreshed = await actions.refresh_provider(_around(deps), provider_id, deps.clock.now_us())
    return json_response(provider_view(refreshed))


def _around(deps: Holdfast) -> actions.Surroundings:
    return actions.Surroundings(deps.settings, deps.database, deps.catalog, deps.secretbox)

"""Gemini, at Google's developer API or in Google Cloud."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import httpx2
from google.auth.exceptions import GoogleAuthError, TransportError
from google.genai import Client
from google.genai.types import HttpOptions, ThinkingConfigDict
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.providers.google import BaseGoogleProvider, GoogleProvider
from pydantic_ai.providers.google_cloud import GoogleCloudProvider

from holdfast.errors import AuthRejected, ModelUnavailable
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.catalog.presets import DYNAMIC_BUDGET
from holdfast.llm.endpoint import Endpoint

# The one whose list of models we read, and that gateways offer; the SDK's own choice changes with its releases.
API_VERSION: Final = "v1beta"
_TELLING: Final = ("candidates", "usageMetadata", "promptFeedback")


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    model = GoogleModel(info.name, provider=_provider(endpoint, client))
    thinks = info.abilities.reasoning or bool(model.profile.get("supports_thinking"))

    def settings(request: ModelRequest) -> GoogleModelSettings:
        made = GoogleModelSettings()
        made.update(cast("GoogleModelSettings", common_settings(request, parallel=False)))
        # Clients say it of every model, because it has a default; one that does not think refuses it.
        if thinks:
            made["google_thinking_config"] = cast("ThinkingConfigDict", _thinking(request, info))
        return made

    return Vendor(
        model=model,
        settings=settings,
        wants=_is_chunk,
        errors={TransportError: ModelUnavailable, GoogleAuthError: AuthRejected},
        bare="thought_signature",
        marks_errors=True,
        shapes_with_tools=bool(model.profile.get("google_supports_tool_combination")),
    )


def _thinking(request: ModelRequest, info: ModelInfo) -> dict[str, Any]:
    config: dict[str, Any] = request.settings.get("thinking_config") or {}
    if not config or not info.abilities.reasoning:  # then only the library knows that it thinks
        return {"include_thoughts": True}
    # Only the second generation is told by a number that it may decide; later ones decide when nothing is said.
    if config.get("thinking_budget") == DYNAMIC_BUDGET and "gemini-2" not in info.name:
        return {key: value for key, value in config.items() if key != "thinking_budget"}
    return config


def _provider(endpoint: Endpoint, client: httpx2.AsyncClient) -> BaseGoogleProvider:
    if endpoint.provider_type == "google_ai":
        options = HttpOptions(base_url=endpoint.base_url, api_version=API_VERSION, httpx_async_client=client)
        return GoogleProvider(client=Client(vertexai=False, api_key=endpoint.api_key or "none", http_options=options))
    if endpoint.api_key is not None:
        return GoogleCloudProvider(api_key=endpoint.api_key, base_url=endpoint.base_url, http_client=client)
    if endpoint.category == "byok":
        # Without a key the SDK would look for the server's own, wherever they may be.
        raise AuthRejected(f"{endpoint.provider_name} needs an API key.")
    return GoogleCloudProvider(
        project=endpoint.options.get("project"),
        location=endpoint.options.get("location"),
        base_url=endpoint.base_url,
        http_client=client,
    )


def _is_chunk(event: Mapping[str, Any]) -> bool:
    return any(name in event for name in _TELLING)

"""Mistral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.providers.mistral import MistralProvider

from holdfast.llm.base import ModelInfo
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.catalog.base_urls import without_version
from holdfast.llm.endpoint import Endpoint


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    # Its SDK appends the version itself.
    provider = MistralProvider(
        api_key=endpoint.api_key or "none", base_url=without_version(endpoint.base_url), http_client=client
    )
    model = MistralModel(info.name, provider=provider)
    return Vendor(
        model=model, settings=common_settings, wants=_is_chunk, returns_images=False, takes_blanks=False, prefills=False
    )


def _is_chunk(event: Mapping[str, Any]) -> bool:
    return "choices" in event

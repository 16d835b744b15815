"""Cohere. Its SDK takes only the older HTTP client, so it has a line of its own, which cannot be listened to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic_ai.models.cohere import CohereModel
from pydantic_ai.providers.cohere import CohereProvider

from holdfast.llm.base import ModelInfo
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    model = CohereModel(info.name, provider=CohereProvider(api_key=endpoint.api_key or "none"))
    return Vendor(
        model=model,
        settings=lambda request: common_settings(request, parallel=False),
        wants=_anything,
        returns_images=False,
    )


def _anything(event: Mapping[str, Any]) -> bool:
    return True

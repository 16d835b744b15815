"""Anthropic, for comparison with our own adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import httpx2
from anthropic import AsyncAnthropic
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.providers.anthropic import AnthropicProvider

from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint

_EVENTS: Final = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    }
)


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    sdk = AsyncAnthropic(
        base_url=endpoint.base_url, api_key=endpoint.api_key or "none", http_client=client, max_retries=0
    )
    model = AnthropicModel(info.name, provider=AnthropicProvider(anthropic_client=sdk))
    return Vendor(
        model=model,
        settings=_settings,
        wants=_is_event,
        bare="signature",
        redacts=True,
        marks_errors=True,
        fails_in_words=True,
        takes_blanks=False,
        prefills=False,
        knows_called=False,
    )


def _settings(request: ModelRequest) -> AnthropicModelSettings:
    settings = AnthropicModelSettings()
    settings.update(cast("AnthropicModelSettings", common_settings(request)))
    thinking: dict[str, Any] = request.settings.get("thinking") or {}
    if thinking.get("type") == "enabled":
        settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": thinking.get("budget_tokens", 1024)}
        settings.pop("temperature", None)  # refused while it thinks
    return settings


def _is_event(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _EVENTS

"""OpenAI's Responses API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.errors import ModelError
from holdfast.llm.base import ModelInfo, ModelRequest
from holdfast.llm.bridge.vendor import Vendor, common_settings
from holdfast.llm.endpoint import Endpoint

_log = logging.getLogger("holdfast.llm")

# The part of the vocabulary that our requests can bring about. The library warns of every event that it does not know.
_EVENTS: Final = frozenset(
    f"response.{name}"
    for name in (
        "created",
        "queued",
        "in_progress",
        "completed",
        "incomplete",
        "output_item.added",
        "output_item.done",
        "content_part.added",
        "content_part.done",
        "output_text.delta",
        "output_text.done",
        "refusal.delta",
        "refusal.done",
        "reasoning_summary_part.added",
        "reasoning_summary_part.done",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_text.delta",
        "reasoning_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
    )
)


def open_vendor(endpoint: Endpoint, info: ModelInfo, client: httpx2.AsyncClient) -> Vendor:
    sdk = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key or "none", http_client=client, max_retries=0)
    provider = OpenAIProvider(openai_client=sdk)
    # A model that the library has not heard of may reason all the same: then it must be asked for the encrypted form.
    known = OpenAIModelProfile(openai_supports_encrypted_reasoning_content=True) if info.abilities.reasoning else None
    model = OpenAIResponsesModel(info.name, provider=provider, profile=known)
    reasons = info.abilities.reasoning or bool(model.profile.get("openai_supports_reasoning"))

    summaries = _Summaries(wanted=reasons)

    def settings(request: ModelRequest) -> OpenAIResponsesModelSettings:
        return _responses_settings(request, model.profile, reasons=reasons, summaries=summaries.wanted)

    return Vendor(model=model, settings=settings, concedes=summaries.concede, wants=_is_response)


class _Summaries:
    """Of what a model thought. OpenAI shows them only to organisations that it has verified, and refuses the whole
    request of others."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted

    def concede(self, refusal: ModelError) -> bool:
        if "reasoning summar" not in refusal.message:
            return False
        if self.wanted:  # else another request has just been told
            _log.warning("asking without summaries of reasoning from now on: %s", refusal.message)
            self.wanted = False
        return True


def _responses_settings(
    request: ModelRequest, profile: OpenAIModelProfile, *, reasons: bool, summaries: bool
) -> OpenAIResponsesModelSettings:
    # Nothing is kept at the vendor's: the history is ours, and reasoning travels encrypted.
    settings = OpenAIResponsesModelSettings(openai_store=False)
    settings.update(cast("OpenAIResponsesModelSettings", common_settings(request)))
    if request.user is not None:
        settings["openai_user"] = request.user
    if verbosity := request.settings.get("verbosity"):
        settings["openai_text_verbosity"] = verbosity
    if not reasons:
        return settings
    if summaries:
        settings["openai_reasoning_summary"] = "auto"
    effort = _effort(request)
    if effort is not None:
        settings["openai_reasoning_effort"] = effort
    thinks = effort != "none" if effort is not None else profile.get("thinking_enabled_by_default", True)
    if thinks:
        settings.pop("temperature", None)
    return settings


def _effort(request: ModelRequest) -> Any:
    reasoning: dict[str, Any] = request.settings.get("reasoning") or {}
    return reasoning.get("reasoning_effort")


def _is_response(event: Mapping[str, Any]) -> bool:
    return event.get("type") in _EVENTS

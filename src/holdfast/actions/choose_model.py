"""Which model an agent uses and how it is called, from everything that a request may say about it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.core.records import ModelChoice
from holdfast.errors import Invalid
from holdfast.llm.base import Catalog, ModelInfo
from holdfast.wire.agent_requests import AgentFields, CreateAgentRequest, UpdateAgent
from holdfast.wire.archives import ArchiveCreate
from holdfast.wire.model_settings import LLMConfig, ModelSettings, sent_settings, shown_provider
from holdfast.wire.models import embedding_config_view

_HANDLES_NAMED: Final = 20
_MODEL_FIELDS: Final = frozenset(
    {
        "model",
        "llm_config",
        "model_settings",
        "context_window_limit",
        "max_tokens",
        "reasoning",
        "parallel_tool_calls",
        "response_format",
    }
)


class Defaults(msgspec.Struct, frozen=True):
    """What the server's settings say for agents that say nothing.

    `window`: what an agent gets of a larger one unless it asks for more: attention and money both thin out beyond.
    """

    model: str | None = None
    embedding: str | None = None
    window: int = 128_000


_FORMATS: Final = frozenset({"response_format", "response_schema"})  # one thing, which Google calls the latter


class Embedding(msgspec.Struct, frozen=True):
    handle: str | None = None
    config: dict[str, Any] | None = None


def asked_handle(request: AgentFields) -> str | None:
    return request.llm_config.chosen_handle if request.llm_config else request.model


def concerns_model(request: UpdateAgent) -> bool:
    return bool(_MODEL_FIELDS & request.model_fields_set)


async def first_choice(catalog: Catalog, defaults: Defaults, request: CreateAgentRequest) -> ModelChoice:
    handle = asked_handle(request) or defaults.model
    if handle is None:
        raise Invalid(
            "Must specify either model or llm_config: this server has no default model. "
            f"{await _existing(catalog)} HOLDFAST_DEFAULT_MODEL names one for agents that name none."
        )
    info = await catalog.find(handle)
    choice = ModelChoice(
        handle=info.handle, context_window=min(info.context_window, defaults.window), settings=_dialect(info)
    )
    if request.model_settings is not None:
        # Settings without this key have always meant parallel calls; a bare handle has always meant none.
        choice = msgspec.structs.replace(choice, parallel_tool_calls=True)
    return revised_choice(choice, request, info, defaults.window)


def revised_choice(choice: ModelChoice, request: AgentFields, info: ModelInfo, window: int) -> ModelChoice:
    """The choice after the request. What it says outright beats what it says in the retired ways.

    `window`: what an agent gets of a larger one unless it asks for more.
    """
    if info.handle != choice.handle:
        choice = _moved(choice, info, window)
    if request.model_settings is None and "model_settings" in request.model_fields_set:
        choice = ModelChoice(handle=choice.handle, context_window=choice.context_window, settings=_dialect(info))
    changes: dict[str, Any] = {"provider_category": info.provider_category}
    settings = dict(choice.settings)
    if request.llm_config is not None:
        _read_llm_config(request.llm_config, info, changes, settings)
    _read_aliases(request, changes, settings)
    if request.model_settings is not None:
        _read_settings(request.model_settings, changes, settings)
    if "context_window_limit" in request.model_fields_set:
        changes["context_window"] = _window(request.context_window_limit, info, window)
    revised = msgspec.structs.replace(choice, **changes, settings=settings)
    _check_reasoning_budget(revised)
    return revised


async def chosen_embedding(catalog: Catalog, default: str | None, request: AgentFields | ArchiveCreate) -> Embedding:
    if request.embedding_config is not None:
        config = request.embedding_config.model_dump()
        return Embedding(request.embedding_config.handle, config)
    handle = request.embedding or default
    if handle is None:
        return Embedding()
    for found in await catalog.embedding_models():
        if handle in (found["handle"], found.get("alias")):
            return Embedding(handle, dict(embedding_config_view(found)))
    if request.embedding is None:
        return Embedding()
    raise Invalid(
        f"The embedding model {handle} is not available on this server. Leave embedding out: an agent works without "
        f"one and searches its memory by words."
    )


async def _existing(catalog: Catalog) -> str:
    handles = [info.handle for info in await catalog.models()]
    named = ", ".join(handles[:_HANDLES_NAMED])
    return f"These exist: {named}{', …' if len(handles) > _HANDLES_NAMED else ''}."


def _dialect(info: ModelInfo) -> dict[str, Any]:
    """Whose settings the model takes, where its handle does not tell: a provider may have any name."""
    by_name = shown_provider(info.handle)
    by_type = shown_provider(f"{info.provider_type}/")
    return {} if by_name == by_type else {"provider_type": by_type}


def _moved(choice: ModelChoice, info: ModelInfo, window: int) -> ModelChoice:
    """To another model: its own window again, and no settings that only the old vendor understood."""
    same_provider = choice.handle.partition("/")[0] == info.handle.partition("/")[0]
    return msgspec.structs.replace(
        choice,
        handle=info.handle,
        context_window=min(info.context_window, window),
        settings=choice.settings if same_provider else _dialect(info),
    )


def _window(asked: int | None, info: ModelInfo, window: int) -> int:
    if asked is None:
        return min(info.context_window, window)
    if asked > info.context_window:
        raise Invalid(
            f"context_window_limit is {asked} tokens, but {info.handle} has a window of {info.context_window}: "
            f"ask for at most that."
        )
    return asked


def _read_llm_config(config: LLMConfig, info: ModelInfo, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    if config.context_window is not None:
        # A description of the model rather than a wish, and often one copied from elsewhere: capped, not refused.
        changes["context_window"] = min(config.context_window, info.context_window)
    if config.max_tokens:
        changes["max_output_tokens"] = config.max_tokens
    if config.temperature is not None:
        changes["temperature"] = config.temperature
    if config.parallel_tool_calls is not None:
        changes["parallel_tool_calls"] = config.parallel_tool_calls
    if config.response_format is not None:
        changes["response_format"] = config.response_format.model_dump()
    if config.reasoning_effort is not None:
        settings["reasoning"] = {"reasoning_effort": config.reasoning_effort}
    if config.enable_reasoner is not None:
        settings["enable_reasoner"] = config.enable_reasoner
    if config.max_reasoning_tokens:
        settings["max_reasoning_tokens"] = config.max_reasoning_tokens


def _read_aliases(request: AgentFields, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    if "max_tokens" in request.model_fields_set:
        changes["max_output_tokens"] = request.max_tokens
    if request.parallel_tool_calls is not None:
        changes["parallel_tool_calls"] = request.parallel_tool_calls
    if "response_format" in request.model_fields_set:
        changes["response_format"] = request.response_format.model_dump() if request.response_format else None
    if isinstance(request, CreateAgentRequest):
        if request.enable_reasoner is not None:
            settings["enable_reasoner"] = request.enable_reasoner
        if request.max_reasoning_tokens:
            settings["max_reasoning_tokens"] = request.max_reasoning_tokens
    if request.reasoning is not None:
        settings["enable_reasoner"] = request.reasoning


def _read_settings(sent: ModelSettings, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    settings |= sent_settings(sent)
    if sent.max_output_tokens is not None:
        changes["max_output_tokens"] = sent.max_output_tokens
    if "parallel_tool_calls" in sent.model_fields_set:
        changes["parallel_tool_calls"] = sent.parallel_tool_calls
    if sent.temperature is not None:
        changes["temperature"] = sent.temperature
    if _FORMATS & sent.model_fields_set:
        wanted = sent.response_format or sent.response_schema
        changes["response_format"] = wanted.model_dump() if wanted else None
        for name in _FORMATS if wanted is None else ():
            settings.pop(name, None)


def _check_reasoning_budget(choice: ModelChoice) -> None:
    budget = choice.settings.get("max_reasoning_tokens", 0)
    if not budget:
        return
    if choice.max_output_tokens is None:
        raise Invalid("max_reasoning_tokens needs max_tokens, because reasoning is counted as output.")
    if budget > choice.max_output_tokens:
        raise Invalid(f"max_reasoning_tokens ({budget}) must not exceed max_tokens ({choice.max_output_tokens}).")

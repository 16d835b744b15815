"""Which model an agent uses and how it is called, from everything that a request may say about it: `model`,
`model_settings`, `llm_config` and single fields.

A choice is complete at any time. A field that was not sent changes nothing; null brings back what the model has by
default. So what an agent shows can be written back, in whole or in part, and nothing changes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec

from holdfast.core import heartbeat_loop
from holdfast.core.records import ModelChoice
from holdfast.errors import Invalid
from holdfast.llm.base import Catalog, ModelInfo
from holdfast.llm.catalog.presets import Switch, completed, fitted, preset, switch_of
from holdfast.llm.chat.dialects import reasons
from holdfast.wire.agents import AgentFields, CreateAgentRequest, UpdateAgent
from holdfast.wire.archives import ArchiveCreate
from holdfast.wire.folders import FolderCreate
from holdfast.wire.model_settings import CallFields, LLMConfig, ModelSettings, is_reasoner, writes_thoughts
from holdfast.wire.models import embedding_config_view

_HANDLES_NAMED: Final = 20
_FREE_EMBEDDING: Final = "letta/letta-free"  # of a service that is gone; programs name it without needing it
# Of the same service, which chose a model by itself. Programs that have no wish of their own name one of these.
_LEFT_TO_THE_SERVER: Final = frozenset({"letta/auto", "letta/auto-chat", "letta/auto-fast"})
_PLAIN: Final = ("effort", "verbosity", "strict", "tool_call_parser")  # called the same by everybody
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


class Embedding(msgspec.Struct, frozen=True):
    handle: str | None = None
    config: dict[str, Any] | None = None


def asked_handle(request: AgentFields) -> str | None:
    """None: the server's default, or what the agent has."""
    return own_wish(request.llm_config.chosen_handle if request.llm_config else request.model)


def changed_handle(request: UpdateAgent, known: str) -> str | None:
    """As `asked_handle`; but programs put another model into the `llm_config` they have read, and leave its handle."""
    config = request.llm_config
    provider, _, name = known.partition("/")
    if config is None or config.handle != known or config.model == name:
        return asked_handle(request)
    return config.model if "/" in config.model and "/" not in name else f"{provider}/{config.model}"


def own_wish(handle: str | None) -> str | None:
    return None if handle in _LEFT_TO_THE_SERVER else handle


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
    choice = preset(info, defaults.window, in_words=request.agent_type in heartbeat_loop.AGENT_TYPES)
    return revised_choice(choice, request, info, defaults.window, request.agent_type)


def revised_choice(
    choice: ModelChoice, request: AgentFields, info: ModelInfo, window: int, agent_type: str
) -> ModelChoice:
    """The choice after the request. What it says outright beats what it says in the retired ways.

    `window`: what an agent gets of a larger one unless it asks for more.
    """
    in_words = agent_type in heartbeat_loop.AGENT_TYPES
    choice = completed(choice, in_words=in_words)
    if info.handle != choice.handle:
        choice = moved(choice, info, window)
    if request.model_settings is None and "model_settings" in request.model_fields_set:
        choice = preset(info, choice.context_window, in_words=in_words)
    call = CallSettings(msgspec.structs.replace(choice, provider_category=info.provider_category), info, in_words)
    if request.llm_config is not None:
        call.read_llm_config(request.llm_config)
        asked = request.llm_config.put_inner_thoughts_in_kwargs
        # A new agent is asked for its thoughts as is usual: there it is a description copied along.
        if asked is not None and not isinstance(request, CreateAgentRequest):
            call.ask_for_thoughts(asked)
        if request.llm_config.context_window is not None:
            # A description of the model rather than a wish, and often one copied from elsewhere: capped, not refused.
            call.set("context_window", min(request.llm_config.context_window, info.context_window))
    _read_aliases(request, call)
    if request.model_settings is not None:
        call.read_settings(request.model_settings)
    if "context_window_limit" in request.model_fields_set:
        call.set("context_window", _window(request.context_window_limit, info, window))
    return call.result()


async def chosen_embedding(
    catalog: Catalog, default: str | None, request: AgentFields | ArchiveCreate | FolderCreate
) -> Embedding:
    """`default`: the handle for a request that names none, or one that cannot be had any more."""
    named, config = request.embedding, request.embedding_config
    if config is not None and config.handle != _FREE_EMBEDDING:
        return Embedding(config.handle, config.model_dump())
    if named == _FREE_EMBEDDING or config is not None:
        named = None
    handle = named or default
    if handle is None:
        return Embedding()
    for found in await catalog.embedding_models():
        if handle in (found["handle"], found.get("alias")):
            return Embedding(handle, dict(embedding_config_view(found)))
    if named is None:
        return Embedding()
    raise Invalid(
        f"The embedding model {handle} is not available on this server. Leave embedding out: an agent, an "
        f"archive and a folder work without one, and are searched by words."
    )


async def _existing(catalog: Catalog) -> str:
    handles = [info.handle for info in await catalog.models()]
    named = ", ".join(handles[:_HANDLES_NAMED])
    return f"These exist: {named}{', …' if len(handles) > _HANDLES_NAMED else ''}."


def _window(asked: int | None, info: ModelInfo, window: int) -> int:
    if asked is None:
        return min(info.context_window, window)
    if asked > info.context_window:
        raise Invalid(
            f"context_window_limit is {asked} tokens, but {info.handle} has a window of {info.context_window}: "
            f"ask for at most that."
        )
    return asked


def _read_aliases(request: AgentFields, call: CallSettings) -> None:
    said = request.model_fields_set
    if "max_tokens" in said:
        call.set("max_output_tokens", request.max_tokens)
    if request.parallel_tool_calls is not None:
        call.set("parallel_tool_calls", request.parallel_tool_calls)
    if "response_format" in said:
        call.set("response_format", request.response_format and request.response_format.model_dump())
    if isinstance(request, CreateAgentRequest):
        if request.enable_reasoner is not None:
            call.enable_reasoning(request.enable_reasoner)
        if budget := request.max_reasoning_tokens:
            if request.max_tokens is not None and budget >= request.max_tokens:
                raise Invalid(
                    f"INVALID_ARGUMENT: Max reasoning tokens ({budget}) must be less than max tokens "
                    f"({request.max_tokens})"
                )
            call.limit_reasoning(budget)
    if request.reasoning is not None:
        call.enable_reasoning(request.reasoning)


class CallSettings:
    """A choice while a request is read.

    `in_words`: the agent writes its thoughts down where the model has none of its own, so it can do without.
    """

    def __init__(self, choice: ModelChoice, info: ModelInfo, in_words: bool = False) -> None:
        self._choice = choice
        self._info = info
        self._in_words = in_words
        self._switch: Switch = switch_of(info)
        self._changes: dict[str, Any] = {}
        self._settings = dict(choice.settings)

    def result(self) -> ModelChoice:
        return fitted(msgspec.structs.replace(self._choice, **self._changes, settings=self._settings), self._info)

    def set(self, name: str, value: Any) -> None:
        """A field that a choice has by itself."""
        self._changes[name] = getattr(self._usual, name) if value is None else value

    def read_settings(self, sent: ModelSettings) -> None:
        said = sent.model_fields_set
        self._read_fields(sent)
        if "max_output_tokens" in said:
            self.set("max_output_tokens", sent.max_output_tokens)
        if "response_schema" in said and sent.response_format is None:
            self.set("response_format", sent.response_schema and sent.response_schema.model_dump())
        for name in ("reasoning", "thinking", "thinking_config"):
            if name in said:
                self._put_parts(name, getattr(sent, name))

    def read_llm_config(self, sent: LLMConfig) -> None:
        said = sent.model_fields_set
        self._read_fields(sent)
        if "max_tokens" in said:
            self.set("max_output_tokens", sent.max_tokens or None)
        if "reasoning_effort" in said:
            self._put_part("reasoning", "reasoning_effort", sent.reasoning_effort)
        if sent.enable_reasoner is not None:
            self.enable_reasoning(sent.enable_reasoner)
        if sent.max_reasoning_tokens is not None:
            self.limit_reasoning(sent.max_reasoning_tokens)

    def enable_reasoning(self, wanted: bool) -> None:
        """Models that cannot be told reason as they are made."""
        if wanted == is_reasoner(self._settings):
            return
        if self._in_words and not reasons(self._info):
            self._put("enable_reasoner", wanted)
            if wanted:
                self._put("put_inner_thoughts_in_kwargs", True)
        elif self._switch == "thinking":
            self._put_part("thinking", "type", "enabled" if wanted else "disabled")
        elif self._switch == "thinking_config":
            self._put_part("thinking_config", "include_thoughts", wanted)

    def ask_for_thoughts(self, wanted: bool) -> None:
        """A config that comes back as it was shown changes nothing."""
        if self._in_words and not reasons(self._info) and wanted != writes_thoughts(self._settings):
            self._put("put_inner_thoughts_in_kwargs", wanted)
            if wanted:
                self._put("enable_reasoner", True)

    def limit_reasoning(self, tokens: int) -> None:
        if self._switch == "thinking" and (tokens or "budget_tokens" in self._settings.get("thinking", {})):
            self._put_part("thinking", "budget_tokens", tokens)
        elif self._switch == "thinking_config":
            self._put_part("thinking_config", "thinking_budget", tokens)

    @cached_property
    def _usual(self) -> ModelChoice:
        """Made when a null asks for it: most requests have none."""
        return preset(self._info, self._choice.context_window, in_words=self._in_words)

    def _read_fields(self, sent: CallFields) -> None:
        said = sent.model_fields_set
        for name in {"temperature", "parallel_tool_calls"} & said:
            self.set(name, getattr(sent, name))
        if "response_format" in said:
            self.set("response_format", sent.response_format and sent.response_format.model_dump())
        for name in _PLAIN:
            if name in said:
                self._put(name, getattr(sent, name))

    def _put_parts(self, name: str, sent: Any) -> None:
        """An object of settings, part by part."""
        if sent is None:
            self._put(name, None)
            return
        for part in sent.model_fields_set:
            self._put_part(name, part, getattr(sent, part))

    def _put_part(self, name: str, part: str, value: Any) -> None:
        usual: dict[str, Any] = self._usual.settings.get(name) or {}
        known: dict[str, Any] = self._settings.get(name) or {}
        parts = {**known, part: usual.get(part) if value is None else value}
        self._put(name, {key: value for key, value in parts.items() if value is not None} or None)

    def _put(self, name: str, value: Any) -> None:
        value = self._usual.settings.get(name) if value is None else value
        if value is None:
            self._settings.pop(name, None)
        else:
            self._settings[name] = value


def moved(choice: ModelChoice, info: ModelInfo, window: int) -> ModelChoice:
    """To another model, which is called as it is by default: without thoughts in words, unless it is asked for them.
    What is said of any model alike stays."""
    fresh = preset(info, window)
    kept = msgspec.structs.replace(
        fresh,
        temperature=choice.temperature if choice.temperature is not None else fresh.temperature,
        parallel_tool_calls=choice.parallel_tool_calls,
        response_format=choice.response_format,
        settings=fresh.settings | {"strict": bool(choice.settings.get("strict"))},
    )
    return fitted(kept, info)

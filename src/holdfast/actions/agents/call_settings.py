"""How a model is called, folded from what requests say about it: `model_settings`, `llm_config` and single fields.

A choice is complete at any time. A field that was not sent changes nothing; null brings back what the model has by
default. So what an agent shows can be written back, in whole or in part, and nothing changes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import msgspec

from holdfast.core.records import ModelChoice
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.presets import Switch, fitted, preset, switch_of
from holdfast.llm.chat.dialects import reasons
from holdfast.wire.model_settings import CallFields, LLMConfig, ModelSettings, is_reasoner, writes_thoughts

_PLAIN: Final = ("effort", "verbosity", "strict", "tool_call_parser")  # called the same by everybody


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
        if self._switch == "thinking":
            self._put_part("thinking", "type", "enabled" if wanted else "disabled")
        elif self._switch == "thinking_config":
            self._put_part("thinking_config", "include_thoughts", wanted)
        elif self._in_words and not reasons(self._info):
            self._put("enable_reasoner", wanted)

    def ask_for_thoughts(self, wanted: bool) -> None:
        """A config that comes back as it was shown changes nothing."""
        if self._in_words and not reasons(self._info) and wanted != writes_thoughts(self._settings):
            self._put("put_inner_thoughts_in_kwargs", wanted)

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


def moved(choice: ModelChoice, info: ModelInfo, window: int, *, in_words: bool = False) -> ModelChoice:
    """To another model, which is called as it is by default. What is said of any model alike stays."""
    fresh = preset(info, window, in_words=in_words)
    kept = msgspec.structs.replace(
        fresh,
        temperature=choice.temperature if choice.temperature is not None else fresh.temperature,
        parallel_tool_calls=choice.parallel_tool_calls,
        response_format=choice.response_format,
        settings=fresh.settings | {"strict": bool(choice.settings.get("strict"))},
    )
    return fitted(kept, info)

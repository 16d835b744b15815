"""What the bridge must know of a vendor beyond what pydantic-ai knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from holdfast.errors import ModelError
from holdfast.llm.base import ModelRequest, NamedTool
from holdfast.llm.bridge.response_tap import ResponseTap, Reworded, Wants, as_it_is
from holdfast.llm.bridge.signatures import Bare
from holdfast.llm.endpoint import Endpoint
from holdfast.llm.tool_calls import plain_id, sent_name

Errors = Mapping[type[Exception], type[ModelError]]


def insists(refusal: ModelError) -> bool:
    return False


class Vendor(msgspec.Struct, frozen=True, kw_only=True):
    model: Model[Any]
    settings: Callable[[ModelRequest], ModelSettings]
    concedes: Callable[[ModelError], bool] = insists  # after this refusal, the settings ask for less: try again
    wants: Wants  # which events its SDK understands
    reworded: Reworded = as_it_is  # what is said in words that the library passes over
    tap: Callable[[Endpoint, Wants, Reworded], ResponseTap] = ResponseTap
    errors: Errors = {}  # of its SDK, which the library lets pass; narrow ones first
    bare: Bare = None
    redacts: bool = False  # it may send reasoning that only it can read
    sees: bool = True  # images can be sent at all
    returns_images: bool = True  # a tool return can hold images
    fails_in_words: bool = False  # and then holds nothing but text
    takes_blanks: bool = True  # a text may be empty or nothing but space
    prefills: bool = True  # the last words may be the model's own
    shapes_with_tools: bool = True  # the answer can be held to a shape while there are tools
    knows_called: bool = True  # calls may be of tools that are not offered any more
    marks_errors: bool = False  # a tool return can be an error without saying so in its text

    @property
    def system(self) -> str:
        """What pydantic-ai calls it: whose proofs it accepts."""
        return self.model.system

    def sent_id(self, call_id: str) -> str:
        return plain_id(call_id, self.model.profile.get("tool_call_id_length"))


def common_settings(request: ModelRequest, *, parallel: bool = True) -> ModelSettings:
    settings = ModelSettings()
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.tools:
        choice = request.tool_choice
        settings["tool_choice"] = [sent_name(choice.name)] if isinstance(choice, NamedTool) else choice
        if parallel:
            settings["parallel_tool_calls"] = request.parallel_tool_calls
    return settings

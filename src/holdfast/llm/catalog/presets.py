"""How a model is called unless somebody says otherwise, and which settings a model does not take.

A choice is complete from the start: what is stored is what is shown and what is sent. The figures are those of the
server that Holdfast replaces; where it knew nothing of a model, the vendor decides, and the setting is None.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from holdfast.core.records import ModelChoice
from holdfast.llm.anthropic.traits import DEFAULT_BUDGET, LEAST_BUDGET, accepted_effort, family_and_version, traits_of
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.known_models import Spec, default_window, family_of, plain_name, spec_of, undated_name
from holdfast.llm.chat.dialects import dialect_of, reasons

Switch = Literal["thinking", "thinking_config", "reasoning", "none"]

TEMPERATURE: Final = 1.0
DYNAMIC_BUDGET: Final = -1  # Gemini decides for itself
_USUAL_REPLY: Final = 16_384
_GEMINI_REPLY: Final = 65_536
_CAREFUL_REPLY: Final = 4_096
_LONGER_REPLIES: Final = {"gpt-5.2": 128_000, "claude-opus-4-6": 21_000}
# Vendors with models that refuse more than they can write, and do not list how much that is.
_REFUSE_LONG_REPLIES: Final = frozenset({"azure", "bedrock", "cohere"})
_CLAUDE_EFFORTS: Final = {"claude-opus-4-5": "medium", "claude-opus-4-6": "medium"}
_OPENAI_EFFORTS: Final = (
    (re.compile(r"gpt-5\.\d+(-mini|-nano)?$"), "none"),
    (re.compile(r"gpt-5(-mini|-nano)?$"), "minimal"),
    (re.compile(r"o[1-9](-pro)?$|o[3-9]-mini$"), "medium"),
)
_VERBOSE: Final = re.compile(r"gpt-5(\.\d+)?(-mini|-nano)?$")
_CLAUDE_PARTS: Final = frozenset({"type", "budget_tokens"})
_ZAI_PARTS: Final = frozenset({"type", "clear_thinking"})
_THINKING_PARTS: Final = {
    "anthropic": _CLAUDE_PARTS,
    "bedrock": _CLAUDE_PARTS,
    "zai": _ZAI_PARTS,
    "zai_coding": _ZAI_PARTS,
}
_NO_THOUGHTS: Final = {"include_thoughts": False, "thinking_budget": 0}
# What may stand in a choice's settings; there was more in them once.
_KEPT: Final = frozenset(
    {"provider_type", "reasoning", "thinking", "thinking_config", "effort", "verbosity", "strict", "tool_call_parser"}
)
_GOOGLE: Final = frozenset({"google_ai", "google_vertex"})
_ANTHROPIC: Final = frozenset({"anthropic", "bedrock"})


def preset(info: ModelInfo, window: int, *, in_words: bool = False) -> ModelChoice:
    """`window`: what an agent gets of a larger one unless it asks for more. `in_words`: the agent writes its thoughts
    down where the model has none of its own."""
    return ModelChoice(
        handle=info.handle,
        context_window=min(info.context_window, window),
        provider_category=info.provider_category,
        max_output_tokens=_longest_reply(info),
        temperature=TEMPERATURE,
        settings=_settings(info, in_words),
    )


def switch_of(info: ModelInfo) -> Switch:
    """By which setting the model's reasoning is steered."""
    if info.provider_type in _GOOGLE:
        return "thinking_config"
    dialect = dialect_of(info.provider_type)
    if info.provider_type in _ANTHROPIC or dialect.thinking:
        return "thinking"
    return "none" if dialect.effort is None else "reasoning"


def fitted(choice: ModelChoice, info: ModelInfo) -> ModelChoice:
    """Without what the model does not take, so that nothing is shown that is never sent."""
    settings = dict(choice.settings)
    switch = switch_of(info)
    for other in ("thinking", "thinking_config", "reasoning"):
        if other != switch or (other == "reasoning" and not reasons(info)):
            settings.pop(other, None)
    if thinking := settings.pop("thinking", None):
        taken = _THINKING_PARTS.get(info.provider_type, frozenset({"type"}))
        if kept := {key: value for key, value in thinking.items() if key in taken}:
            settings["thinking"] = kept
    if switch == "thinking_config" and not info.abilities.reasoning:
        settings[switch] = dict(_NO_THOUGHTS)
    fit = msgspec.structs.replace(choice, settings=settings)
    return _fitted_to_claude(fit, info) if info.provider_type in _ANTHROPIC else fit


def completed(choice: ModelChoice, *, in_words: bool = False) -> ModelChoice:
    """A choice that was stored before choices were complete. Only the model's name is known of it."""
    if choice.max_output_tokens is not None and choice.temperature is not None and "strict" in choice.settings:
        return choice
    info = _known_by_name(choice)
    usual = preset(info, choice.context_window, in_words=in_words)
    settings = usual.settings | {key: value for key, value in choice.settings.items() if key in _KEPT}
    if choice.settings.get("enable_reasoner") is False and "thinking" in settings:
        settings["thinking"] = settings["thinking"] | {"type": "disabled"}
    if (budget := choice.settings.get("max_reasoning_tokens")) and "thinking" in settings:
        settings["thinking"] = settings["thinking"] | {"budget_tokens": budget}
    return fitted(
        msgspec.structs.replace(
            choice,
            max_output_tokens=choice.max_output_tokens or usual.max_output_tokens,
            temperature=usual.temperature if choice.temperature is None else choice.temperature,
            settings=settings,
        ),
        info,
    )


def _known_by_name(choice: ModelChoice) -> ModelInfo:
    provider, _, name = choice.handle.partition("/")
    provider_type = choice.settings.get("provider_type") or provider.removesuffix("-proxy")
    spec = spec_of(name) or Spec(None)
    return ModelInfo(
        handle=choice.handle,
        name=name,
        provider_name=provider,
        provider_type=provider_type,
        context_window=max(spec.window or default_window(provider_type), choice.context_window),
        max_output_tokens=spec.output,
        provider_category=choice.provider_category,
        abilities=spec.abilities,
    )


def _longest_reply(info: ModelInfo) -> int:
    """Where nobody says how much a model can write, a quarter of its window, which is what compaction leaves free."""
    name = undated_name(plain_name(info.name))
    usual = _LONGER_REPLIES.get(name, _GEMINI_REPLY if info.provider_type in _GOOGLE else _USUAL_REPLY)
    if info.max_output_tokens is not None:
        return min(usual, info.max_output_tokens)
    careful = _CAREFUL_REPLY if info.provider_type in _REFUSE_LONG_REPLIES else usual
    return min(careful, max(1, info.context_window // 4))


def _settings(info: ModelInfo, in_words: bool) -> dict[str, Any]:
    name = undated_name(plain_name(info.name))
    settings: dict[str, Any] = {
        "provider_type": info.provider_type,
        "strict": False,
        "enable_reasoner": in_words or reasons(info),
    }
    if in_words and not reasons(info):
        settings["put_inner_thoughts_in_kwargs"] = True
    match info.provider_type:
        case "anthropic":
            settings["thinking"] = _thinking(info)
            if effort := _CLAUDE_EFFORTS.get(name):
                settings["effort"] = effort
        case "bedrock":
            settings["thinking"] = {"type": "disabled", "budget_tokens": 0}
        case "zai" | "zai_coding":
            thinks = info.abilities.reasoning or family_of(info.name) is None
            settings["thinking"] = {"type": "enabled" if thinks else "disabled", "clear_thinking": False}
        case "google_ai" | "google_vertex":
            settings["thinking_config"] = _thinking_config(info, name)
        case "openai" | "azure":
            if effort := next((effort for names, effort in _OPENAI_EFFORTS if names.match(name)), None):
                settings["reasoning"] = {"reasoning_effort": effort}
            if _VERBOSE.match(name):
                settings["verbosity"] = "medium"
        case _:
            pass
    return settings


def _thinking(info: ModelInfo) -> dict[str, Any]:
    traits = traits_of(info.name)
    if not (traits.thinks or info.abilities.reasoning):
        return {"type": "disabled", "budget_tokens": 0}
    return {"type": "enabled", "budget_tokens": 0 if traits.adaptive else DEFAULT_BUDGET}


def _thinking_config(info: ModelInfo, name: str) -> dict[str, Any]:
    if not info.abilities.reasoning:
        return dict(_NO_THOUGHTS)
    return {"include_thoughts": True, "thinking_budget": 1024 if name.startswith("gemini-2") else DYNAMIC_BUDGET}


def _fitted_to_claude(choice: ModelChoice, info: ModelInfo) -> ModelChoice:
    """As `anthropic.payload` sends it."""
    traits, settings = traits_of(info.name), dict(choice.settings)
    most = _less(choice.max_output_tokens, info.max_output_tokens)
    thinking = settings["thinking"] = _fitted_thinking(settings.get("thinking") or {}, info, most)
    if effort := settings.pop("effort", None):
        is_off = thinking.get("type") == "disabled" and traits.off != "unmentioned"
        if taken := accepted_effort(effort, traits, is_off=is_off):
            settings["effort"] = taken
    temperature = None if choice.temperature is None else min(choice.temperature, 1.0)
    return msgspec.structs.replace(choice, max_output_tokens=most, temperature=temperature, settings=settings)


def _fitted_thinking(requested: dict[str, Any], info: ModelInfo, most: int | None) -> dict[str, Any]:
    traits, thinking = traits_of(info.name), dict(requested)
    _, version = family_and_version(info.name)
    if version is not None and not traits.thinks:
        thinking["type"] = "disabled"
    elif traits.off == "never":
        thinking["type"] = "enabled"
    budget = thinking.get("budget_tokens") or 0
    if not traits.budgets:
        budget = 0
    elif thinking.get("type") == "enabled" and not (traits.adaptive and not budget):
        budget = budget or DEFAULT_BUDGET
        budget = max(LEAST_BUDGET, budget if most is None else min(budget, most - 1))
    return thinking | {"budget_tokens": budget}


def _less(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)

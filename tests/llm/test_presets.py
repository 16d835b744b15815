"""How models are called by agents that say nothing about it: the figures that clients of the old server know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.records import ModelChoice
from holdfast.llm.base import ModelInfo
from holdfast.llm.catalog.discovery import named_model
from holdfast.llm.catalog.presets import fitted, preset
from holdfast.llm.endpoint import OFFICIAL, Endpoint


def known(handle: str, window: int | None = None) -> ModelInfo:
    provider, _, name = handle.partition("/")
    address = OFFICIAL.get(provider, "http://127.0.0.1:9")
    return named_model(Endpoint(provider_name=provider, provider_type=provider, base_url=address), name, window)


def fresh(handle: str, window: int | None = None) -> ModelChoice:
    return preset(known(handle, window), 128_000)


@pytest.mark.parametrize(
    ("handle", "tokens", "effort", "verbosity"),
    [
        ("openai/gpt-4o-mini", 16_384, None, None),
        ("openai/gpt-4.1", 16_384, None, None),
        ("openai/gpt-5", 16_384, "minimal", "medium"),
        ("openai/gpt-5-mini-2025-08-07", 16_384, "minimal", "medium"),
        ("openai/gpt-5-pro", 16_384, None, None),
        ("openai/gpt-5.1", 16_384, "none", "medium"),
        ("openai/gpt-5.2", 128_000, "none", "medium"),
        ("openai/gpt-5-chat-latest", 16_384, None, None),
        ("openai/o1", 16_384, "medium", None),
        ("openai/o3-mini", 16_384, "medium", None),
        ("openai/o4-mini", 16_384, "medium", None),
        ("openai/o1-mini", 16_384, None, None),
        ("openai/gpt-4", 8_192, None, None),
    ],
)
def test_openai_s_models_have_the_defaults_that_clients_know(
    handle: str, tokens: int, effort: str | None, verbosity: str | None
) -> None:
    choice = fresh(handle)
    assert (choice.max_output_tokens, choice.temperature, choice.parallel_tool_calls) == (tokens, 1.0, False)
    assert choice.settings.get("reasoning") == (effort and {"reasoning_effort": effort})
    assert (choice.settings.get("verbosity"), choice.settings["strict"]) == (verbosity, False)


@pytest.mark.parametrize(
    ("handle", "tokens", "thinking", "effort"),
    [
        ("anthropic/claude-3-5-haiku-20241022", 8_192, ("disabled", 0), None),
        ("anthropic/claude-sonnet-4-5-20250929", 16_384, ("enabled", 1024), None),
        ("anthropic/claude-opus-4-5", 16_384, ("enabled", 1024), "medium"),
        ("anthropic/claude-opus-4-6", 21_000, ("enabled", 0), "medium"),
        ("anthropic/claude-opus-4-7", 16_384, ("enabled", 0), None),
        ("anthropic/unheard-of", 16_384, ("disabled", 0), None),
    ],
)
def test_claudes_have_the_defaults_that_clients_know(
    handle: str, tokens: int, thinking: tuple[str, int], effort: str | None
) -> None:
    choice = fresh(handle)
    told = choice.settings["thinking"]
    assert (choice.max_output_tokens, (told["type"], told["budget_tokens"])) == (tokens, thinking)
    assert choice.settings.get("effort") == effort


@pytest.mark.parametrize(
    ("handle", "tokens", "thoughts", "budget"),
    [
        ("google_ai/gemini-2.5-flash", 65_536, True, 1024),
        ("google_ai/gemini-3-pro", 65_536, True, -1),
        ("google_ai/gemini-2.0-flash", 8_192, False, 0),
    ],
)
def test_geminis_have_the_defaults_that_clients_know(handle: str, tokens: int, thoughts: bool, budget: int) -> None:
    choice = fresh(handle)
    expected = {"include_thoughts": thoughts, "thinking_budget": budget}
    assert (choice.max_output_tokens, choice.settings["thinking_config"]) == (tokens, expected)


@pytest.mark.parametrize(
    ("handle", "window", "tokens"),
    [
        ("vllm/unheard-of", 128_000, 16_384),
        ("vllm/unheard-of", 8_192, 2_048),
        ("azure/my-deployment", 128_000, 4_096),
        ("bedrock/amazon.nova-pro-v1:0", 128_000, 4_096),
    ],
)
def test_a_model_of_which_nothing_is_known_writes_what_its_window_has_room_for(
    handle: str, window: int, tokens: int
) -> None:
    assert fresh(handle, window).max_output_tokens == tokens


@pytest.mark.parametrize(
    ("handle", "said", "kept"),
    [
        ("openai/gpt-4o-mini", {"reasoning": {"reasoning_effort": "high"}}, {"reasoning": None}),
        ("openai/gpt-5", {"reasoning": {"reasoning_effort": "high"}}, {"reasoning": {"reasoning_effort": "high"}}),
        ("anthropic/claude-sonnet-4-5", {"effort": "high"}, {"effort": None}),
        ("anthropic/claude-opus-4-5", {"effort": "max"}, {"effort": "high"}),
        (
            "anthropic/claude-3-5-haiku",
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            {"thinking": {"type": "disabled", "budget_tokens": 0}},
        ),
        (
            "anthropic/claude-opus-5-5",
            {"thinking": {"type": "disabled", "budget_tokens": 3000}},
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
        ),
        (
            "deepseek/deepseek-chat",
            {"thinking": {"type": "disabled", "budget_tokens": 9}},
            {"thinking": {"type": "disabled"}},
        ),
        ("openai/gpt-5", {"thinking": {"type": "disabled"}}, {"thinking": None}),
    ],
)
def test_a_setting_that_the_model_does_not_take_is_not_kept(
    handle: str, said: dict[str, Any], kept: dict[str, Any]
) -> None:
    usual = fresh(handle)
    choice = fitted(msgspec.structs.replace(usual, settings=usual.settings | said), known(handle))
    assert {name: choice.settings.get(name) for name in kept} == kept


def test_claude_is_not_asked_for_more_than_it_writes_nor_to_think_longer_than_it_may_write() -> None:
    handle = "anthropic/claude-sonnet-4-5"
    usual = fresh(handle)
    thinking = {"type": "enabled", "budget_tokens": 9000}
    asked = msgspec.structs.replace(usual, max_output_tokens=4000, settings=usual.settings | {"thinking": thinking})
    assert fitted(asked, known(handle)).settings["thinking"]["budget_tokens"] == 3999
    greedy = msgspec.structs.replace(usual, max_output_tokens=10**6, temperature=1.7)
    assert (fitted(greedy, known(handle)).max_output_tokens, fitted(greedy, known(handle)).temperature) == (64_000, 1.0)


@pytest.mark.parametrize(("name", "kind"), [("glm-4-plus", "disabled"), ("glm-4.6", "enabled"), ("glm-5.3", "enabled")])
def test_a_model_of_zai_thinks_unless_its_family_is_known_not_to(name: str, kind: str) -> None:
    """Of the last one the price is known, and no family."""
    assert fresh(f"zai/{name}").settings["thinking"]["type"] == kind

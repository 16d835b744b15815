from __future__ import annotations

import pytest

from holdfast.llm.anthropic.traits import UNKNOWN, family_and_version, loses_thinking, traits_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("claude-opus-4-1-20250805", ("opus", (4, 1))),
        ("claude-sonnet-4-20250514", ("sonnet", (4, 0))),
        ("claude-3-7-sonnet-latest", ("sonnet", (3, 7))),
        ("claude-3-haiku-20240307", ("haiku", (3, 0))),
        ("claude-haiku-5-5", ("haiku", (5, 5))),
        ("claude-sonnet-5", ("sonnet", (5, 0))),
        ("us.anthropic.claude-opus-4-6-v1:0", ("opus", (4, 6))),
        ("claude-opus-4@20250514", ("opus", (4, 0))),
        ("claude-mythos-preview", ("mythos", (5, 0))),
        ("claude-2.1", ("", (2, 1))),
        ("claude-instant", ("instant", None)),
        ("offline", ("", None)),
    ],
)
def test_names_tell_family_and_version(name: str, expected: tuple[str, tuple[int, int] | None]) -> None:
    assert family_and_version(name) == expected


def test_an_unknown_model_is_taken_to_be_able() -> None:
    unknown = traits_of("glm-4.6")
    assert unknown == UNKNOWN
    assert unknown.structured and unknown.sampling and unknown.forced_choice and unknown.budgets


@pytest.mark.parametrize(
    ("name", "thinks", "adaptive", "budgets"),
    [
        ("claude-3-5-sonnet-latest", False, False, True),
        ("claude-3-7-sonnet-latest", True, False, True),
        ("claude-opus-4-5", True, False, True),
        ("claude-sonnet-4-6", True, True, True),
        ("claude-opus-4-7", True, True, False),
        ("claude-haiku-5-5", True, True, False),
    ],
)
def test_generations_differ_in_how_they_think(name: str, thinks: bool, adaptive: bool, budgets: bool) -> None:
    traits = traits_of(name)
    assert (traits.thinks, traits.adaptive, traits.budgets) == (thinks, adaptive, budgets)


@pytest.mark.parametrize(
    ("name", "forced", "off"),
    [
        ("claude-sonnet-4-5", True, "unmentioned"),
        ("claude-opus-5", True, "disabled"),
        ("claude-opus-5-5", False, "never"),
        ("claude-sonnet-5-5", False, "between_tools"),
        ("claude-haiku-5-5", True, "disabled"),
        ("claude-fable-5", True, "never"),
        ("claude-fable-5-1", False, "never"),
    ],
)
def test_families_differ_in_what_can_be_imposed_on_them(name: str, forced: bool, off: str) -> None:
    traits = traits_of(name)
    assert (traits.forced_choice, traits.off) == (forced, off)


@pytest.mark.parametrize(
    ("name", "wanted", "lost"),
    [
        ("claude-sonnet-4-5", "enabled", True),
        ("claude-opus-4-6", "enabled", True),
        ("claude-opus-5-5", "enabled", False),
        ("claude-sonnet-4-5", "disabled", False),
        ("claude-3-5-haiku-latest", None, False),
    ],
)
def test_a_forced_call_costs_the_thinking_of_models_that_can_be_forced(
    name: str, wanted: str | None, lost: bool
) -> None:
    assert loses_thinking(name, {"thinking": {"type": wanted}} if wanted else {}) is lost

"""What a Claude model puts up with, read from its name. Generations of one API refuse each other's requests.

Told by version and not by a list of names: the next model most often behaves like the one before it. A name that says
nothing, as with other vendors' servers that speak this protocol, gets the form that all of them have understood.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

Version = tuple[int, int]
EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
DEFAULT_BUDGET: Final = 1_024
LEAST_BUDGET: Final = 1_024
_UNNAMED: Final = {"mythos": (5, 0)}  # "claude-mythos-preview" has no number


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    thinks: bool = False  # unless it is told not to
    adaptive: bool = False  # decides by itself how long to think
    budgets: bool = True  # takes `budget_tokens`
    # How thinking is turned off: by not mentioning it, by a word of its own, or not at all.
    off: Literal["unmentioned", "disabled", "between_tools", "never"] = "unmentioned"
    hides_thinking: bool = False  # unless a summary is asked for
    binds_thinking: bool = False  # reasoning sent back is void once anything before it has changed
    interleaves_if_asked: bool = False  # thinks between tool calls, given a beta header
    sampling: bool = True  # takes `temperature`
    forced_choice: bool = True  # takes a `tool_choice` that leaves no choice
    prefill: bool = True  # continues a conversation that ends with its own words
    structured: bool = True  # takes a schema for its answer, and strict tools
    efforts: tuple[str, ...] = EFFORTS  # takes these words for how hard it is to try, in this order


UNKNOWN: Final = Traits()


@lru_cache(maxsize=256)
def traits_of(model: str) -> Traits:
    family, version = family_and_version(model)
    if version is None:
        return UNKNOWN
    return Traits(
        thinks=version >= (3, 7),
        adaptive=version >= (4, 6),
        budgets=version < (4, 7),
        off=_off(family, version),
        hides_thinking=version >= (4, 7),
        binds_thinking=version >= (5, 5) or (family == "fable" and version >= (5, 1)),
        interleaves_if_asked=(4, 0) <= version < (4, 6),
        sampling=version < (4, 7),
        forced_choice=not _chooses_itself(family, version),
        prefill=version < (4, 6),
        structured=version >= (4, 5) or (family == "opus" and version >= (4, 1)),
        efforts=_efforts(family, version),
    )


def accepted_effort(wanted: str, traits: Traits, *, is_off: bool) -> str | None:
    """The most that the model takes of what is asked for. One that was told not to think takes no more than `high`."""
    if wanted not in EFFORTS:
        return wanted  # the vendor may know it by now
    most = min(EFFORTS.index(wanted), EFFORTS.index("high") if is_off else len(EFFORTS))
    return next((effort for effort in reversed(traits.efforts) if EFFORTS.index(effort) <= most), None)


def loses_thinking(model: str, settings: dict[str, Any]) -> bool:
    """Whether a model that is to think does not, once it is forced to call a tool.

    With a budget the two exclude each other, and models that decide by themselves skip the thinking.
    """
    thinking: dict[str, Any] = settings.get("thinking") or {}
    return thinking.get("type") == "enabled" and traits_of(model).forced_choice


def family_and_version(model: str) -> tuple[str, Version | None]:
    """`claude-opus-4-1-20250805` and `claude-3-7-sonnet-latest` alike; no version for what is not a Claude."""
    _, found, rest = model.lower().partition("claude-")
    if not found:
        return "", None
    words = re.split(r"[-.@:]", rest)
    family = next((word for word in words if word.isalpha()), "")
    numbers = [int(word) for word in words if word.isdecimal() and len(word) <= 2]
    if not numbers:
        return family, _UNNAMED.get(family)
    return family, (numbers[0], numbers[1] if len(numbers) > 1 else 0)


def _off(family: str, version: Version) -> Literal["unmentioned", "disabled", "between_tools", "never"]:
    if version < (5, 0):
        return "unmentioned"
    if family in ("fable", "mythos") or (family == "opus" and version >= (5, 5)):
        return "never"
    return "between_tools" if family == "sonnet" and version >= (5, 5) else "disabled"


def _efforts(family: str, version: Version) -> tuple[str, ...]:
    if version >= (4, 7):
        return EFFORTS
    if version == (4, 6):
        return ("low", "medium", "high", "max")
    return EFFORTS[:3] if (family, version) == ("opus", (4, 5)) else ()


def _chooses_itself(family: str, version: Version) -> bool:
    if family in ("fable", "mythos"):
        return version >= (5, 1)
    return family in ("opus", "sonnet") and version >= (5, 5)

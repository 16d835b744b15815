"""Who speaks next in a discussion, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.discussions import Prompt, Speech, next_prompt, run_id
from holdfast.core.records import Agent, Discussion, ModelChoice

MODEL = ModelChoice(handle="holdfast/offline", context_window=8_000)
AGENTS = {
    each: Agent(id=each, name=name, agent_type="x", system="", model=MODEL)
    for each, name in (("#a", "Al"), ("#b", "Bea"), ("#m", "Mo"))
}


def discussion(kind: str, **fields: Any) -> Discussion:
    known: dict[str, Any] = {"agent_ids": ("#a", "#b"), "manager_agent_id": "#m"}
    return Discussion(id="d", group_id="g", manager_type=kind, request={}, **known | fields)


def played(about: Discussion, words: dict[str, str], most: int = 20) -> list[Prompt]:
    """Every prompt of it, where each agent always says the same."""
    speeches: list[Speech] = []
    prompts: list[Prompt] = []
    while len(speeches) < most and (prompt := next_prompt(about, AGENTS, speeches)) is not None:
        prompts.append(prompt)
        speeches.append(Speech(prompt.agent_id, words.get(prompt.agent_id, "yes")))
    return prompts


def test_in_a_round_everybody_is_told_what_was_said_since_it_last_spoke() -> None:
    prompts = played(discussion("round_robin", max_turns=4), {})
    assert [(each.agent_id, each.with_message, each.told) for each in prompts] == [
        ("#a", True, ()),
        ("#b", True, (0,)),
        ("#a", False, (1,)),
        ("#b", False, (2,)),
    ]


@pytest.mark.parametrize(("most", "speeches"), [(None, 2), (1, 1), (5, 5)])
def test_a_round_has_as_many_speeches_as_the_group_says(most: int | None, speeches: int) -> None:
    assert len(played(discussion("round_robin", max_turns=most), {})) == speeches


def test_who_is_alone_is_told_to_go_on() -> None:
    first, second = played(discussion("round_robin", agent_ids=("#a",), max_turns=2), {})
    assert (first.instruction, second.told) == (None, ())
    assert second.instruction is not None


def test_the_supervisor_speaks_last_and_is_told_everything() -> None:
    prompts = played(discussion("supervisor"), {})
    assert [(each.agent_id, each.with_message, each.told) for each in prompts] == [
        ("#a", True, ()),
        ("#b", True, ()),
        ("#m", True, (0, 1)),
    ]


def test_the_one_who_is_named_speaks_until_there_were_enough_speeches() -> None:
    prompts = played(discussion("dynamic", max_turns=2), {"#m": "also bea, or Al"})
    assert [(each.agent_id, each.chooses, each.told) for each in prompts] == [
        ("#m", True, ()),
        ("#b", False, ()),
        ("#m", True, (1,)),
        ("#b", False, ()),
    ]
    assert prompts[0].with_message and not prompts[2].with_message
    assert prompts[3].instruction is not None


@pytest.mark.parametrize(
    ("words", "speeches"), [({"#m": "#a DONE!"}, 1), ({"#m": "#a", "#a": "DONE!"}, 2), ({"#m": "almost nobody"}, 1)]
)
def test_a_token_or_a_name_that_is_none_ends_it(words: dict[str, str], speeches: int) -> None:
    assert len(played(discussion("dynamic", max_turns=9), words)) == speeches


def test_the_id_of_a_speech_follows_from_its_place() -> None:
    assert run_id("d", 0) == run_id("d", 0) != run_id("d", 1)

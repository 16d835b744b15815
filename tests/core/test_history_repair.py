"""A history that comes from elsewhere is put in order, and one that is in order is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import model_history
from holdfast.core.history_repair import NEVER_ANSWERED, Repaired, repaired
from holdfast.core.messages import (
    AnyPart,
    Approve,
    ClientReturn,
    Deny,
    Image,
    Message,
    Parts,
    Reasoning,
    Summary,
    Text,
    ToolReturn,
)
from holdfast.core.model_history import OUTCOME_UNKNOWN

from ..effort import examples
from .rows import MODEL, WINDOW, assert_well_formed, call, returned, row
from .strategies import any_row, orderly_histories


def numbered(rows: Sequence[Message]) -> list[Message]:
    return [msgspec.structs.replace(each, id=f"message-{number}") for number, each in enumerate(rows)]


def repair(*rows: Message) -> Repaired:
    return repaired(numbered(rows))


def told(result: Repaired) -> list[tuple[int, str]]:
    return [(each.index, each.what) for each in result.repairs]


def parts(result: Repaired) -> list[Parts]:
    return [each.parts for each in result.rows]


def said(rows: Sequence[Message]) -> list[AnyPart]:
    """What somebody said or showed, in its order."""
    kinds = (Text, Image, Reasoning, Summary)
    return [part for each in rows for part in each.parts if isinstance(part, kinds) and part != Text("")]


# --- what is repaired ------------------------------------------------------------------------------------------------


def test_a_call_that_never_returned_gets_a_return_that_says_so() -> None:
    result = repair(row("user", "go"), row("assistant", call("c1", "roll")), row("user", "well?"))
    assert [each.role for each in result.rows] == ["user", "assistant", "tool", "user"]
    assert parts(result)[2] == (ToolReturn("c1", "roll", "error", OUTCOME_UNKNOWN),)
    [(index, what)] = told(result)
    assert index == 1
    assert "c1 of roll never returned" in what


def test_a_call_beside_one_that_returned_gets_a_return_of_its_own() -> None:
    result = repair(row("assistant", call("c1"), call("c2")), row("tool", returned("c2")))
    returns = [part.call_id for each in result.rows for part in each.returns]
    assert sorted(returns) == ["c1", "c2"]


def test_a_return_without_a_call_is_left_out() -> None:
    result = repair(row("user", "go"), row("tool", returned("c1")), row("assistant", "hello"))
    assert [each.role for each in result.rows] == ["user", "assistant"]
    [(index, what)] = told(result)
    assert index == 1
    assert "no call before it" in what


def test_a_second_return_is_left_out() -> None:
    rows = (row("assistant", call("c1")), row("tool", returned("c1", "first")), row("tool", returned("c1", "second")))
    result = repair(*rows)
    assert parts(result)[1:] == [(returned("c1", "first"),)]
    assert [index for index, _ in told(result)] == [2]


def test_calls_that_share_an_id_get_their_own_with_their_returns() -> None:
    result = repair(
        row("assistant", call("call_0", "roll")),
        row("tool", returned("call_0", "1", "roll")),
        row("assistant", call("call_0", "flip")),
        row("tool", returned("call_0", "2", "flip")),
    )
    first, second = (each.calls[0].id for each in result.rows if each.calls)
    assert first == "call_0" != second
    assert [(part.call_id, part.content) for each in result.rows for part in each.returns] == [
        (first, "1"),
        (second, "2"),
    ]
    assert len(result.repairs) == 1


def test_calls_of_one_reply_that_share_an_id_get_their_returns_in_their_order() -> None:
    result = repair(row("assistant", call("x"), call("x")), row("tool", returned("x", "1"), returned("x", "2")))
    calls = [each.id for each in result.rows[0].calls]
    assert [(part.call_id, part.content) for part in result.rows[1].returns] == [(calls[0], "1"), (calls[1], "2")]
    assert len(result.repairs) == 1


def test_an_approval_that_nobody_gave_counts_as_denied_with_the_calls_beside_it() -> None:
    result = repair(
        row("user", "go"),
        row("assistant", call("c1", "roll"), step="s1"),
        row("approval", call("c2", "wire"), step="s1"),
    )
    assert [each.role for each in result.rows] == ["user", "assistant", "approval", "approval", "tool"]
    assert parts(result)[3] == (Deny("c2", NEVER_ANSWERED),)
    assert [(part.call_id, part.status, part.was_asked) for part in result.rows[4].returns] == [
        ("c1", "error", False),
        ("c2", "error", True),
    ]
    assert [index for index, _ in told(result)] == [1, 2]


@pytest.mark.parametrize(
    ("decision", "status", "content"),
    [
        (Approve("c1"), "error", OUTCOME_UNKNOWN),
        (Deny("c1", "too dear"), "error", "Error: request to call tool denied. User reason: too dear"),
        (ClientReturn("c1", "42"), "success", "42"),
    ],
)
def test_a_decision_without_a_return_decides_what_the_return_says(
    decision: Approve | Deny | ClientReturn, status: str, content: str
) -> None:
    result = repair(row("approval", call("c1")), row("approval", decision), row("user", "and?"))
    assert [each.role for each in result.rows] == ["approval", "approval", "tool", "user"]
    [answer] = result.rows[2].returns
    assert (answer.status, answer.content) == (status, content)
    assert len(result.repairs) == 1


def test_decisions_about_nothing_and_second_decisions_are_left_out() -> None:
    asked = (row("approval", call("c1")), row("approval", Approve("c1")), row("tool", returned("c1")))
    result = repair(row("approval", Deny("c0")), *asked, row("approval", Deny("c1")))
    assert parts(result) == [each.parts for each in asked]
    assert [index for index, _ in told(result)] == [0, 4]


def test_messages_that_say_nothing_are_left_out_but_for_the_prompt() -> None:
    result = repair(row("system", ""), row("user", ""), row("assistant"), row("user", "hello"))
    assert parts(result) == [(Text(""),), (Text("hello"),)]
    assert [index for index, _ in told(result)] == [1, 2]


# --- what holds for every history ------------------------------------------------------------------------------------


@pytest.mark.slow
@examples(300)
@given(rows=st.lists(any_row(), max_size=14))
def test_whatever_comes_in_a_vendor_gets_a_well_formed_history_in_which_nothing_waits(rows: list[Message]) -> None:
    result = repaired(numbered(rows))
    turns = model_history.history(result.rows, model_handle=MODEL, context_window=WINDOW)
    assert_well_formed(turns)
    called = [each.id for line in result.rows for each in line.calls]
    back = [each.call_id for line in result.rows for each in line.returns]
    assert Counter(called) == Counter(back), "every call has exactly one return"
    assert len(set(called)) == len(called)
    for place, line in enumerate(result.rows):
        made = {each.id for earlier in result.rows[:place] for each in earlier.calls}
        assert {each.call_id for each in (*line.returns, *line.decisions)} <= made
    assert not result.rows or not result.rows[-1].is_approval_request
    assert len({line.id for line in result.rows}) == len(result.rows)


@pytest.mark.slow
@examples(200)
@given(rows=st.lists(any_row(), max_size=14))
def test_nothing_that_was_said_is_lost(rows: list[Message]) -> None:
    assert said(repaired(numbered(rows)).rows) == said(rows)


@pytest.mark.slow
@examples(200)
@given(rows=st.lists(any_row(), max_size=14))
def test_a_repaired_history_is_in_order(rows: list[Message]) -> None:
    once = repaired(numbered(rows))
    assert repaired(once.rows) == Repaired(once.rows)


@pytest.mark.slow
@examples(200)
@given(rows=orderly_histories())
def test_a_history_that_is_in_order_is_left_alone(rows: list[Message]) -> None:
    assert repaired(rows) == Repaired(tuple(rows))

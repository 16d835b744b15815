from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.context import Retelling, Terms, history
from holdfast.core.messages import Message, Reasoning, Turn

from .rows import MODEL, WINDOW, call, returned, row
from .strategies import any_row

TERMS = Terms(MODEL, WINDOW)


def made_at_once(rows: list[Message], terms: Terms = TERMS) -> tuple[Turn, ...]:
    return history(rows, model_handle=terms.model_handle, context_window=terms.context_window, timezone=terms.timezone)


def talk(turns: int) -> list[Message]:
    rows = [row("system", "rules")]
    for number in range(turns):
        rows += [row("user", f"question {number}"), row("assistant", f"answer {number}", model=MODEL)]
    return rows


@given(st.lists(any_row(), max_size=14), st.data())
def test_a_history_told_step_by_step_is_the_one_that_is_told_at_once(rows: list[Message], data: st.DataObject) -> None:
    retelling = Retelling()
    shown = 0
    for _ in range(data.draw(st.integers(1, 6), "steps")):
        match data.draw(st.sampled_from(["grow", "grow", "grow", "lose", "renew", "other model"]), "what happens"):
            case "lose" if shown:
                del rows[data.draw(st.integers(0, shown - 1), "lost")]
                shown -= 1
            case "renew" if shown:
                at = data.draw(st.integers(0, shown - 1), "renewed")
                rows[at] = msgspec.structs.replace(rows[at], parts=data.draw(any_row(), "instead").parts)
            case "other model":
                other = Terms("another/model", WINDOW, "Asia/Tokyo")
                assert retelling.turns(rows[:shown], other) == made_at_once(rows[:shown], other)
            case _:
                shown = data.draw(st.integers(shown, len(rows)), "shown")
        assert retelling.turns(rows[:shown], TERMS) == made_at_once(rows[:shown])


def test_what_was_told_before_is_not_made_again() -> None:
    retelling, rows = Retelling(), talk(5)
    before = retelling.turns(rows, TERMS)
    rows += [row("user", "one more"), row("assistant", "fine", model=MODEL)]
    after = retelling.turns(rows, TERMS)
    assert after == made_at_once(rows)
    assert all(now is then for now, then in zip(after, before[:8], strict=False))


def test_a_prompt_that_was_compiled_anew_costs_nothing() -> None:
    retelling, rows = Retelling(), talk(5)
    before = retelling.turns(rows, TERMS)
    rows[0] = row("system", "other rules")
    assert all(now is then for now, then in zip(retelling.turns(rows, TERMS), before[:8], strict=False))


def test_a_return_that_comes_after_the_next_message_is_put_where_it_belongs() -> None:
    retelling = Retelling()
    rows = [row("user", "go"), row("assistant", call("c1"), model=MODEL), row("user", "well?")]
    assert retelling.turns(rows, TERMS) == made_at_once(rows)
    rows += [row("tool", returned("c1", "late")), row("user", "thanks")]
    assert retelling.turns(rows, TERMS) == made_at_once(rows)
    assert "late" in str(made_at_once(rows)[2])


def test_a_row_that_took_the_place_of_another_is_told_though_all_before_it_is_known() -> None:
    retelling, rows = Retelling(), talk(3)
    retelling.turns(rows, TERMS)
    changed = [*rows[:-2], row("assistant", "instead", model=MODEL)]
    assert retelling.turns(changed, TERMS) == made_at_once(changed)


def test_an_approval_that_belongs_to_a_reply_that_is_known_is_told_with_it() -> None:
    retelling = Retelling()
    reply = row("assistant", call("c1"), model=MODEL, step="s1")
    rows = [row("user", "go"), reply, row("user", "well?")]
    retelling.turns(rows, TERMS)
    changed = [*rows[:2], row("approval", call("c2"), step="s1"), row("tool", returned("c2", "2")), row("user", "so?")]
    assert retelling.turns(changed, TERMS) == made_at_once(changed)
    assert [turn.role for turn in made_at_once(changed)] == ["user", "assistant", "tool", "user"]


def test_another_model_is_told_without_the_thoughts_of_the_first() -> None:
    retelling, rows = Retelling(), [row("user", "go"), row("assistant", Reasoning("hm"), "yes", model=MODEL)]
    rows.append(row("user", "sure?"))
    other = Terms("another/model", WINDOW)
    assert "hm" in str(retelling.turns(rows, TERMS))
    assert "hm" not in str(retelling.turns(rows, other))
    assert retelling.turns(rows, other) == made_at_once(rows, other)


def test_a_call_that_was_told_is_not_told_again() -> None:
    retelling, rows = Retelling(), [row("user", "go"), row("assistant", call("c1"), model=MODEL)]
    rows += [row("tool", returned("c1", "1")), row("user", "again")]
    retelling.turns(rows, TERMS)
    rows += [row("assistant", call("c1"), "twice", model=MODEL), row("tool", returned("c1", "2")), row("user", "so?")]
    assert retelling.turns(rows, TERMS) == made_at_once(rows)
    assert str(made_at_once(rows)).count("ToolCall(") == 1

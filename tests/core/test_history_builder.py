from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.messages import Message, Reasoning, Turn
from holdfast.core.model_history import HistoryBuilder, HistoryKey, history, size_of_turns

from .rows import MODEL, WINDOW, call, returned, row
from .strategies import any_row

KEY = HistoryKey(MODEL, WINDOW)


def made_at_once(rows: list[Message], key: HistoryKey = KEY) -> tuple[Turn, ...]:
    return history(rows, model_handle=key.model_handle, context_window=key.context_window, timezone=key.timezone)


def turns_of(builder: HistoryBuilder, rows: list[Message], key: HistoryKey) -> tuple[Turn, ...]:
    """What the builder makes. The size that it keeps is checked on the way."""
    built = builder.build(rows, key)
    assert built.size == size_of_turns(built.turns)
    return built.turns


def talk(turns: int) -> list[Message]:
    rows = [row("system", "rules")]
    for number in range(turns):
        rows += [row("user", f"question {number}"), row("assistant", f"answer {number}", model=MODEL)]
    return rows


@given(st.lists(any_row(), max_size=14), st.data())
def test_a_history_built_step_by_step_equals_one_built_at_once(rows: list[Message], data: st.DataObject) -> None:
    builder = HistoryBuilder()
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
                other = HistoryKey("another/model", WINDOW, "Asia/Tokyo")
                assert turns_of(builder, rows[:shown], other) == made_at_once(rows[:shown], other)
            case _:
                shown = data.draw(st.integers(shown, len(rows)), "shown")
        assert turns_of(builder, rows[:shown], KEY) == made_at_once(rows[:shown])


def test_turns_built_before_are_not_built_again() -> None:
    builder, rows = HistoryBuilder(), talk(5)
    before = turns_of(builder, rows, KEY)
    rows += [row("user", "one more"), row("assistant", "fine", model=MODEL)]
    after = turns_of(builder, rows, KEY)
    assert after == made_at_once(rows)
    assert all(now is then for now, then in zip(after, before[:8], strict=False))


def test_a_prompt_that_was_compiled_anew_costs_nothing() -> None:
    builder, rows = HistoryBuilder(), talk(5)
    before = turns_of(builder, rows, KEY)
    rows[0] = row("system", "other rules")
    assert all(now is then for now, then in zip(turns_of(builder, rows, KEY), before[:8], strict=False))


def test_a_return_that_comes_after_the_next_message_is_put_where_it_belongs() -> None:
    builder = HistoryBuilder()
    rows = [row("user", "go"), row("assistant", call("c1"), model=MODEL), row("user", "well?")]
    assert turns_of(builder, rows, KEY) == made_at_once(rows)
    rows += [row("tool", returned("c1", "late")), row("user", "thanks")]
    assert turns_of(builder, rows, KEY) == made_at_once(rows)
    assert "late" in str(made_at_once(rows)[2])


def test_a_return_after_the_last_message_is_put_where_it_belongs() -> None:
    rows = [row("user", "go"), row("assistant", call("c1"), model=MODEL), row("user", "well?")]
    rows.append(row("tool", returned("c1", "late")))
    assert turns_of(HistoryBuilder(), rows, KEY) == made_at_once(rows)
    assert "late" in str(made_at_once(rows)[2])


def test_a_row_that_took_the_place_of_another_is_shown_though_all_before_it_is_known() -> None:
    builder, rows = HistoryBuilder(), talk(3)
    turns_of(builder, rows, KEY)
    changed = [*rows[:-2], row("assistant", "instead", model=MODEL)]
    assert turns_of(builder, changed, KEY) == made_at_once(changed)


def test_an_approval_that_belongs_to_a_reply_that_is_known_is_shown_with_it() -> None:
    builder = HistoryBuilder()
    reply = row("assistant", call("c1"), model=MODEL, step="s1")
    rows = [row("user", "go"), reply, row("user", "well?")]
    turns_of(builder, rows, KEY)
    changed = [*rows[:2], row("approval", call("c2"), step="s1"), row("tool", returned("c2", "2")), row("user", "so?")]
    assert turns_of(builder, changed, KEY) == made_at_once(changed)
    assert [turn.role for turn in made_at_once(changed)] == ["user", "assistant", "tool", "user"]


def test_another_model_is_shown_the_history_without_the_thoughts_of_the_first() -> None:
    builder, rows = HistoryBuilder(), [row("user", "go"), row("assistant", Reasoning("hm"), "yes", model=MODEL)]
    rows.append(row("user", "sure?"))
    other = HistoryKey("another/model", WINDOW)
    assert "hm" in str(turns_of(builder, rows, KEY))
    assert "hm" not in str(turns_of(builder, rows, other))
    assert turns_of(builder, rows, other) == made_at_once(rows, other)


def test_a_call_that_was_shown_is_not_shown_again() -> None:
    builder, rows = HistoryBuilder(), [row("user", "go"), row("assistant", call("c1"), model=MODEL)]
    rows += [row("tool", returned("c1", "1")), row("user", "again")]
    turns_of(builder, rows, KEY)
    rows += [row("assistant", call("c1"), "twice", model=MODEL), row("tool", returned("c1", "2")), row("user", "so?")]
    assert turns_of(builder, rows, KEY) == made_at_once(rows)
    assert str(made_at_once(rows)).count("ToolCall(") == 1

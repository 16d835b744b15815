from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import dates, model_history
from holdfast.core.messages import (
    AnyPart,
    ClientReturn,
    CompactionStats,
    Deny,
    Image,
    Message,
    OmittedReasoning,
    Reasoning,
    RedactedReasoning,
    Summary,
    Text,
    ToolCall,
    ToolReturn,
    Turn,
)

from .rows import MODEL, WINDOW, approved, assert_well_formed, call, returned, row
from .strategies import any_row

AT_US = 1_794_766_543_000_000  # 2026-11-15 18:15:43 UTC


def history(*messages: Message, window: int = WINDOW, timezone: str = "UTC") -> tuple[Turn, ...]:
    return model_history.history(messages, model_handle=MODEL, context_window=window, timezone=timezone)


class TestTheRowsOfATurn:
    def test_are_those_of_the_run_and_of_the_runs_whose_calls_it_answers(self) -> None:
        earlier = (
            row("user", "before", run_id="run-0"),
            row("assistant", call("c1"), run_id="run-0"),
            row("tool", returned("c1"), run_id="run-0"),
        )
        turn = (
            row("user", "hello", run_id="run-1"),
            row("assistant", call("c0"), run_id="run-1"),
            row("tool", returned("c0"), run_id="run-1"),
            row("approval", call("c1"), run_id="run-1"),
            row("approval", Deny("c1"), run_id="run-2"),
            row("tool", returned("c1"), run_id="run-2"),
            row("approval", call("c2"), run_id="run-2"),
            row("tool", returned("c2"), run_id="run-3"),
        )
        found = model_history.rows_of_turn((row("system", "Be brief."), *earlier, *turn), "run-3")
        assert [one.run_id for one in found] == [one.run_id for one in turn]

    def test_hold_nothing_of_a_call_that_no_run_made(self) -> None:
        window = (row("assistant", call("c1")), row("tool", returned("c1"), run_id="run-1"))
        assert model_history.rows_of_turn(window, "run-1") == [window[1]]


def roles(turns: tuple[Turn, ...]) -> list[str]:
    return [turn.role for turn in turns]


def only_return(turns: tuple[Turn, ...], call_id: str) -> ToolReturn:
    (found,) = [
        part for turn in turns for part in turn.parts if isinstance(part, ToolReturn) and part.call_id == call_id
    ]
    return found


def unwrapped(found: ToolReturn) -> str:
    assert isinstance(found.content, str)
    return str(json.loads(found.content)["message"])


def test_an_ordinary_turn_is_sent_as_it_happened_without_the_system_row() -> None:
    turns = history(
        row("system", "rules"),
        row("user", "roll"),
        row("assistant", "rolling", call("c1"), model=MODEL),
        row("tool", returned("c1", "7")),
        row("assistant", "a seven", model=MODEL),
    )
    assert roles(turns) == ["user", "assistant", "tool", "assistant"]
    assert turns[1].parts == (Text("rolling"), call("c1"))
    assert turns[1].model == MODEL
    assert_well_formed(turns)


def test_a_tool_return_is_wrapped_with_its_status_and_the_agents_local_time() -> None:
    turns = history(
        row("user", "go"),
        row("assistant", call("ok"), call("bad")),
        row("tool", returned("ok", 'say "hi"'), ToolReturn("bad", "tool", "error", "no"), at=AT_US),
        timezone="America/New_York",
    )
    assert only_return(turns, "ok").content == (
        '{\n  "status": "OK",\n  "message": "say \\"hi\\"",\n  "time": "2026-11-15 01:15:43 PM EST-0500"\n}'
    )
    assert json.loads(str(only_return(turns, "bad").content))["status"] == "Failed"
    assert only_return(turns, "bad").status == "error"


def test_a_system_message_that_was_sent_to_the_agent_is_shown_as_a_user_turn() -> None:
    prompt = row("system", "You are an agent.")
    turns = history(prompt, row("system", "The office is closed.", run_id="run-1"))
    assert turns == (Turn("user", (Text("The office is closed."),)),)
    assert history(row("system", "First of what is left.", run_id="run-1")) != ()


def test_approval_responses_are_not_sent() -> None:
    turns = history(
        row("user", "go"),
        row("approval", "may I?", call("c1"), step="s1"),
        approved("c1"),
        row("tool", returned("c1")),
    )
    assert roles(turns) == ["user", "assistant", "tool"]
    assert turns[1].parts == (Text("may I?"), call("c1"))


def test_the_two_rows_of_one_reply_become_one_turn_with_the_allowed_calls_first() -> None:
    turns = history(
        row("user", "go"),
        row("assistant", "both", call("free"), step="s1"),
        row("approval", call("held1"), call("held2"), step="s1"),
        row("approval", Deny("held1"), ClientReturn("held2", "done")),
        row("tool", returned("held1", "1"), returned("held2", "2"), returned("free", "3")),
    )
    assert roles(turns) == ["user", "assistant", "tool"]
    assert turns[1].parts == (Text("both"), call("free"), call("held1"), call("held2"))
    assert [part.call_id for part in turns[2].parts if isinstance(part, ToolReturn)] == ["free", "held1", "held2"]


def test_an_approval_request_of_another_step_stays_a_turn_of_its_own() -> None:
    turns = history(
        row("user", "go"),
        row("assistant", call("a"), step="s1"),
        row("approval", call("b"), step="s2"),
        approved("b"),
    )
    assert roles(turns) == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize("first_step", [None, "s1"])
def test_a_trailing_request_that_waits_is_left_out_with_its_sibling(first_step: str | None) -> None:
    sibling = row("assistant", "both", call("free"), step=first_step)
    turns = history(row("user", "go"), sibling, row("approval", call("held"), step="s1"))
    assert roles(turns) == (["user"] if first_step else ["user", "assistant", "tool"])


def test_nothing_but_a_request_that_waits_gives_no_turns() -> None:
    assert history(row("approval", call("held"), step="s1")) == ()


def test_a_call_whose_result_was_never_stored_gets_an_unknown_outcome() -> None:
    turns = history(row("user", "go"), row("assistant", call("c1"), call("c2")), row("tool", returned("c2", "2")))
    lost = only_return(turns, "c1")
    assert (lost.status, unwrapped(lost)) == ("error", model_history.OUTCOME_UNKNOWN)
    assert unwrapped(only_return(turns, "c2")) == "2"


def test_a_return_without_its_call_is_dropped() -> None:
    assert roles(history(row("user", "go"), row("tool", returned("ghost")), row("assistant", "hm"))) == [
        "user",
        "assistant",
    ]


def test_a_return_from_before_its_call_is_not_taken_for_its_result() -> None:
    turns = history(row("user", "go"), row("tool", returned("c1", "early")), row("assistant", call("c1")))
    assert unwrapped(only_return(turns, "c1")) == model_history.OUTCOME_UNKNOWN


def test_a_return_that_came_late_is_moved_to_its_call() -> None:
    turns = history(
        row("user", "go"), row("assistant", call("c1")), row("user", "hello?"), row("tool", returned("c1", "7"))
    )
    assert roles(turns) == ["user", "assistant", "tool", "user"]
    assert unwrapped(only_return(turns, "c1")) == "7"


def test_of_repeated_calls_and_returns_the_first_wins() -> None:
    turns = history(
        row("user", "go"),
        row("assistant", call("c1", "first"), call("c1", "second")),
        row("tool", returned("c1", "one"), returned("c1", "two")),
        row("assistant", call("c1", "third")),
        row("tool", returned("c1", "three")),
    )
    assert roles(turns) == ["user", "assistant", "tool"]
    assert turns[1].parts == (call("c1", "first"),)
    assert unwrapped(only_return(turns, "c1")) == "one"


def test_user_rows_side_by_side_are_merged() -> None:
    turns = history(row("user", "one"), row("user", "two", Image("image/png", "AA==")))
    assert turns == (Turn("user", (Text("one"), Text("two"), Image("image/png", "AA=="))),)


def test_a_summary_is_a_user_turn_that_says_what_is_hidden() -> None:
    stats = CompactionStats("post_step_context_check", WINDOW, 9, 3)
    (turn,) = history(row("summary", Summary("They met.", stats), at=AT_US), row("user", "so?"))
    assert isinstance(turn.parts[0], Text)
    packed = json.loads(turn.parts[0].text)
    assert packed["type"] == "system_alert"
    assert packed["message"].endswith("They met.")
    assert packed["time"] == "2026-11-15 06:15:43 PM UTC+0000"
    assert packed["compaction_stats"]["messages_count_before"] == 9


def test_a_summary_without_figures_has_none() -> None:
    assert "compaction_stats" not in json.loads(model_history.summary_text("x", None, 0, "UTC"))


def test_reasoning_is_replayed_only_to_the_model_that_produced_it() -> None:
    thoughts: tuple[AnyPart, ...] = (Reasoning("hm"), RedactedReasoning("xx"), OmittedReasoning("sig"))
    own = row("assistant", *thoughts, "mine", model=MODEL)
    others = row("assistant", *thoughts, "theirs", model="other/model")
    assert history(row("user", "a"), own)[1].parts == (*thoughts, Text("mine"))
    assert history(row("user", "a"), others)[1].parts == (Text("theirs"),)


def test_a_row_of_nothing_but_foreign_reasoning_disappears() -> None:
    assert roles(history(row("user", "a"), row("assistant", Reasoning("hm"), model="other/model"))) == ["user"]


def test_merged_assistant_rows_stay_attributed_to_the_model_whose_reasoning_they_keep() -> None:
    own = row("assistant", Reasoning("hm"), "mine", model=MODEL)
    others = row("assistant", "theirs", model="other/model")
    assert history(row("user", "a"), own, others)[1].model == MODEL
    assert history(row("user", "a"), others, row("assistant", "third", model="third/model"))[1].model == "third/model"


def test_a_history_that_begins_with_the_assistant_gets_an_opening() -> None:
    turns = history(row("assistant", "welcome"))
    assert turns[0] == Turn("user", (Text(model_history.EARLIER_NOT_SHOWN),))
    assert roles(turns) == ["user", "assistant"]


def test_empty_texts_are_left_out_and_an_empty_message_says_so() -> None:
    turns = history(row("user", ""), row("assistant", "", call("c1")), row("tool", returned("c1")))
    assert turns[0].parts == (Text(model_history.EMPTY_MESSAGE),)
    assert turns[1].parts == (call("c1"),)
    assert history(row("user", "", "words"))[0].parts == (Text("words"),)


def test_a_long_return_is_cut_for_the_request_only() -> None:
    stored = returned("c1", "x" * 6_000)
    turns = history(row("user", "go"), row("assistant", call("c1")), row("tool", stored), window=1_000)
    assert unwrapped(only_return(turns, "c1")) == "x" * 5_000 + "... [truncated 1000 chars]"
    assert len(str(stored.content)) == 6_000
    assert model_history.return_char_limit(100_000) == 80_000


def test_a_return_of_several_parts_keeps_its_images_and_has_no_envelope() -> None:
    picture = Image("image/png", "AA==")
    many = ToolReturn("c1", "tool", "success", (Text("y" * 5_001), picture))
    turns = history(row("user", "go"), row("assistant", call("c1")), row("tool", many), window=1_000)
    assert only_return(turns, "c1").content == (Text("y" * 5_000 + "... [truncated 1 chars]"), picture)


def test_parts_that_do_not_belong_to_a_role_are_not_sent() -> None:
    turns = history(row("user", returned("c1"), "hi"), row("assistant", Deny("c1"), Image("image/png", "AA==")))
    assert turns[0].parts == (Text("hi"),)
    assert turns[1].parts == (Image("image/png", "AA=="),)


def test_an_unknown_timezone_is_shown_as_utc() -> None:
    assert dates.local_time(AT_US, "Atlantis/Capital") == "2026-11-15 06:15:43 PM UTC+0000"
    assert dates.local_time(AT_US, "../secret") == "2026-11-15 06:15:43 PM UTC+0000"


def test_midnight_and_noon_are_twelve() -> None:
    assert dates.local_time(0, "UTC") == "1970-01-01 12:00:00 AM UTC+0000"
    assert dates.local_time(43_200_000_000, "Asia/Kolkata") == "1970-01-01 05:30:00 PM IST+0530"


def test_a_heartbeat_tells_the_model_that_the_user_does_not_see_it() -> None:
    packed = json.loads(model_history.heartbeat_text("go on", AT_US, "UTC"))
    assert packed["type"] == "heartbeat"
    assert packed["reason"] == f"{model_history.HIDDEN_FROM_USER} go on"


def test_estimates_count_bytes_of_every_part_and_a_flat_price_for_images() -> None:
    assert model_history.estimate_message(row("user", "x" * 384)) == 100
    assert model_history.estimate_message(row("user", "é" * 192)) == 100
    assert (
        model_history.estimate_message(row("user", Image("image/png", "A" * 9_999))) == model_history.IMAGE_TOKENS + 4
    )
    assert (
        model_history.estimate_message(row("assistant", ToolCall("1234", "tool", "x" * 376), RedactedReasoning("")))
        == 100
    )
    two_parts = ToolReturn("1234", "tool", "success", (Text("x" * 300), Text("x" * 80)))
    assert model_history.estimate_message(row("tool", two_parts)) == 100
    assert model_history.estimate_message(row("tool", ToolReturn("1234", "tool", "success", "x" * 380))) == 100
    assert model_history.estimate_message(approved("c1")) == 4


def test_a_long_return_is_estimated_as_the_part_of_it_that_is_sent() -> None:
    long = row("tool", ToolReturn("c1", "tool", "success", "x" * 40_000))
    asked = row("assistant", call("c1"))
    (_, turn) = model_history.history((asked, long), model_handle="m", context_window=8_000)[1:]
    sent = model_history.estimate_context("", model_history.size_of_turns([turn]))
    assert model_history.estimate_shown(long, 8_000) == pytest.approx(sent, abs=40)
    assert model_history.estimate_shown(long, 128_000) == model_history.estimate_message(long)
    assert model_history.estimate_shown(row("user", "x" * 40_000), 8_000) == model_history.estimate_message(
        row("user", "x" * 40_000)
    )


def test_the_estimate_of_a_request_grows_with_each_of_its_parts() -> None:
    turns = history(row("user", "hello"))
    size = model_history.size_of_turns(turns)
    bare = model_history.estimate_context("", size)
    assert model_history.estimate_context("x" * 400, size) == bare + 100
    assert model_history.estimate_context("", size, ({"name": "x" * 400},)) > bare + 100


@given(st.lists(any_row(), max_size=14))
def test_any_sequence_of_rows_gives_a_well_formed_history(rows: list[Message]) -> None:
    assert_well_formed(history(*rows))


@given(st.lists(any_row(), max_size=14))
def test_a_history_read_back_as_rows_gives_itself(rows: list[Message]) -> None:
    turns = history(*rows)
    again = history(*(as_row(turn) for turn in turns))
    assert again == turns


def as_row(turn: Turn) -> Message:
    if turn.role != "tool":
        return row(turn.role, *turn.parts, model=turn.model or "")
    bare = [
        msgspec.structs.replace(part, content=unwrapped(part)) for part in turn.parts if isinstance(part, ToolReturn)
    ]
    return row("tool", *bare)

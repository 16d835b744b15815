from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import compaction, default_texts
from holdfast.core.compaction import Mode
from holdfast.core.messages import CompactionStats, Image, Message, Reasoning, Summary, Text, Turn
from holdfast.core.model_history import estimate_message, pending_start
from holdfast.core.records import CompactionSettings
from holdfast.core.usage import estimate_tokens, should_compact

from .rows import MODEL, WINDOW, approved, assert_well_formed, call, returned, row
from .strategies import any_row

SYSTEM = row("system", "rules")


def settings(mode: Mode = "sliding_window", **more: float) -> CompactionSettings:
    return CompactionSettings(mode=mode, sliding_window_percentage=more.get("percentage", 0.3))


def cut(messages: list[Message], wanted: CompactionSettings | None = None, window: int = WINDOW) -> int:
    return compaction.cut(messages, wanted or settings(), context_window=window)


def exchange(number: int, size: int = 10) -> list[Message]:
    """Four rows: a question, a call, its return, an answer."""
    step = f"s{number}"
    return [
        row("user", "q" * size),
        row("assistant", call(step), step=step),
        row("tool", returned(step, "r" * size), step=step),
        row("assistant", "a" * size),
    ]


@pytest.mark.parametrize(("tokens", "expected"), [(90, False), (91, True)])
def test_compaction_begins_above_nine_tenths_of_the_window(tokens: int, expected: bool) -> None:
    assert should_compact(tokens, 100) is expected


def test_the_window_is_rounded_down() -> None:
    assert should_compact(9, 11) is False
    assert should_compact(10, 11) is True


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", ["all"]),
        ("sliding_window", ["sliding_window", "all"]),
        ("self_compact_sliding_window", ["self_compact_sliding_window", "all"]),
        ("self_compact_all", ["self_compact_all", "self_compact_sliding_window", "all"]),
    ],
)
def test_each_mode_ends_in_the_one_that_always_works(mode: Mode, expected: list[str]) -> None:
    assert list(compaction.modes_to_try(mode)) == expected


def test_a_sliding_window_drops_the_oldest_third_up_to_a_reply() -> None:
    messages = [SYSTEM, *(message for number in range(5) for message in exchange(number))]
    # Thirty per cent of twenty rows is six: row seven is a tool return, row eight the answer after it.
    assert cut(messages) == 8
    assert messages[8].role == "assistant"


def test_a_call_and_its_return_leave_together() -> None:
    messages = [
        SYSTEM,
        row("user", "q"),
        row("assistant", call("c")),
        row("assistant", "wait"),
        row("tool", returned("c")),
    ]
    messages += [row("assistant", "done")]
    assert cut(messages, settings(percentage=0.4)) == 5


def test_the_cut_grows_until_the_rest_fits_well() -> None:
    messages = [SYSTEM, *(message for number in range(5) for message in exchange(number, size=400))]
    roomy, tight = cut(messages, window=100_000), cut(messages, window=1_000)
    assert roomy < tight
    kept = sum(map(estimate_message, [SYSTEM, *messages[tight:]]))
    assert kept * 1.3 <= 700
    assert tight < len(messages) - 1, "no more goes than has to"


def test_what_every_request_costs_besides_counts_against_the_rest() -> None:
    messages = [SYSTEM, *(message for number in range(5) for message in exchange(number))]
    fitting = compaction.cut(messages, settings(), context_window=1_000, overhead_tokens=100)
    crowded = compaction.cut(messages, settings(), context_window=1_000, overhead_tokens=500)
    assert fitting < crowded


def test_what_is_known_of_the_vendors_counting_takes_the_place_of_a_margin() -> None:
    messages = [SYSTEM, *(message for number in range(5) for message in exchange(number, size=400))]
    places = [compaction.cut(messages, settings(), context_window=1_500, ratio=ratio) for ratio in (0.5, 1.3, None, 2)]
    assert places[0] < places[1] == places[2] < places[3]


def test_there_is_something_to_summarise_unless_it_is_a_summary_or_waits_for_an_answer() -> None:
    pending = row("approval", call("held"), step="p")
    earlier = row("summary", Summary("before"))
    assert compaction.summarisable([SYSTEM, earlier, row("user", "q")])
    assert not compaction.summarisable([SYSTEM, earlier])
    assert not compaction.summarisable([SYSTEM, pending])
    assert not compaction.summarisable([])


def test_when_nothing_fits_as_much_as_possible_goes() -> None:
    messages = [SYSTEM, *exchange(1, size=4_000), *exchange(2, size=4_000)]
    assert cut(messages, window=100) == len(messages) - 1


def test_a_caller_may_bring_its_own_estimate() -> None:
    messages = [SYSTEM, *exchange(1), *exchange(2)]
    free = compaction.cut(messages, settings(), context_window=10, estimate=lambda _: 0)
    dear = compaction.cut(messages, settings(), context_window=10, estimate=lambda _: 10)
    assert (free, dear) == (4, 8)


def test_without_a_reply_there_is_no_place_to_cut() -> None:
    assert cut([SYSTEM, row("user", "a"), row("user", "b")]) == 1
    assert cut([row("user", "a")]) == 0
    assert cut([]) == 0


def test_a_request_that_waits_is_never_evicted_nor_split_from_its_sibling() -> None:
    pending = [row("assistant", call("free"), step="p"), row("approval", call("held"), step="p")]
    messages = [SYSTEM, *exchange(1, size=4_000), *pending]
    assert cut(messages, window=100) == 5
    assert cut(messages, settings("all"), window=100) == 5


def test_an_answered_request_is_kept_with_its_sibling() -> None:
    messages = [
        SYSTEM,
        row("user", "q"),
        row("assistant", "both", step="p"),
        row("approval", call("held"), step="p"),
        approved("held"),
        row("tool", returned("held")),
    ]
    assert cut(messages, settings(percentage=0.5)) == 2


def test_a_request_without_a_sibling_is_a_place_to_cut() -> None:
    messages = [SYSTEM, row("user", "q"), row("approval", call("held"), step="p"), approved("held")]
    messages += [row("tool", returned("held"))]
    assert cut(messages) == 2


@pytest.mark.parametrize("mode", ["all", "self_compact_all"])
def test_mode_all_evicts_everything_after_the_system_row(mode: Mode) -> None:
    assert cut([SYSTEM, *exchange(1)], settings(mode)) == 5
    assert cut([SYSTEM], settings(mode)) == 1


@given(st.lists(any_row(), max_size=14), st.sampled_from([50, 200, WINDOW]))
def test_wherever_it_is_cut_nothing_is_torn_apart(messages: list[Message], window: int) -> None:
    messages = [SYSTEM, *messages]
    place = cut(messages, window=window)
    assert 1 <= place <= pending_start(messages)
    if place == 1:
        return
    assert messages[place].role in ("assistant", "approval")
    later = {part.call_id for message in messages[place:] for part in message.returns}
    called_later = {one.id for message in messages[place:] for one in message.calls}
    called_earlier = {one.id for message in messages[:place] for one in message.calls}
    assert not (later & called_earlier) - called_later


def ask(messages: list[Message], wanted: CompactionSettings, window: int = WINDOW) -> tuple[str, tuple[Turn, ...]]:
    return compaction.summary_request(
        messages, wanted, system="You are Ada.", model_handle=MODEL, context_window=window
    )


def test_the_summariser_reads_a_transcript_of_what_leaves() -> None:
    messages = [
        row("summary", Summary("They met.")),
        row("system", "Closed on Monday."),
        row("user", "roll", Image("image/png", "AA==")),
        row("assistant", Reasoning("hm"), "rolling", call("c", "roll_dice", '{"n":6}')),
        row("tool", returned("c", "4", "roll_dice")),
    ]
    system, turns = ask(messages, settings())
    assert system == default_texts.SUMMARY["sliding_window"]
    assert turns == (
        Turn(
            "user",
            (
                Text(
                    "<summary_request>\nEarlier summary: They met.\nSystem: Closed on Monday.\nUser: roll\n"
                    "Assistant: rolling\n"
                    'Assistant called roll_dice with {"n":6}\nResult of roll_dice: 4\n</summary_request>'
                ),
            ),
        ),
    )


def test_an_agent_may_bring_its_own_prompt_and_have_it_acknowledged() -> None:
    wanted = CompactionSettings(mode="all", prompt="Shorter!", prompt_acknowledgement=True)
    system, turns = ask(exchange(1), wanted)
    assert system == "Shorter!"
    assert [turn.role for turn in turns] == ["user", "assistant", "user"]
    assert_well_formed(turns)


@pytest.mark.parametrize("ends_with", ["user", "assistant"])
def test_an_agent_that_summarises_itself_keeps_its_prompt_and_turns_as_prefix(
    ends_with: Literal["user", "assistant"],
) -> None:
    messages = [row("user", "one"), row("assistant", "two", model=MODEL)]
    messages += [row("user", "three")] if ends_with == "user" else []
    system, turns = ask(messages, settings("self_compact_all"))
    assert system == "You are Ada."
    assert [turn.role for turn in turns] == ["user", "assistant", "user"]
    assert turns[0].parts == (Text("one"),)
    last = turns[-1].parts[-1]
    assert isinstance(last, Text)
    assert last.text.startswith(compaction.REQUEST_TAG)
    assert default_texts.SUMMARY["self_compact_all"] in last.text
    assert_well_formed(turns)


def test_a_transcript_that_is_too_long_loses_its_middle() -> None:
    messages = [row("user", "first " + "x" * 3_000), row("user", "y" * 3_000 + " last")]
    text = compaction.transcript(messages, 1_000)
    assert text.startswith("User: first") and text.endswith("last")
    assert "characters left out]" in text
    assert len(text.encode()) < 1_100


def test_a_transcript_in_any_script_stays_within_its_bytes() -> None:
    text = compaction.transcript([row("user", "漢" * 3_000)], 1_000)
    assert len(text.encode()) < 1_100


def test_one_long_row_does_not_crowd_out_the_others() -> None:
    text = compaction.transcript([row("user", "x" * 9_000), row("user", "second")], 100_000)
    assert "[1000 more characters]" in text and text.endswith("second")


def test_a_summary_is_clipped_to_the_limit_the_agent_sets() -> None:
    assert compaction.clip("abcdef", 3, context_window=1_000) == "abc" + compaction.CLIPPED
    assert compaction.clip("abc", 3, context_window=1_000) == "abc"
    assert compaction.clip("abcdef", None, context_window=1_000) == "abcdef"


@pytest.mark.parametrize("limit", [50_000, None])
@pytest.mark.parametrize("letter", ["w", "é", "語"])
def test_a_summary_leaves_half_of_the_window_free_whatever_the_agent_allows(limit: int | None, letter: str) -> None:
    short = compaction.clip(letter * 40_000, limit, context_window=8_000, ratio=2.0)
    assert short.endswith(letter + compaction.CLIPPED)
    tokens = 2 * estimate_tokens(short.removesuffix(compaction.CLIPPED))
    assert tokens == pytest.approx(4_000, abs=2)
    assert compaction.clip("w" * 40_000, limit, context_window=128_000, ratio=2.0) == "w" * 40_000


def test_the_figures_count_the_summary_among_what_is_left() -> None:
    messages = [SYSTEM, *exchange(1), *exchange(2)]
    made = compaction.stats(
        "context_window_exceeded", context_window=1_000, before=messages, cut_at=6, tokens_before=900, tokens_after=300
    )
    assert made == CompactionStats("context_window_exceeded", 1_000, 9, 5, 900, 300)

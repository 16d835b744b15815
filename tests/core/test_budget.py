from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.usage import calibrated, prompt_limit, updated_ratio, worth_storing


@pytest.mark.parametrize(
    ("window", "output", "expected"),
    [(1_000, None, 1_000), (1_000, 100, 900), (1_000, 250, 750), (1_000, 800, 750), (7, 100, 6)],
)
def test_room_is_kept_for_the_reply_but_never_more_than_a_quarter(
    window: int, output: int | None, expected: int
) -> None:
    assert prompt_limit(window, output) == expected


def test_the_first_reply_sets_the_ratio_and_later_ones_move_it_by_a_quarter() -> None:
    assert updated_ratio(None, 1_000, 1_200) == 1.2
    assert updated_ratio(1.2, 1_000, 2_000) == pytest.approx(1.4)
    assert updated_ratio(1.2, 1_000, 800) == pytest.approx(1.1)


def test_small_requests_teach_nothing() -> None:
    assert updated_ratio(None, 255, 500) is None
    assert updated_ratio(1.1, 255, 500) == 1.1
    assert updated_ratio(None, 256, 512) == 2.0


@pytest.mark.parametrize(("reported", "expected"), [(3_500, 3.0), (400, 0.5), (6_001, None), (249, None), (0, None)])
def test_the_ratio_stays_between_a_half_and_three_and_absurd_figures_are_left(
    reported: int, expected: float | None
) -> None:
    assert updated_ratio(None, 1_000, reported) == expected


@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(0, 600_000)), max_size=30))
def test_no_sequence_of_replies_leads_out_of_the_range(replies: list[tuple[int, int]]) -> None:
    ratio: float | None = None
    for guessed, reported in replies:
        ratio = updated_ratio(ratio, guessed, reported)
        assert ratio is None or 0.5 <= ratio <= 3.0


def test_only_a_move_of_more_than_three_per_cent_is_worth_storing() -> None:
    assert worth_storing(None, 1.0)
    assert not worth_storing(1.0, 1.02)
    assert worth_storing(1.0, 1.04)
    assert worth_storing(1.0, 0.96)


def test_a_guess_is_multiplied_by_what_is_known_and_rounded_up() -> None:
    assert calibrated(100, None) == 100
    assert calibrated(101, 1.5) == 152

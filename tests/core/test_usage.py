from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.usage import (
    Price,
    Usage,
    calibrated,
    cost,
    estimate_tokens,
    prompt_limit,
    updated_ratio,
    worth_storing,
)


def test_sums_are_made_figure_by_figure() -> None:
    total = Usage(10, 2, 3, 4, 5) + Usage(1, 1, 1, 1, 1)
    assert total == Usage(11, 3, 4, 5, 6)
    assert total.total_tokens == 14


@pytest.mark.parametrize(("left", "right", "total"), [(None, None, None), (None, 0, 0), (2, None, 2), (2, 3, 5)])
def test_what_no_vendor_reported_stays_unreported(left: int | None, right: int | None, total: int | None) -> None:
    assert (Usage(cached_input_tokens=left) + Usage(cached_input_tokens=right)).cached_input_tokens == total


def test_one_guess_makes_the_sum_a_guess() -> None:
    assert (Usage(estimated=True) + Usage()).estimated
    assert not (Usage() + Usage()).estimated


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("漢字", 2)])
def test_four_bytes_make_a_token(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


PRICE = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)


@pytest.mark.parametrize(
    ("usage", "price", "dollars"),
    [
        (Usage(1_000_000, 1_000_000), PRICE, 18.0),
        (Usage(1_000_000, 0, cached_input_tokens=400_000), PRICE, 0.6 * 3.0 + 0.4 * 0.3),
        (Usage(1_000_000, 0, cache_write_tokens=500_000), PRICE, 0.5 * 3.0 + 0.5 * 3.75),
        (Usage(1_000_000, 0, 400_000, 500_000), PRICE, 0.1 * 3.0 + 0.4 * 0.3 + 0.5 * 3.75),
        (Usage(1_000_000, 0, 400_000, 500_000), Price(input=2.0, output=8.0), 2.0),
        (Usage(100, 0, cached_input_tokens=1_000_000), PRICE, 0.3),
        (Usage(0, 1_000_000, reasoning_tokens=900_000), PRICE, 15.0),
        (Usage(1_000_000), Price(0.0, 0.0), 0.0),
        (Usage(), PRICE, 0.0),
    ],
    ids=["plain", "cached", "written", "both", "no price of their own", "miscounted", "reasoning", "free", "nothing"],
)
def test_each_kind_of_token_costs_its_own_price(usage: Usage, price: Price, dollars: float) -> None:
    assert cost(usage, price) == pytest.approx(dollars)


def test_what_has_no_known_price_has_no_known_cost() -> None:
    assert cost(Usage(1_000, 1_000), None) is None


def test_a_prompt_that_is_longer_than_the_price_is_for_has_no_known_cost() -> None:
    price = Price(1.0, 2.0, longest_prompt=200_000)
    assert cost(Usage(200_000, 1_000_000), price) == pytest.approx(2.2)
    assert cost(Usage(200_001, 1), price) is None
    assert cost(Usage(), price) == 0.0


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

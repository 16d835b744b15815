from __future__ import annotations

import pytest

from holdfast.core.usage import Price, Usage, cost, estimate_tokens


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

from __future__ import annotations

import pytest

from holdfast.core.usage import Usage, estimate_tokens


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

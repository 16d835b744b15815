from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failures import LONGEST_PAUSE_S, RetryPolicy, asks_too_much, left_ms, pause_ms

PATIENCE = RetryPolicy(retries=3, first_pause_s=0.5)


def test_each_pause_is_twice_the_one_before() -> None:
    assert [pause_ms(PATIENCE, failures, None, 1.0) for failures in (1, 2, 3)] == [500, 1_000, 2_000]


def test_chance_shortens_a_pause_by_half_at_most() -> None:
    assert [pause_ms(PATIENCE, 1, None, chance) for chance in (0.0, 0.5, 1.0)] == [250, 375, 500]


def test_after_the_last_try_there_is_no_pause() -> None:
    assert pause_ms(PATIENCE, 4, None, 0.0) is None
    assert pause_ms(PATIENCE, 4, 1.0, 0.0) is None
    assert pause_ms(RetryPolicy(retries=0), 1, None, 0.0) is None


def test_what_the_vendor_asks_for_goes_before_our_own_pause() -> None:
    assert pause_ms(PATIENCE, 1, 7.5, 0.3) == 7_500
    assert pause_ms(PATIENCE, 3, 0.0, 0.3) == 0
    assert pause_ms(PATIENCE, 1, 0.0001, 0.3) == 1


def test_a_vendor_that_asks_for_more_than_a_minute_is_not_waited_for() -> None:
    assert pause_ms(PATIENCE, 1, 60.0, 0.0) == 60_000
    assert pause_ms(PATIENCE, 1, 60.1, 0.0) is None
    assert pause_ms(PATIENCE, 1, math.inf, 0.0) is None
    assert asks_too_much(61.0)
    assert not asks_too_much(60.0)
    assert not asks_too_much(None)


def test_who_comes_later_waits_only_for_the_rest_of_a_pause() -> None:
    began = 1_790_000_000_000_000
    assert [left_ms(500, began, began + us) for us in (0, 999, 1_000, 499_000, 500_000)] == [500, 500, 499, 1, 0]


def test_a_pause_that_is_over_leaves_nothing_to_wait_for() -> None:
    assert left_ms(500, 1_000_000, 86_400_000_000) == 0
    assert left_ms(0, 0, 0) == 0


def test_a_clock_that_is_behind_makes_no_pause_longer() -> None:
    assert left_ms(500, 86_400_000_000, 1_000_000) == 500


@given(st.integers(1, 40), st.floats(0, 60), st.floats(0, 1))
def test_no_pause_of_our_own_is_longer_than_a_minute(failures: int, first: float, chance: float) -> None:
    waited = pause_ms(RetryPolicy(retries=40, first_pause_s=first), failures, None, chance)
    assert waited is not None
    assert 0 <= waited <= LONGEST_PAUSE_S * 1_000


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_no_wait_is_asked_for_when_the_pause_is_set_to_nothing(failures: int) -> None:
    assert pause_ms(RetryPolicy(retries=3, first_pause_s=0.0), failures, None, 1.0) == 0

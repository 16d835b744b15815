from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.failures import LONGEST_PAUSE_S, RetryPolicy, asks_too_much, classify, left_ms, pause_ms
from holdfast.errors import ContextTooLong, LimitReached, RateLimited

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


class TestWhatAFailureMeans:
    def test_a_limit_of_the_vendor_is_told_with_when_to_try_again(self) -> None:
        failure = classify(RateLimited("slow down", retry_after=2.0), "run-1")
        assert (failure.kind, failure.stop_reason, failure.overflow) == ("RateLimited", "llm_api_error", False)
        assert failure.error == {
            "error_type": "llm_rate_limit",
            "message": RateLimited.summary,
            "detail": "RATE_LIMIT_EXCEEDED: slow down",
            "run_id": "run-1",
            "http_status": 429,
            "http_type": "llm_rate_limit",
            "retry_after": 2.0,
        }
        assert failure.data() == {"message": RateLimited.summary, "traceback": None, "details": failure.error}

    def test_a_wait_that_is_too_long_to_be_waited_for_is_named(self) -> None:
        detail = classify(RateLimited("slow down.", retry_after=90.0), "run-1").error["detail"]
        assert detail == "RATE_LIMIT_EXCEEDED: slow down. The provider asks to wait 90 s before another try."

    def test_a_limit_of_ours_is_not_said_to_be_the_provider_s(self) -> None:
        failure = classify(LimitReached("the limit is used up", retry_after=90.0), "run-1")
        assert failure.error["detail"] == "RATE_LIMIT_EXCEEDED: the limit is used up"

    def test_a_context_that_is_too_long_can_be_compacted(self) -> None:
        failure = classify(ContextTooLong("too many tokens"), "run-1")
        assert failure.overflow
        assert failure.error["message"] == failure.error["detail"] == "CONTEXT_WINDOW_EXCEEDED: too many tokens"
        assert "retry_after" not in failure.error

    def test_what_nobody_foresaw_is_an_internal_error_that_names_itself(self) -> None:
        failure = classify(ZeroDivisionError("division by zero"), "run-1")
        assert (failure.kind, failure.stop_reason) == ("ZeroDivisionError", "error")
        assert (failure.error["error_type"], failure.error["http_status"]) == ("internal_error", 500)
        assert failure.error["detail"] == "ZeroDivisionError: division by zero"

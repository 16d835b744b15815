"""Token buckets: what may be taken, when it may be used, and what becomes of what is not used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rate_limits import (
    LONGEST_WAIT_S,
    UNUSED_S,
    Grant,
    Limit,
    Share,
    Taken,
    corrected,
    fresh,
    granted,
    missing,
    parse_limits,
    take,
    unused,
    use,
)

SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
MINUTE = Limit("acme", 60, "requests", 60.0)  # one each second
SLOW = Limit("acme", 6, "requests", 60.0)
FAST = Limit("acme", 100, "requests", 1.0)


def test_limits_are_read_from_a_list() -> None:
    assert parse_limits("openai=500/min, openai = 200000 tokens/min,anthropic=50 requests / s,") == (
        Limit("openai", 500, "requests", 60.0),
        Limit("openai", 200_000, "tokens", 60.0),
        Limit("anthropic", 50, "requests", 1.0),
    )
    assert [limit.period_s for limit in parse_limits("a=1/hour,a=1/day")] == [3600.0, 86_400.0]


@pytest.mark.parametrize("text", ["openai", "openai=", "openai=0/min", "openai=5", "openai=5/week", "=5/s", "o=-1/s"])
def test_a_list_that_makes_no_sense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="openai=500/min"):
        parse_limits(text)


def test_a_changed_limit_has_another_bucket() -> None:
    limits = parse_limits("a=5/min,a=6/min,a=5 tokens/min,a=5/s,b=5/min")
    assert len({limit.key for limit in limits}) == 5


def test_a_full_bucket_gives_all_it_holds_at_once_and_then_makes_wait() -> None:
    first = take(MINUTE, None, NOW, 60, 300.0)
    assert (first.amount, first.wait_us) == (60, -60 * SECOND)
    assert first.full_at_us == NOW + 60 * SECOND
    second = take(MINUTE, first.full_at_us, NOW, 2, 300.0)
    assert (second.amount, second.wait_us) == (2, 0)  # the first of them a second from now


def test_a_bucket_that_nobody_used_for_its_period_is_full_again() -> None:
    empty = take(MINUTE, None, NOW, 60, 300.0)
    again = take(MINUTE, empty.full_at_us, NOW + 60 * SECOND, 60, 0.0)
    assert (again.amount, again.wait_us) == (60, -60 * SECOND)


def test_no_more_is_given_than_can_be_used_in_time() -> None:
    taken = take(MINUTE, None, NOW, 1_000, 10.0)
    assert taken.amount == 70
    nothing = take(MINUTE, taken.full_at_us, NOW, 1, 10.0)
    assert (nothing.amount, nothing.full_at_us) == (0, taken.full_at_us)
    assert take(MINUTE, taken.full_at_us, NOW, 1, 0.0).amount == 0


def test_a_clock_that_was_set_back_leaves_an_empty_bucket_and_not_a_closed_one() -> None:
    ahead = NOW + round(LONGEST_WAIT_S + 3600) * SECOND
    taken = take(MINUTE, ahead, NOW, 1, 5.0)
    assert (taken.amount, taken.wait_us) == (1, 0)


def test_a_share_is_used_piece_by_piece_each_in_its_time() -> None:
    share = granted(Share(), MINUTE, Taken(3, 0, 0), 100.0)
    times: list[float] = []
    for _ in range(3):
        found = use(share, MINUTE, 1)
        assert found is not None
        share = found[0]
        times.append(found[1])
    assert times == [101.0, 102.0, 103.0]
    assert use(share, MINUTE, 1) is None


def test_what_could_have_been_used_before_can_be_used_now_but_not_in_the_past() -> None:
    share = granted(Share(), MINUTE, Taken(2, 0, -30 * SECOND), 100.0)
    assert use(share, MINUTE, 2) == (Share(), 100.0)


def test_one_call_may_use_what_was_taken_at_different_times() -> None:
    share = granted(granted(Share(), MINUTE, Taken(2, 0, 0), 100.0), MINUTE, Taken(2, 0, 5 * SECOND), 101.0)
    found = use(share, MINUTE, 3)
    assert found is not None
    assert found[1] == 107.0
    assert use(found[0], MINUTE, 1) == (Share(), 108.0)


def test_what_is_not_used_is_forgotten_after_a_while() -> None:
    share = granted(Share(), MINUTE, Taken(2, 0, 0), 100.0)
    assert fresh(share, MINUTE, 102.0 + UNUSED_S - 0.01) is share
    assert fresh(share, MINUTE, 102.0 + UNUSED_S) == Share()


def test_a_little_more_than_needed_is_taken_if_the_limit_is_a_quick_one() -> None:
    assert (SLOW.ahead, FAST.ahead) == (0, 20)
    assert missing(Share(), SLOW, 2) == 2
    assert missing(Share(), FAST, 2) == 22
    held = granted(Share(), FAST, Taken(22, 0, 0), 0.0)
    assert missing(held, FAST, 22) == 0
    assert missing(held, FAST, 23) == 21


def test_what_a_call_used_beyond_its_guess_is_paid_with_the_next_share() -> None:
    owing = corrected(Share(), 5)
    assert missing(owing, MINUTE, 1) == 6
    partly = granted(owing, MINUTE, Taken(2, 0, 0), 100.0)
    assert partly == Share((), 3)
    paid = granted(partly, MINUTE, Taken(4, 0, 0), 100.0)
    assert use(paid, MINUTE, 1) == (Share(), 104.0)


def test_what_a_call_did_not_use_of_its_guess_is_there_for_the_next() -> None:
    ahead = corrected(Share(), -5)
    assert missing(ahead, MINUTE, 3) == 0
    share = granted(ahead, MINUTE, Taken(0, 0, 0), 100.0)
    assert use(share, MINUTE, 5) == (Share(), 100.0)


def test_whoever_leaves_before_its_turn_leaves_it_to_the_next() -> None:
    share = granted(Share(), MINUTE, Taken(2, 0, 4 * SECOND), 100.0)
    found = use(share, MINUTE, 1)
    assert found is not None
    back = unused(found[0], MINUTE, 1, found[1], 101.0)
    again = use(back, MINUTE, 1)
    assert again == (found[0], found[1])


class _Process:
    """As `engine/rate_limits.py` has it, without waiting."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.share = Share()

    def call(self, now_us: int, full_at_us: int | None, amount: int) -> tuple[int | None, float | None]:
        """When the bucket is full afterwards, and when the call is made, in seconds."""
        now = now_us / SECOND
        self.share = fresh(self.share, self.limit, now)
        found = use(self.share, self.limit, amount)
        if found is None:
            taken = take(self.limit, full_at_us, now_us, missing(self.share, self.limit, amount), 60.0)
            full_at_us = taken.full_at_us
            self.share = granted(self.share, self.limit, taken, now)
            found = use(self.share, self.limit, amount)
        if found is None:
            return full_at_us, None
        self.share = found[0]
        return full_at_us, max(found[1], now)


_limits = st.builds(
    Limit, st.just("acme"), st.integers(1, 200), st.just("requests"), st.sampled_from([1.0, 10.0, 60.0])
)
_calls = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 2), st.integers(1, 5)), max_size=120)


@given(_limits, _calls)
def test_in_no_span_of_time_is_more_used_than_the_bucket_held_and_was_refilled(
    limit: Limit, calls: list[tuple[int, int, int]]
) -> None:
    processes = [_Process(limit) for _ in range(3)]
    full_at_us, now_us = None, 0
    made: list[tuple[float, int]] = []
    for later_us, which, amount in calls:
        now_us += later_us
        wanted = min(amount, limit.amount)
        full_at_us, at = processes[which].call(now_us, full_at_us, wanted)
        if at is not None:
            assert at <= now_us / SECOND + 60.0 + 0.001, "no call waits for longer than it may"
            made.append((at, wanted))
    made.sort()
    slack = len(processes) * limit.ahead + 0.01  # what each process may have taken and not used
    for first in range(len(made)):
        used = 0
        for at, amount in made[first:]:
            used += amount
            assert used <= limit.amount + (at - made[first][0]) / limit.each_s + slack


@given(_limits, st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_takers_stand_in_line_and_none_is_given_the_turn_of_another(limit: Limit, wanted: list[int]) -> None:
    full_at_us: int | None = None
    last_end = float("-inf")
    for amount in wanted:
        taken = take(limit, full_at_us, NOW, amount, 30.0)
        assert 0 <= taken.amount <= amount
        begin = NOW + taken.wait_us
        end = taken.full_at_us - round(limit.period_s * SECOND)
        assert begin >= last_end - 1
        assert end <= NOW + 30 * SECOND + 1
        last_end, full_at_us = end, taken.full_at_us


@given(_limits, st.integers(1, 10_000))
def test_whatever_was_taken_the_bucket_is_full_again_after_a_while(limit: Limit, amount: int) -> None:
    taken = take(limit, None, NOW, amount, 60.0)
    later = NOW + round((limit.period_s + 60.0) * SECOND) + 1
    assert take(limit, taken.full_at_us, later, limit.amount, 0.0).amount == limit.amount


def test_a_grant_knows_when_each_part_may_be_used() -> None:
    grant = Grant(4, 10.0, 12.0)
    assert [grant.usable_at(MINUTE, part) for part in (1, 2, 3, 4)] == [12.0, 12.0, 13.0, 14.0]
    assert grant.without(MINUTE, 3) == Grant(1, 13.0, 12.0)

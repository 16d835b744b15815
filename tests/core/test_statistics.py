"""Over which time figures are made, in which buckets, and what is computed of single calls."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.statistics import (
    MOST_BUCKETS,
    StepSum,
    ToolSample,
    Used,
    by_provider,
    by_tool,
    percentile,
    span_of,
    used_by_bucket,
    used_by_day,
)
from holdfast.errors import Unprocessable

S = 1_000_000
DAY = 86_400 * S
NOW = 20_000 * DAY + 5_025 * S


def test_without_a_time_it_is_the_day_before_now_in_buckets_that_begin_on_whole_multiples() -> None:
    span = span_of(None, None, None, NOW)
    assert (span.width_us, span.until_us) == (3_600 * S, NOW)
    assert span.since_us % span.width_us == 0
    assert NOW - DAY - span.width_us < span.since_us <= NOW - DAY
    assert 20 <= span.buckets <= 61


@pytest.mark.parametrize(
    ("days", "width_s"), [(1 / 24, 60), (1, 3_600), (7, 3 * 3_600), (30, 86_400), (365, 7 * 86_400)]
)
def test_a_longer_time_has_wider_buckets(days: float, width_s: int) -> None:
    span = span_of(NOW - int(days * DAY), NOW, None, NOW)
    assert span.width_us == width_s * S
    assert span.buckets <= 62


def test_the_last_bucket_may_be_shorter_than_the_others() -> None:
    span = span_of(NOW - 10 * S, NOW, 60, NOW)
    assert (span.buckets, span.since_us) == (1, NOW - 45 * S)


@pytest.mark.parametrize(
    ("since_us", "until_us", "width_s", "named"),
    [
        (NOW, NOW, None, "since"),
        (NOW + 1, NOW, None, "since"),
        (-1, NOW, None, "since"),
        (NOW, 2**62, None, "since"),
        (NOW - 401 * DAY, NOW, None, "400 days"),
        (NOW - 30 * DAY, NOW, 60, "bucket_s"),
    ],
)
def test_what_would_be_too_much_or_makes_no_sense_is_refused(
    since_us: int, until_us: int, width_s: int | None, named: str
) -> None:
    with pytest.raises(Unprocessable, match=named):
        span_of(since_us, until_us, width_s, NOW)


def test_as_many_buckets_as_are_allowed_are_given() -> None:
    begin = NOW - NOW % (60 * S)
    assert span_of(begin - MOST_BUCKETS * 60 * S, begin, 60, NOW).buckets == MOST_BUCKETS


@pytest.mark.parametrize(("percent", "found"), [(50, 5), (95, 10), (100, 10), (1, 1)])
def test_a_percentile_is_the_smallest_that_so_many_do_not_exceed(percent: int, found: int) -> None:
    assert percentile(list(range(1, 11)), percent) == found


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


def test_tools_are_ordered_by_what_nearly_all_of_their_calls_take() -> None:
    calls = [ToolSample("quick", False, took) for took in (1, 2, 3)]
    calls += [ToolSample("slow", True, 100), ToolSample("slow", False, None), ToolSample("shared", False, None)]
    slow, quick, shared = by_tool(calls)
    assert (slow.name, slow.calls, slow.failures, slow.timed, slow.p50_ns, slow.max_ns) == ("slow", 2, 1, 1, 100, 100)
    assert (quick.p50_ns, quick.p95_ns, quick.failures) == (2, 3, 0)
    assert (shared.timed, shared.p95_ns) == (0, None)


def sum_of(provider: str, error_type: str | None, last_us: int, cost: float | None = None, day: int = 0) -> StepSum:
    used = Used(steps=2, prompt_tokens=10, cost_usd=cost, unpriced_steps=0 if cost is not None else 2)
    return StepSum(0, day, provider, error_type, used, 1_000, 2, last_us)


def test_a_provider_is_failing_if_its_last_call_failed() -> None:
    sums = [sum_of("a", None, 5), sum_of("a", "RateLimited", 9), sum_of("a", "Overloaded", 7)]
    sums += [sum_of("b", "Overloaded", 3), sum_of("b", None, 4)]
    a, b = by_provider(sums)
    assert (a.calls, a.failures, a.last_error_type, a.is_failing, a.mean_ns) == (6, 4, "RateLimited", True, 500)
    assert (b.is_failing, b.last_success_us, b.last_failure_us) == (False, 4, 3)


def test_a_cost_is_the_sum_of_those_that_are_known_and_says_how_many_are_not() -> None:
    days = used_by_day([sum_of("a", None, 1, 0.5, 2), sum_of("b", None, 1, None, 2), sum_of("c", None, 1, None, 1)])
    assert list(days) == [1, 2]
    assert (days[2].cost_usd, days[2].unpriced_steps, days[2].prompt_tokens) == (0.5, 2, 20)
    assert days[1].cost_usd is None


def test_every_bucket_is_there_also_the_empty_ones() -> None:
    span = span_of(NOW - 100 * S, NOW, 60, NOW)
    last = msgspec.structs.replace(sum_of("a", None, 1, 0.5), bucket=span.buckets - 1)
    used = used_by_bucket(span, [last, last])
    assert [each.cost_usd for each in used] == [None] * (span.buckets - 1) + [1.0]

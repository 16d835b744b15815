"""Dates as people and models write them, as the first and the last microsecond that they mean."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.core.dates import moments

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * SECOND


@pytest.mark.parametrize(
    ("text", "start", "length"),
    [
        ("2026-03-01", NOON - DAY // 2, DAY),
        (" 2026-03-01T12:00 ", NOON, 60 * SECOND),
        ("2026-03-01 12:00", NOON, 60 * SECOND),
        ("2026-03-01T12:00:00", NOON, 1),
        ("2026-03-01T14:00:00+02:00", NOON, 1),
    ],
)
def test_a_day_and_a_minute_are_meant_as_a_whole(text: str, start: int, length: int) -> None:
    assert moments(text, "UTC") == (start, start + length - 1)


def test_a_time_without_a_zone_is_in_the_given_one() -> None:
    assert moments("2026-03-01T21:00:00", "Asia/Tokyo") == (NOON, NOON)


@pytest.mark.parametrize("text", ["bad", "", "2026-13-01"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        moments(text, "UTC")

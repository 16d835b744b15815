from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.times import message_date, microseconds, optional_timestamp, packed_time, timestamp

AT_US = 1_772_357_400_250_000
CENTURY_US = 100 * 365 * 86_400 * 1_000_000


def test_a_message_date_has_whole_seconds_and_an_offset() -> None:
    assert message_date(AT_US) == "2026-03-01T09:30:00+00:00"


@pytest.mark.parametrize(
    ("at_us", "shown"), [(AT_US, "2026-03-01T09:30:00.250000Z"), (AT_US - 250_000, "2026-03-01T09:30:00Z")]
)
def test_a_timestamp_ends_in_z_and_shows_a_fraction_only_if_there_is_one(at_us: int, shown: str) -> None:
    assert timestamp(at_us) == shown
    assert optional_timestamp(at_us) == shown


def test_no_time_is_null() -> None:
    assert optional_timestamp(None) is None


@given(st.integers(0, CENTURY_US))
def test_a_timestamp_loses_no_microsecond(at_us: int) -> None:
    assert microseconds(datetime.fromisoformat(timestamp(at_us))) == at_us


def test_a_time_with_an_offset_is_converted_and_one_without_is_taken_as_utc() -> None:
    utc = datetime(2026, 3, 1, 9, 30, 0, 250_000, tzinfo=UTC)
    assert microseconds(utc) == AT_US
    assert microseconds(utc.astimezone(timezone(timedelta(hours=2)))) == AT_US
    assert microseconds(utc.replace(tzinfo=None)) == AT_US


def test_packed_messages_tell_the_time_in_words_of_the_day() -> None:
    assert packed_time(AT_US) == "2026-03-01 09:30:00 AM UTC+0000"

"""Times on the wire. Messages carry whole seconds with an offset; records carry microseconds and a `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

MICROSECONDS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def message_date(at_us: int) -> str:
    """`2026-03-01T09:30:00+00:00`"""
    return _date_of_second(at_us // MICROSECONDS)


def timestamp(at_us: int) -> str:
    """`2026-03-01T09:30:00.250000Z`; the fraction is left out when it is zero."""
    return _moment(at_us).isoformat().removesuffix("+00:00") + "Z"


def optional_timestamp(at_us: int | None) -> str | None:
    return None if at_us is None else timestamp(at_us)


def packed_time(at_us: int) -> str:
    """`2026-03-01 09:30:00 AM UTC+0000`: how packed messages tell the time."""
    return _moment(at_us).strftime("%Y-%m-%d %I:%M:%S %p UTC%z")


def microseconds(moment: datetime) -> int:
    """A time without an offset is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def optional_microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else microseconds(moment)


def _moment(at_us: int) -> datetime:
    # Not fromtimestamp(at_us / 1e6): a float cannot hold every microsecond.
    return _EPOCH + timedelta(microseconds=at_us)


@lru_cache(maxsize=1024)
def _date_of_second(second: int) -> str:
    return (_EPOCH + timedelta(seconds=second)).isoformat()

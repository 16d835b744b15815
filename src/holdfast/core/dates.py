"""Dates as people and models write and read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MINUTE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
# Without the next microsecond: after the last day of the year 9999 there is none.
_WHOLE_DAY: Final = timedelta(days=1) - timedelta(microseconds=1)
_WHOLE_MINUTE: Final = timedelta(minutes=1) - timedelta(microseconds=1)


@lru_cache(maxsize=8_192)
def local_time(at_us: int, timezone: str) -> str:
    """Such as `2026-11-15 06:15:43 PM UTC+0000`. A zone this machine does not know is shown as UTC."""
    at = datetime.fromtimestamp(at_us // 1_000_000, zone(timezone))
    # Same as strftime("%Y-%m-%d %I:%M:%S %p %Z%z"), four times as fast and deaf to the process's locale.
    iso, half = at.isoformat(" ", "seconds"), "AM" if at.hour < 12 else "PM"
    return f"{iso[:10]} {at.hour % 12 or 12:02d}{iso[13:19]} {half} {at.tzname()}{iso[19:22]}{iso[23:25]}"


def moments(text: str, timezone: str) -> tuple[int, int]:
    """The first and the last microsecond of a day or a minute; a fuller time is both. In the given time zone, unless it
    names its own. Raises ValueError."""
    written = text.strip()
    start = datetime.fromisoformat(written)
    start = start if start.tzinfo else start.replace(tzinfo=zone(timezone))
    end = start
    if _DAY.fullmatch(written):
        end = start + _WHOLE_DAY
    elif _MINUTE.fullmatch(written):
        end = start + _WHOLE_MINUTE
    return _microseconds(start), _microseconds(end)


def _microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return UTC

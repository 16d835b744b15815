"""Dates as people and models write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.core.envelopes import zone

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MINUTE = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}")
# Without the next microsecond: after the last day of the year 9999 there is none.
_WHOLE_DAY: Final = timedelta(days=1) - timedelta(microseconds=1)
_WHOLE_MINUTE: Final = timedelta(minutes=1) - timedelta(microseconds=1)


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

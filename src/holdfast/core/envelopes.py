"""The JSON texts that carry what is not the user's own words to a model: tool results, summaries, heartbeats.

Their keys and layout are known to clients and to imported histories, so they are made here and nowhere else.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.core.messages import CompactionStats, Status

HIDDEN_FROM_USER: Final = "[This is an automated system message hidden from the user]"
SUMMARY_NOTE: Final = "Note: earlier messages are hidden from view to save space. They are summarised below."


@lru_cache(maxsize=8_192)
def local_time(at_us: int, timezone: str) -> str:
    """Such as `2026-11-15 06:15:43 PM UTC+0000`. A zone this machine does not know is shown as UTC."""
    at = datetime.fromtimestamp(at_us // 1_000_000, zone(timezone))
    # Same as strftime("%Y-%m-%d %I:%M:%S %p %Z%z"), four times as fast and deaf to the process's locale.
    iso, half = at.isoformat(" ", "seconds"), "AM" if at.hour < 12 else "PM"
    return f"{iso[:10]} {at.hour % 12 or 12:02d}{iso[13:19]} {half} {at.tzname()}{iso[19:22]}{iso[23:25]}"


def tool_return(message: str, status: Status, at_us: int, timezone: str) -> str:
    word = "OK" if status == "success" else "Failed"
    time = _quoted(local_time(at_us, timezone))
    # Written by hand because it is made anew for every return of every request.
    return f'{{\n  "status": "{word}",\n  "message": {_quoted(message)},\n  "time": {time}\n}}'


def summary(text: str, stats: CompactionStats | None, at_us: int, timezone: str) -> str:
    packed: dict[str, object] = {
        "type": "system_alert",
        "message": f"{SUMMARY_NOTE}\n\n{text}",
        "time": local_time(at_us, timezone),
    }
    if stats is not None:
        packed["compaction_stats"] = stats
    return msgspec.json.encode(packed).decode()


def heartbeat(reason: str, at_us: int, timezone: str) -> str:
    packed = {"type": "heartbeat", "reason": f"{HIDDEN_FROM_USER} {reason}", "time": local_time(at_us, timezone)}
    return msgspec.json.encode(packed).decode()


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return UTC

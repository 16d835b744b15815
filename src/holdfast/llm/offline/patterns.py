"""Regular expressions that are compiled when they are first needed. Everybody waits for the server's start, few speak
to the offline model, and compiling all that it understands takes tens of milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache


def lazily(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    return cache(lambda: re.compile(pattern, flags))


def phrase(pattern: str) -> Callable[[], re.Pattern[str]]:
    """In capitals or not, and over several lines."""
    return lazily(pattern, re.IGNORECASE | re.DOTALL)

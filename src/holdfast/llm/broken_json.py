"""JSON that cannot be read: what reading it may raise, and events that can be repaired."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

# Nested deeper than we can follow it, it is as good as unreadable.
NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# A pair of halves, one half alone, or any other escape: none may be taken for the beginning of the next.
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def repaired(decode: Callable[[bytes], T], data: bytes) -> T:
    """An event in which a character was cut in half, by a server or by whoever stands between it and us: a mark stands
    for the character, because one of them is not worth a reply.

    Raises DecodeError for what is broken otherwise.
    """
    text = _ESCAPE.sub(lambda found: r"\ufffd" if found[1] else found[0], data.decode(errors="replace"))
    try:
        return decode(text.encode())
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error

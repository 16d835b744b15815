"""Every call has an id of its own, whatever the vendor sends.

Some servers send none, some count from zero in every reply. A history tells calls and returns apart by their ids, so
one that is missing, or known from an earlier reply, is replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

from holdfast.core.messages import ToolCall
from holdfast.llm.base import ModelRequest

# What the pickiest vendor takes. Others make longer ones, and a history may hold them.
LONGEST: Final = 40
_PLAIN: Final = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST}}}")


class CallIds:
    """For one reply."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._taken: set[str] | None = None

    def own(self, said: str | None) -> str:
        if self._taken is None:
            self._taken = {part.id for turn in self._request.turns for part in turn.parts if isinstance(part, ToolCall)}
        call_id = said if said and said not in self._taken else f"call_{os.urandom(12).hex()}"
        self._taken.add(call_id)
        return call_id


def short(call_id: str) -> str:
    """Itself, or always the same other one when it is empty or too long to be sent."""
    return call_id if 0 < len(call_id) <= LONGEST else _other(call_id)


def plain(call_id: str, length: int | None = None) -> str:
    """Also without characters that some vendors refuse. With a length: of letters and digits, exactly as many."""
    if length is None:
        return call_id if _PLAIN.fullmatch(call_id) else _other(call_id)
    fits = len(call_id) == length and call_id.isascii() and call_id.isalnum()
    return call_id if fits else hashlib.blake2b(call_id.encode(), digest_size=20).hexdigest()[:length]


def _other(call_id: str) -> str:
    return f"call_{hashlib.blake2b(call_id.encode(), digest_size=12).hexdigest()}"

"""Windows that runs of this process have left behind, so that the next turn need not read, decode and tell them again.

One is good only while its thread stands where it stood: whoever changes a window, in whichever process, moves the end
of its history (see store/threads.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from holdfast.core.context import Retelling
from holdfast.core.messages import Message

MOST_MESSAGES: Final = 20_000


class _Kept(msgspec.Struct, frozen=True):
    end: int
    window: list[Message]
    retelling: Retelling


class Windows:
    def __init__(self, most_messages: int = MOST_MESSAGES) -> None:
        self._most = most_messages
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._messages = 0

    def keep(self, thread_id: str, end: int, window: list[Message], retelling: Retelling) -> None:
        """Those that were not used for longest make room."""
        self._forget(thread_id)
        self._kept[thread_id] = _Kept(end, window, retelling)
        self._messages += len(window)
        while self._messages > self._most:
            self._forget(next(iter(self._kept)))

    def of(self, thread_id: str, end: int) -> list[Message] | None:
        kept = self._kept.get(thread_id)
        if kept is None or kept.end != end:
            return None
        self._kept.move_to_end(thread_id)
        return kept.window

    def retelling_of(self, thread_id: str) -> Retelling:
        """It looks itself whether the thread's history goes on where it ended."""
        kept = self._kept.get(thread_id)
        return Retelling() if kept is None else kept.retelling

    def _forget(self, thread_id: str) -> None:
        known = self._kept.pop(thread_id, None)
        if known is not None:
            self._messages -= len(known.window)

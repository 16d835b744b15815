"""Windows that runs of this process have left behind, so that the next turn need not read and decode them again.

One is good only while its thread stands where it stood: whoever changes a window, in whichever process, moves the end
of its history (see store/threads.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from holdfast.core.messages import Message

MOST_MESSAGES: Final = 20_000


class Windows:
    def __init__(self, most_messages: int = MOST_MESSAGES) -> None:
        self._most = most_messages
        self._kept: OrderedDict[str, tuple[int, list[Message]]] = OrderedDict()
        self._messages = 0

    def keep(self, thread_id: str, end: int, window: list[Message]) -> None:
        """Those that were not used for longest make room."""
        self._forget(thread_id)
        self._kept[thread_id] = (end, window)
        self._messages += len(window)
        while self._messages > self._most:
            self._forget(next(iter(self._kept)))

    def of(self, thread_id: str, end: int) -> list[Message] | None:
        kept = self._kept.get(thread_id)
        if kept is None or kept[0] != end:
            return None
        self._kept.move_to_end(thread_id)
        return kept[1]

    def _forget(self, thread_id: str) -> None:
        known = self._kept.pop(thread_id, None)
        if known is not None:
            self._messages -= len(known[1])

"""Windows that runs of this process have left behind, so that the next turn need not read and decode them again.

One is good only while its thread stands where it stood: whoever changes a window, in whichever process, moves the end
of its history (see store/threads.py).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from holdfast.core.messages import Message, Text
from holdfast.core.model_history import HistoryBuilder

_encode = msgspec.json.Encoder().encode
MOST_MESSAGES: Final = 20_000
MOST_BYTES: Final = 64 * 1024 * 1024
_MESSAGE_BYTES: Final = 1_000  # of a message beside its text, about


class _Kept(msgspec.Struct, frozen=True):
    end: int
    window: list[Message]
    history_builder: HistoryBuilder
    bytes: int


class Windows:
    """Bounded by the number of messages and by what they weigh: one message may hold an image of many megabytes."""

    def __init__(self, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_messages
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._messages = 0
        self._bytes = 0

    def keep(self, thread_id: str, end: int, window: list[Message], history_builder: HistoryBuilder) -> None:
        """Those that were not used for longest make room."""
        before = self._kept.get(thread_id)
        weight = _weight(window, before)
        self._forget(thread_id)
        self._kept[thread_id] = _Kept(end, window, history_builder, weight)
        self._messages += len(window)
        self._bytes += weight
        while self._messages > self._most or self._bytes > self._most_bytes:
            self._forget(next(iter(self._kept)))

    def of(self, thread_id: str, end: int) -> list[Message] | None:
        kept = self._kept.get(thread_id)
        if kept is None or kept.end != end:
            return None
        self._kept.move_to_end(thread_id)
        return kept.window

    def history_builder_of(self, thread_id: str) -> HistoryBuilder:
        """It looks itself whether the thread's history goes on where it ended."""
        kept = self._kept.get(thread_id)
        return HistoryBuilder() if kept is None else kept.history_builder

    def _forget(self, thread_id: str) -> None:
        known = self._kept.pop(thread_id, None)
        if known is not None:
            self._messages -= len(known.window)
            self._bytes -= known.bytes


def _weight(window: list[Message], before: _Kept | None) -> int:
    """Estimated bytes. Usually a window has only grown since: then the messages that were weighed are not again."""
    if before is not None and 0 < len(before.window) <= len(window):
        known = len(before.window)
        if window[known - 1] is before.window[-1] and window[0] is before.window[0]:
            return before.bytes + sum(_bytes_of(message) for message in window[known:])
    return sum(_bytes_of(message) for message in window)


def _bytes_of(message: Message) -> int:
    parts = message.parts
    if len(parts) == 1 and isinstance(parts[0], Text):  # as most are, and quickly told
        return _MESSAGE_BYTES + len(parts[0].text)
    return _MESSAGE_BYTES + len(_encode(parts))

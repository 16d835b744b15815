"""Requests that wait for a busy thread go in the order in which they came."""

from __future__ import annotations

import asyncio


class _ThreadQueue:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.length = 0  # whoever holds the lock is counted too


class ThreadQueues:
    def __init__(self) -> None:
        self._queues: dict[str, _ThreadQueue] = {}

    def length(self, thread_id: str) -> int:
        queue = self._queues.get(thread_id)
        return 0 if queue is None else queue.length

    async def enter(self, thread_id: str) -> None:
        """Returns when it is this request's turn, which lasts until `leave`."""
        queue = self._queues.setdefault(thread_id, _ThreadQueue())
        queue.length += 1
        entered = False
        try:
            entered = await queue.lock.acquire()
        finally:
            if not entered:
                self._shorten(thread_id)

    def leave(self, thread_id: str) -> None:
        self._queues[thread_id].lock.release()
        self._shorten(thread_id)

    def _shorten(self, thread_id: str) -> None:
        queue = self._queues[thread_id]
        queue.length -= 1
        if not queue.length:
            del self._queues[thread_id]

"""Connections to one PostgreSQL that stay open, each lent to one transaction at a time.

asyncpg's pool does more than we need, for every transaction: a task, three timers and a proxy (decision 37).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import asyncpg

from holdfast.store.transaction import DatabaseError

_GOODBYE_S: Final = 1.0  # how long a connection that is no longer needed may take to say so


class _Idle(NamedTuple):
    connection: Any
    since: float  # of the event loop's clock


class Pool:
    """At most so many connections. The one that was used last is lent first, so that those beyond need grow old; they
    are closed after `idle_s`, but for one."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], most: int, idle_s: float = 300.0) -> None:
        self._connect = connect
        self.most = most
        self._idle_s = idle_s
        self._places = asyncio.Semaphore(most)  # of connections that are lent
        self._idle: list[_Idle] = []  # the oldest first
        self._open: set[Any] = set()
        self.used = 0
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return len(self._open)

    async def acquire(self, timeout_s: float) -> Any:
        """Raises TimeoutError when none is free in time, and what the driver raises when none can be opened."""
        if self._idle and not self._places.locked():
            await self._places.acquire()  # at once, so it needs no timer
            if (connection := self._take_idle()) is not None:
                self.used += 1
                return connection
            self._places.release()
        async with asyncio.timeout(timeout_s):
            await self._places.acquire()
            connection = None
            try:
                connection = self._take_idle() or await self._open_another()
            finally:
                if connection is None:
                    self._places.release()
        self.used += 1
        return connection

    def release(self, connection: Any) -> None:
        """One that was lost is forgotten, and another is opened when it is needed."""
        self.used -= 1
        if connection.is_closed():
            self._open.discard(connection)
        else:
            loop = asyncio.get_running_loop()
            self._idle.append(_Idle(connection, loop.time()))
            if self._timer is None and len(self._idle) > 1:
                self._timer = loop.call_later(self._idle_s, self._close_idle)
        self._places.release()

    async def close(self) -> None:
        """Returns when every connection has been given back and closed."""
        self._closed = True
        for _ in range(self.most):
            await self._places.acquire()
        self._stop_timer()
        while self._idle:
            self._say_goodbye(self._idle.pop().connection)
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)

    def terminate(self) -> None:
        """Cuts all of them off, those in use included."""
        self._closed = True
        self._stop_timer()
        self._idle.clear()
        for connection in self._open:
            connection.terminate()

    def _take_idle(self) -> Any | None:
        while self._idle:
            connection = self._idle.pop().connection
            if not connection.is_closed():
                return connection
            self._open.discard(connection)  # PostgreSQL, or the network, has ended it meanwhile
        return None

    async def _open_another(self) -> Any:
        if not self._closed:
            connection = await self._connect()
            self._open.add(connection)
            if not self._closed:
                return connection
            connection.terminate()
        raise DatabaseError("The database is closed")

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._idle) > 1 and self._idle[0].since + self._idle_s <= loop.time():
            self._say_goodbye(self._idle.pop(0).connection)
        self._timer = None
        if len(self._idle) > 1:
            self._timer = loop.call_at(self._idle[0].since + self._idle_s, self._close_idle)

    def _say_goodbye(self, connection: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._close_one(connection))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def _close_one(self, connection: Any) -> None:
        try:
            await connection.close(timeout=_GOODBYE_S)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass  # closed all the same, without a word
        finally:
            self._open.discard(connection)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

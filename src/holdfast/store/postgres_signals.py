"""Signals by LISTEN and NOTIFY, on one connection beside the pools.

NOTIFY takes a lock of the whole PostgreSQL instance until its transaction has committed, so it is never part of an
acceptance or a checkpoint (decision 27). A signal is sent at once if none was sent lately; what comes within the next
few milliseconds is sent together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import asyncpg

from holdfast.store.postgres import DRIVER_ERRORS

CHANNEL: Final = "holdfast"
GATHER_S: Final = 0.005
CHECK_S: Final = 2.0  # a connection that was cut without a word is noticed by asking
ANSWER_S: Final = 2.0
_MOST_BYTES: Final = 7_900  # of a notification; PostgreSQL refuses 8,000
_MOST_WAITING: Final = 10_000  # while PostgreSQL is away; more are lost
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_driver: Any = asyncpg
_log = logging.getLogger("holdfast.store")


class PostgresSignals:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiting: dict[str, None] = {}  # a set that keeps the order
        self._due = asyncio.Event()
        self._send_after = 0.0  # by the event loop's clock
        self.connected = False

    def send(self, signal: str) -> None:
        if len(self._waiting) < _MOST_WAITING:
            self._waiting[signal] = None
        self._due.set()

    async def run_forever(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._serve(heard, missed)
            except DRIVER_ERRORS as error:
                if self.connected:
                    pause_s = _FIRST_PAUSE_S
                    _log.warning("signals between servers are lost until PostgreSQL is back: %s", _reason(error))
                self.connected = False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _serve(self, heard: Callable[[str], None], missed: Callable[[], None]) -> None:
        async with asyncio.timeout(ANSWER_S):
            connection = await _driver.connect(self._dsn, server_settings={"application_name": "holdfast signals"})
        try:
            own_pid = connection.get_server_pid()

            def on_notification(_: Any, pid: int, __: str, payload: str) -> None:
                if pid != own_pid:
                    for signal in payload.split("\n"):
                        heard(signal)

            lost = asyncio.Event()

            def on_termination(_: Any) -> None:
                lost.set()
                self._due.set()

            connection.add_termination_listener(on_termination)
            async with asyncio.timeout(ANSWER_S):
                await connection.add_listener(CHANNEL, on_notification)
            self.connected = True
            missed()
            while not lost.is_set():
                await self._send_some(connection)
            raise ConnectionError("the connection was closed")
        except AttributeError as error:  # what asyncpg may say of a connection that it has let go of
            if not connection.is_closed():
                raise
            raise ConnectionError("the connection was lost") from error
        finally:
            connection.terminate()

    async def _send_some(self, connection: Any) -> None:
        """What is to be sent, or, when there is nothing for a while, a question."""
        try:
            async with asyncio.timeout(CHECK_S):
                await self._due.wait()
        except TimeoutError:
            async with asyncio.timeout(ANSWER_S):
                await connection.execute("SELECT 1")
            return
        now = asyncio.get_running_loop().time
        if (early_s := self._send_after - now()) > 0:
            await asyncio.sleep(early_s)
        self._send_after = now() + GATHER_S
        self._due.clear()
        signals, self._waiting = self._waiting, {}
        async with asyncio.timeout(ANSWER_S):
            await connection.execute(
                "SELECT pg_notify($1, payload) FROM unnest($2::text[]) payload", CHANNEL, list(_payloads(signals))
            )


def _payloads(signals: Iterable[str]) -> Iterator[str]:
    """As few as they fit into."""
    gathered: list[str] = []
    length = 0
    for signal in signals:
        if gathered and length + len(signal) + 1 > _MOST_BYTES:
            yield "\n".join(gathered)
            gathered, length = [], 0
        gathered.append(signal)
        length += len(signal) + 1
    if gathered:
        yield "\n".join(gathered)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__

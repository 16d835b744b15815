"""What changed, told to whoever reads the feed: here, and in the other processes (decision 32).

A change is told after its commit, beside the transaction. It is a hint: a reader reads again what it is about. Whenever
changes may have been lost, a reader is told to read everything again: it was too slow, signals between processes were
lost, or a look at the database finds a run of which nobody told.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from holdfast.core.changes import Change
from holdfast.engine.bus import Bus
from holdfast.errors import ShuttingDown
from holdfast.store import runs
from holdfast.store.transaction import Database, DatabaseError

MOST_UNREAD: Final = 1_000  # changes that a reader has not taken; then it has to read everything again
LOOK_EVERY_S: Final = 3.0
LOOK_BACK_US: Final = 15_000_000  # clocks of servers differ, and a commit comes after the time that is stored
READERS_KNOWN_S: Final = 20.0  # for how long a process believes that another one has readers
_READERS, _RESYNC = "readers", "resync"  # what feeds tell each other besides changes
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Change).decode
_log = logging.getLogger(__name__)


class Hello(msgspec.Struct, frozen=True):
    """From now on changes are told. What was there before, a reader reads now."""


class Resync(msgspec.Struct, frozen=True):
    """Changes may have been lost: read everything again."""


News = Hello | Change | Resync


class Feed:
    """What changed, told to whoever reads the feed: here, and in the other processes (decision 32).

    A change is told after its commit, beside the transaction. A reader reads again what it is about. Whenever changes
    may have been lost, a reader is told to read everything again: it was too slow, signals between processes were lost,
    or a look at the database finds a run of which nobody told.
    """

    def __init__(self, database: Database, bus: Bus, look_every_s: float = LOOK_EVERY_S) -> None:
        self._database = database
        self._bus = bus
        self._look_every_s = look_every_s
        self._readers: set[FeedReader] = set()
        self._read = asyncio.Event()  # somebody reads here
        self._others_read_until = -math.inf  # by the event loop's clock; until then they are told of changes here
        self._untold_at = -math.inf  # when a change was last committed of which they were not
        self._told: set[tuple[str, str]] = set()  # runs and their status, since the last look
        self._suspects: set[tuple[str, str]] = set()  # found by the last look, and not told of by then
        self._looked = False  # since the first of the readers came
        self._closed = False
        bus.on_feed = self._hear
        bus.on_missed = self._miss

    def committed(self, changes: Sequence[Change]) -> None:
        """Called after each commit that changed something."""
        now = asyncio.get_running_loop().time()
        others_read = now < self._others_read_until
        if not others_read:
            self._untold_at = now
            if not self._readers:
                return
        for change in _once_each(changes):
            self._tell(change)
            if others_read:
                self._bus.tell_feeds(_encode(change).decode())

    @contextmanager
    def reading(self) -> Generator[FeedReader]:
        """Whatever is committed after its hello is told, or that something was lost."""
        if self._closed:
            raise ShuttingDown("The server is shutting down. Connect again in a moment.")
        reader = FeedReader()
        self._readers.add(reader)
        self._read.set()
        if self._looked or self._is_alone:
            reader.greet()
        try:
            yield reader
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._read.clear()
                self._looked = False

    @property
    def _is_alone(self) -> bool:
        """No other process shares the database, so no change can be missed."""
        return self._bus.connected is None

    @property
    def readers(self) -> int:
        return len(self._readers)

    def close(self) -> None:
        """The server stops: every reader is let go, and may connect to another."""
        self._closed = True
        for reader in self._readers:
            reader.close()

    async def run_forever(self) -> None:
        """While somebody reads here: keeps other processes telling of their runs, and looks for what nobody told."""
        while not self._is_alone:
            await self._read.wait()
            self._bus.tell_feeds(_READERS)
            try:
                await self.look()
            except DatabaseError as error:
                _log.warning("the feed could not look for lost changes: %s", error)
            await asyncio.sleep(self._look_every_s)

    async def look(self) -> None:
        """A run that is stored with a status of which nobody had told by the last look, and nobody has since, was
        missed. What the first look finds was there before the readers are greeted."""
        told, self._told = self._told, set()
        since_us = await self._database.now_us() - LOOK_BACK_US
        found = await self._database.read(lambda tx: runs.changed_since(tx, since_us))
        unknown = found - told - self._told if self._looked else set[tuple[str, str]]()
        if missed := unknown & self._suspects:
            _log.info("the feed missed changes of %d runs", len(missed))
            self._tell_all(Resync())
            unknown.clear()
        self._suspects = unknown
        self._told |= found - unknown
        self._looked = bool(self._readers)
        for reader in self._readers:
            reader.greet()

    def _tell(self, change: Change) -> None:
        if self._readers:
            if change.type == "run" and not self._is_alone:
                self._told.add((change.id, change.status))
            self._tell_all(change)

    def _tell_all(self, news: News) -> None:
        for reader in self._readers:
            reader.put(news)

    def _hear(self, text: str) -> None:
        if text == _READERS:
            now = asyncio.get_running_loop().time()
            if now >= self._others_read_until and now < self._untold_at + READERS_KNOWN_S:
                self._bus.tell_feeds(_RESYNC)  # a reader may have come before that change
            self._others_read_until = now + READERS_KNOWN_S
        elif text == _RESYNC:
            self._tell_all(Resync())
        else:
            self._tell(_decode(text))

    def _miss(self) -> None:
        """The connection for signals was made, perhaps anew: neither what was sent nor what was to be heard is sure to
        have arrived."""
        self._tell_all(Resync())
        self._bus.tell_feeds(_RESYNC)
        if self._readers:
            self._bus.tell_feeds(_READERS)


class FeedReader:
    def __init__(self, most_unread: int = MOST_UNREAD) -> None:
        self._most = most_unread
        self._waiting: deque[News] = deque()
        self._woken = asyncio.Event()
        self._greeted = False
        self._closed = False

    def greet(self) -> None:
        if not self._greeted:
            self._greeted = True
            self.put(Hello())

    def put(self, news: News) -> None:
        if not self._greeted:
            return  # it has read nothing yet
        if isinstance(news, Resync) or len(self._waiting) >= self._most:
            self._waiting = deque(each for each in self._waiting if isinstance(each, Hello))
            self._waiting.append(Resync())
        else:
            self._waiting.append(news)
        self._woken.set()

    def close(self) -> None:
        self._closed = True
        self._woken.set()

    async def next(self, at_most_s: float) -> Sequence[News] | None:
        """What has come in, empty if nothing has for so long. None: there will be no more."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._woken.wait()
        except TimeoutError:
            return ()
        self._woken.clear()
        if self._closed:
            self._woken.set()
            return None
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken


def _once_each(changes: Sequence[Change]) -> list[Change]:
    """An agent that was created is not told of as changed too."""
    kept: list[Change] = []
    known: set[str] = set()
    for change in changes:
        if change.type == "agent" and change.status == "changed" and change.id in known:
            continue
        if change.type == "agent":
            known.add(change.id)
        kept.append(change)
    return kept

"""The frames of a run: live in memory while it runs here, in the database for background runs.

A listener reads from any number on and is woken for more; it cannot slow the run down. Frames of a background run are
stored in batches by one flusher, and at the latest with the checkpoint they belong to. Only the newest of those that
are stored stay in memory; whoever is behind them reads the others from the database.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Final

import msgspec

from holdfast.core.frames import (
    TERMINAL,
    AbandonedFrame,
    CallFrame,
    Frame,
    HiddenReasoningFrame,
    ReasoningFrame,
    TextFrame,
)
from holdfast.errors import HandedOver
from holdfast.store import frames as frame_rows
from holdfast.store import leases, messages
from holdfast.store.frames import FrameBatch
from holdfast.store.transaction import Database, Transaction

Numbered = tuple[int, Frame]
ReadStored = Callable[[int], Awaitable[list[Numbered]]]
# Of stored frames that a run keeps in memory, as they are encoded. In memory they take about three times as much.
MOST_BYTES: Final = 4 * 1024 * 1024
ROWS_AT_ONCE: Final = 20  # of stored batches that a listener who is behind reads
# Two hundred packets a second look as smooth as any number; a model that is slower sends each token at once.
PACKET_GAP_S = 0.005
_FRAGMENTS = (TextFrame, ReasoningFrame, HiddenReasoningFrame, CallFrame)
_FRAMES = msgspec.msgpack.Decoder(list[Frame])


class RunStream:
    """The frames of one run that one owner shows, from `first + 1` on. Its numbers are dense.

    Those up to `base` are in the database only. `read_stored` gives some of them after a number, in order; without it,
    nothing is ever dropped from memory.
    """

    def __init__(
        self,
        run_id: str,
        first: int = 0,
        lease: int = 1,
        read_stored: ReadStored | None = None,
        on_stored: Callable[[str], None] | None = None,
    ) -> None:
        self.run_id = run_id
        self.lease = lease  # under which its frames may be stored
        self.frames: list[Frame] = []
        self.first = first
        self.base = first
        self.stored = first  # the number of the last frame that is in the database
        self.finished = False
        self.shown_until_s = math.inf  # by the monotonic clock; then its owner may have lost the lease
        self._last_shown: int | None = None  # of the frames, when the others are not to be shown for now
        self.storing = asyncio.Lock()  # the flusher and the checkpoint must not store the same frames
        self._read_stored = read_stored
        self._on_stored = on_stored  # called with the run's id: readers in other processes can go on
        self._batches: deque[tuple[int, int]] = deque()  # how many frames and bytes each has that is stored and kept
        self._bytes = 0
        self._dropped_ids: dict[str, None] = {}  # messages of which fragments were dropped
        self._waiters: list[asyncio.Future[None]] = []
        self._resting: set[asyncio.Future[None]] = set()

    @property
    def last(self) -> int:
        return self.base + len(self.frames)

    @property
    def published(self) -> int:
        return self.base + len(self.frames) - self.first

    def publish(self, *frames: Frame) -> None:
        """A process that was stopped for longer than its lease goes on where it was. Another drives the run by then, so
        nobody is shown what this one adds until it knows that the lease is still its own."""
        if self._last_shown is None and time.monotonic() >= self.shown_until_s:
            self._last_shown = self.last
        self.frames.extend(frames)
        self._wake()

    def lease_held(self, until_s: float | None = None) -> None:
        """The database has just said so; it stays so until then, if a time is given."""
        if until_s is not None:
            self.shown_until_s = until_s
        if self._last_shown is not None:
            self._last_shown = None
            self._wake()

    def finish(self) -> None:
        self.finished = True
        self._wake()
        for rest in self._resting:
            _resolve(rest)

    @property
    def has_ended(self) -> bool:
        return bool(self.frames) and isinstance(self.frames[-1], TERMINAL)

    async def follow_to_end(self, gap_s: float = 0.0) -> AsyncGenerator[Sequence[Numbered]]:
        """As `follow`, of everything. Raises HandedOver when the run is let go before it has ended."""
        async with aclosing(self.follow(gap_s=gap_s)) as batches:
            async for batch in batches:
                yield batch
        if not self.has_ended:
            raise HandedOver(f"run {self.run_id} was let go")

    async def follow(self, after: int = 0, gap_s: float = 0.0) -> AsyncGenerator[Sequence[Numbered]]:
        """Batches of frames numbered above `after`, until the run's last one, or until it is let go.

        No two batches come within `gap_s` of each other unless the run ends, so that a model that is faster than any
        reader does not cost a packet for every token.
        """
        position, frames = max(after, self.first), self.frames
        now, next_at = asyncio.get_running_loop().time, 0.0
        while True:
            if gap_s and self._visible > position and not self.finished:
                if (early_s := next_at - now()) > 0:
                    await self._rest(early_s)
                next_at = now() + gap_s
            if position < self.base:
                batch = await self._missed(position)
                position = batch[-1][0]
                if shown := without_abandoned(batch):
                    yield shown
                continue
            last = self._visible
            newest = last - self.base - 1
            if last == position + 1 and not isinstance(frames[newest], AbandonedFrame):  # as with a token at a time
                position = last
                yield ((last, frames[newest]),)
            elif last > position:
                batch = list(enumerate(frames[position - self.base : newest + 1], position + 1))
                position = last
                if shown := without_abandoned(batch):
                    yield shown
            elif self.finished:
                return
            else:
                await self.changed()

    @property
    def _visible(self) -> int:
        """The number of the last frame that listeners are shown."""
        return self.base + len(self.frames) if self._last_shown is None else self._last_shown

    async def _missed(self, after: int) -> list[Numbered]:
        """Some frames that are in memory no more."""
        stored = await self._read_stored(after) if self._read_stored else []
        if not stored:
            raise HandedOver(f"the frames of run {self.run_id} were removed before they were read")
        return stored

    async def changed(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _rest(self, seconds: float) -> None:
        """Ends early with the run."""
        loop = asyncio.get_running_loop()
        rest = loop.create_future()
        self._resting.add(rest)
        timer = loop.call_later(seconds, _resolve, rest)
        try:
            await rest
        finally:
            timer.cancel()
            self._resting.discard(rest)

    def fragment_ids(self) -> dict[str, None]:
        """The messages of which fragments were shown here, in order."""
        return self._dropped_ids | _fragment_ids(self.frames)

    def unstored(self) -> Sequence[Frame]:
        return self.frames[self.stored - self.base :]

    def mark_stored(self, count: int) -> None:
        """The first so many of those that were not, so the lease is held. If the kept ones weigh too much now, the
        oldest are dropped."""
        start = self.stored - self.base
        self.stored += count
        if count:
            self.lease_held()
        if count and self._on_stored is not None:
            self._on_stored(self.run_id)
        if self._read_stored is None or not count:
            return
        weight = len(encode(self.frames[start : start + count]))
        self._batches.append((count, weight))
        self._bytes += weight
        while self._bytes > MOST_BYTES and len(self._batches) > 1:  # the newest stays: it may hold the run's end
            self._drop(*self._batches.popleft())

    def _drop(self, count: int, weight: int) -> None:
        self._dropped_ids |= _fragment_ids(self.frames[:count])
        del self.frames[:count]
        self.base += count
        self._bytes -= weight

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _resolve(waiter)


def _fragment_ids(frames: Sequence[Frame]) -> dict[str, None]:
    return {frame.message_id: None for frame in frames if isinstance(frame, _FRAGMENTS)}


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Streams:
    """All runs whose frames this process is producing."""

    def __init__(self, database: Database, on_stored: Callable[[str], None] | None = None) -> None:
        self._database = database
        self._on_stored = on_stored
        self._live: dict[str, RunStream] = {}
        # Of older leases that this process has had, and not ended yet. Of a run that it took over from itself, because
        # its lease ran out before it was driven, either may be opened first.
        self._outdated: set[RunStream] = set()
        self._published_before = 0  # by streams that have ended

    def open(self, run_id: str, first: int = 0, lease: int = 1, *, background: bool = False) -> RunStream:
        read_stored = partial(self._read, run_id, rows=ROWS_AT_ONCE) if background else None
        on_stored = self._on_stored if background else None
        stream = RunStream(run_id, first, lease, read_stored, on_stored)
        newest = self._live.get(run_id)
        if newest is None or newest.lease <= lease:
            self._live[run_id] = stream
        if newest is not None:
            self._outdated.add(stream if newest.lease > lease else newest)
        return stream

    @property
    def published(self) -> int:
        """How many frames, ever. Counted when it is asked, so that a frame costs nothing."""
        return self._published_before + sum(stream.published for stream in (*self._live.values(), *self._outdated))

    def live(self, run_id: str) -> RunStream | None:
        return self._live.get(run_id)

    def close(self, run_id: str) -> None:
        if (stream := self._live.get(run_id)) is not None:
            self.end(stream)

    def end(self, stream: RunStream) -> None:
        """Only this one: a newer owner in this process may have opened another for the same run."""
        if self._live.get(stream.run_id) is stream:
            del self._live[stream.run_id]
            self._published_before += stream.published
        elif stream in self._outdated:
            self._outdated.discard(stream)
            self._published_before += stream.published
        stream.finish()

    async def flush(self, run_ids: Sequence[str]) -> None:
        """Stores what has piled up for these runs since their last checkpoint, in one transaction.

        A run that is being checkpointed stores its own: one whose checkpoint is stuck must not keep the others waiting.
        """
        streams = [stream for run_id in run_ids if (stream := self._live.get(run_id))]
        free = [stream for stream in streams if stream.unstored() and not stream.storing.locked()]
        await self._store(free, wait=False)

    async def flush_last(self, run_id: str) -> None:
        """Stores what is left of a run that is driven here no more."""
        if (stream := self._live.get(run_id)) is not None:
            await self._store([stream], wait=True)

    async def _store(self, streams: Sequence[RunStream], *, wait: bool) -> None:
        async with AsyncExitStack() as locks:
            for stream in streams:
                await locks.enter_async_context(stream.storing)
            # A checkpoint may have stored them while we waited for its lock.
            batches = [(stream, batch) for stream in streams if (batch := list(stream.unstored()))]
            if not batches:
                return
            stored = await self._database.write(lambda tx: _store_batches(tx, batches, wait=wait))
            for stream, batch in batches:
                stream.mark_stored(len(batch) if stream.run_id in stored else 0)

    async def replay(self, run_id: str, after: int) -> list[Numbered]:
        """Stored frames above `after`, without the fragments of attempts that were given up."""
        numbered = await self._read(run_id, after)
        stream = self._live.get(run_id)
        marks = [frame for frame in stream.unstored() if isinstance(frame, AbandonedFrame)] if stream else []
        return without_abandoned(numbered, marks)

    async def unstored_replies(self, run_id: str) -> tuple[str, ...]:
        """Messages of which stored frames show fragments, and that were never stored themselves."""
        shown = _fragment_ids([frame for _, frame in await self.replay(run_id, 0)])
        known = await self._database.read(lambda tx: messages.find_many(tx, list(shown)))
        stored = {row.id for row in known}
        return tuple(message_id for message_id in shown if message_id not in stored)

    async def _read(self, run_id: str, after: int, rows: int | None = None) -> list[Numbered]:
        """Frames that are stored, of so many batches; None: of all."""
        stored = await self._database.read(lambda tx: frame_rows.load(tx, run_id, after, rows))
        numbered = (one for first, _, blob in stored for one in enumerate(_FRAMES.decode(blob), first))
        return [(number, frame) for number, frame in numbered if number > after]

    async def follow(self, run_id: str, after: int = 0, gap_s: float = 0.0) -> AsyncGenerator[Sequence[Numbered]]:
        """Stored frames, then live ones. Ends with the run's last frame, or when nobody is producing any more."""
        position = after
        stream = self._live.get(run_id)
        if stream is None or position < stream.base:
            stored = await self.replay(run_id, position)
            if stored:
                yield stored
                position = stored[-1][0]
                if isinstance(stored[-1][1], TERMINAL):
                    return
        stream = self._live.get(run_id) or stream  # it may have ended while we read: then it knows how
        if stream is not None:
            async for batch in stream.follow(position, gap_s):
                yield batch


def encode(frames: Sequence[Frame]) -> bytes:
    return msgspec.msgpack.encode(frames)


async def store_frames(tx: Transaction, stream: RunStream, frames: Sequence[Frame]) -> None:
    """Writes everything not yet stored plus `frames`, as one batch. The caller marks it stored after the commit."""
    batch = [*stream.unstored(), *frames]
    if batch:
        await frame_rows.append_many(tx, [_batch_of(stream, batch)])


async def _store_batches(
    tx: Transaction, batches: Sequence[tuple[RunStream, Sequence[Frame]]], *, wait: bool
) -> set[str]:
    """The runs whose frames were stored. Not those of one that another worker has taken over, nor of one whose row is
    being changed: they are stored the next time. Two statements for any number of runs."""
    held = await leases.still_held(tx, {stream.run_id: stream.lease for stream, _ in batches}, wait=wait)
    await frame_rows.append_many(tx, [_batch_of(stream, batch) for stream, batch in batches if stream.run_id in held])
    return held


def _batch_of(stream: RunStream, frames: Sequence[Frame]) -> FrameBatch:
    return FrameBatch(stream.run_id, stream.stored + 1, stream.stored + len(frames), encode(frames))


def without_abandoned(frames: Sequence[Numbered], marks: Sequence[AbandonedFrame] = ()) -> list[Numbered]:
    """`marks`: of attempts given up since these frames were stored."""
    given_up = {frame.message_id for _, frame in frames if isinstance(frame, AbandonedFrame)}
    given_up.update(mark.message_id for mark in marks)
    if not given_up:
        return list(frames)
    return [(seq, frame) for seq, frame in frames if not _belongs_to(frame, given_up)]


def _belongs_to(frame: Frame, message_ids: set[str]) -> bool:
    return isinstance(frame, (*_FRAGMENTS, AbandonedFrame)) and frame.message_id in message_ids

"""Reads a run from outside: waits for its end, and follows its frames, whichever process drives it.

Frames come from memory if the run is driven here, from the database if it runs in the background, and are made from the
stored messages if it ran in the foreground and has ended. A stream always ends with its terminal frames, or raises
HandedOver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from holdfast.core.frames import TERMINAL, Frame, closing_frames, message_frames
from holdfast.core.heartbeat_loop import AGENT_TYPES
from holdfast.core.records import Run
from holdfast.core.spec import speaking_in
from holdfast.engine import retention
from holdfast.engine.streams import PACKET_GAP_S, Numbered, Streams
from holdfast.engine.worker import Worker
from holdfast.errors import Gone, HandedOver, Invalid
from holdfast.store import agents, frames, messages, runs
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction


class RunReader:
    def __init__(self, database: Database, worker: Worker, streams: Streams) -> None:
        self._database = database
        self._worker = worker
        self._streams = streams

    async def until_stopped(self, run_id: str) -> Run:
        """The run once it has stopped, or as it is when this server stops first."""
        with self._worker.bus.watch(run_id) as watch:
            while True:
                run = await self._database.read(lambda tx: runs.get(tx, run_id))
                if not run.is_active or (self._worker.draining and not self._worker.owns(run_id)):
                    return run
                await self._worker.until_changed(watch)

    async def frames_of(self, run_id: str) -> list[Frame]:
        """Everything that the run has shown, once it has stopped."""
        run = await self.until_stopped(run_id)
        return await self._database.read(lambda tx: _frames_from_messages(tx, run))

    async def follow(self, run: Run) -> AsyncGenerator[Sequence[Numbered]]:
        """The frames of a run from its beginning."""
        if run.background:
            async for batch in self.resume(run, 0):
                yield batch
            return
        live = self._streams.live(run.id)
        if live is not None:
            async for batch in live.follow_to_end(PACKET_GAP_S):
                yield batch
            return
        stopped = await self.until_stopped(run.id)
        if stored := await self._database.read(lambda tx: _frames_from_messages(tx, stopped)):
            yield list(enumerate(stored, 1))
        if stopped.is_active:
            raise HandedOver(f"the server stops before run {run.id} does")

    async def resume(self, run: Run, after: int) -> AsyncGenerator[Sequence[Numbered]]:
        """Frames of a background run numbered above `after`, to its last one. Those of a run that another process
        drives, or will take over, are read from the database as they arrive there."""
        position = after
        with self._worker.bus.watch(run.id) as watch:
            while True:
                ended = not (await self._database.read(lambda tx: runs.get(tx, run.id))).is_active
                async for batch in self._streams.follow(run.id, position, PACKET_GAP_S):
                    yield batch
                    position = batch[-1][0]
                    if isinstance(batch[-1][1], TERMINAL):
                        return
                if ended:  # asked before the frames were read, so these were all
                    break
                if self._worker.draining:
                    raise HandedOver(f"the server stops before run {run.id} does")
                await self._worker.until_changed(watch, self._worker.bus.net_s)
        closing = await self._missing_end(run.id)
        if remaining := [numbered for numbered in closing if numbered[0] > position]:
            yield remaining

    async def _missing_end(self, run_id: str) -> list[Numbered]:
        """A run that was given up after a crash has an end on its row, and none in its log."""
        last, is_whole = await self._last_stored(run_id)
        if is_whole:
            return []
        run = await self._database.read(lambda tx: runs.get(tx, run_id))
        return list(enumerate(await self._database.read(lambda tx: _closing_frames(tx, run)), last + 1))

    async def require_stored(self, run: Run, now_us: int) -> None:
        """For a server that keeps streams up to a size: the end of a stream is the first to go. One that a crash left
        without an end cannot be told from it later."""
        if run.completed_us is None or now_us - run.completed_us <= retention.SETTLED_S * 1_000_000:
            return
        if not (await self._last_stored(run.id))[1]:
            raise Gone(
                f"EXPIRED: The stream of run {run.id} had to make room and is gone. Its messages are not: "
                f"GET /v1/runs/{run.id}/messages."
            )

    async def _last_stored(self, run_id: str) -> tuple[int, bool]:
        """The number of the last frame, and whether it is the end of the stream."""
        last = await self._database.read(lambda tx: frames.last_seq(tx, run_id))
        newest = await self._streams.replay(run_id, last - 1)
        return last, bool(newest) and isinstance(newest[-1][1], TERMINAL)


def require_replayable(run: Run, now_us: int, retention_s: float) -> None:
    if not run.background:
        raise Invalid("INVALID_ARGUMENT: Run was not created in background mode, so it cannot be retrieved.")
    if run.completed_us is not None and now_us - run.completed_us > retention_s * 1_000_000:
        raise Gone(
            f"EXPIRED: The stream of run {run.id} was kept for {retention_s / 3600:g} hours after its end and is gone. "
            f"Its messages are not: GET /v1/runs/{run.id}/messages."
        )


async def _frames_from_messages(tx: Transaction, run: Run) -> list[Frame]:
    rows = await messages.list_of_run(tx, run.id, Page(limit=10_000, order="asc"))
    agent = await agents.get(tx, run.agent_id)
    speaking = speaking_in(run.request_config) if agent.agent_type in AGENT_TYPES else None
    shown = [frame for row in rows if row.role not in ("user", "system") for frame in message_frames(row, speaking)]
    return [*shown, *await _closing_frames(tx, run)]


async def _closing_frames(tx: Transaction, run: Run) -> list[Frame]:
    if run.stop_reason is None:
        return []
    usage, step_count = await runs.usage(tx, run.id)
    return closing_frames(run.stop_reason, run.metadata.get("error"), usage, step_count)

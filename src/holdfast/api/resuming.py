"""Reading a background run's stream again: what is stored of it, then what is still to come, always to a proper end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from holdfast.actions.assembled import Holdfast
from holdfast.core.frames import TERMINAL, closing_frames
from holdfast.core.records import Run
from holdfast.engine.bus import NET_S
from holdfast.engine.streams import PACKET_GAP_S, Numbered
from holdfast.errors import Gone, HandedOver, Invalid
from holdfast.store import frames, runs


def require_replayable(run: Run, now_us: int, retention_s: float) -> None:
    if not run.background:
        raise Invalid("INVALID_ARGUMENT: Run was not created in background mode, so it cannot be retrieved.")
    if run.completed_us is not None and now_us - run.completed_us > retention_s * 1_000_000:
        raise Gone(
            f"EXPIRED: The stream of run {run.id} was kept for {retention_s / 3600:g} hours after its end and is gone. "
            f"Its messages are not: GET /v1/runs/{run.id}/messages."
        )


async def resumed(deps: Holdfast, run: Run, after: int) -> AsyncGenerator[Sequence[Numbered]]:
    """Frames numbered above `after`, to the run's last one, whoever drives it. Those of a run that another process
    drives, or will take over, are read from the database as they arrive there."""
    position = after
    with deps.worker.bus.watch(run.id) as watch:
        while True:
            ended = not (await deps.database.read(lambda tx: runs.get(tx, run.id))).is_active
            async for batch in deps.streams.follow(run.id, position, PACKET_GAP_S):
                yield batch
                position = batch[-1][0]
                if isinstance(batch[-1][1], TERMINAL):
                    return
            if ended:  # asked before the frames were read, so these were all
                break
            if deps.worker.draining:
                raise HandedOver(f"the server stops before run {run.id} does")
            await deps.worker.until_changed(watch, NET_S)
    closing = await _missing_end(deps, run.id)
    if remaining := [numbered for numbered in closing if numbered[0] > position]:
        yield remaining


async def _missing_end(deps: Holdfast, run_id: str) -> list[Numbered]:
    """A run that was given up after a crash has an end on its row, and none in its log."""
    run = await deps.database.read(lambda tx: runs.get(tx, run_id))
    last = await deps.database.read(lambda tx: frames.last_seq(tx, run_id))
    newest = await deps.streams.replay(run_id, last - 1)
    if run.stop_reason is None or (newest and isinstance(newest[-1][1], TERMINAL)):
        return []
    usage, step_count = await deps.database.read(lambda tx: runs.usage(tx, run_id))
    end = closing_frames(run.stop_reason, run.metadata.get("error"), usage, step_count)
    return list(enumerate(end, last + 1))

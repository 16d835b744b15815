"""One checkpoint: all or nothing, only by the holder of the lease, and never over a recorded cancel."""

from __future__ import annotations

import pytest

from holdfast.core.failures import Failure, classify
from holdfast.core.frames import ErrorFrame, StopFrame, UsageFrame
from holdfast.core.run import Phase
from holdfast.core.usage import Usage
from holdfast.engine.checkpoint import CancelPending, checkpoint, frames_at_stop
from holdfast.engine.run_loading import load_run
from holdfast.engine.run_session import Session
from holdfast.errors import LeaseLost
from holdfast.store import leases, runs

from ..core.machine import BROKEN, PHASES, after, judged, replied, returned
from ..invariants import assert_invariants, take_snapshot
from ..scenario import Node, World


@pytest.fixture
async def session(world: World, node: Node) -> Session:
    """Of a run whose worker died while it called the model; claimed by the test."""
    accepted = await node.send("[[stall]]", background=True)
    await node.die()
    claimed = await world.database.write(lambda tx: leases.claim(tx, accepted.run.id, "worker-test", 2**61, 1))
    assert claimed is not None
    loaded = await world.database.read(lambda tx: load_run(tx, claimed))
    stream = node.streams.open(claimed.id, loaded.last_seq, claimed.lease, background=True)
    return Session(loaded, stream, world.clock)


def test_a_run_that_goes_on_has_no_last_frames() -> None:
    for phase in (Phase.THINKING, Phase.ACTING, Phase.PARKING):
        assert frames_at_stop(PHASES[phase]) == []


def test_a_run_that_has_ended_closes_with_stop_and_usage() -> None:
    assert frames_at_stop(after(replied(tokens=10))) == [
        StopFrame("end_turn"),
        UsageFrame(Usage(9, 1), 1, 10),
    ]


def test_a_parked_run_has_stopped_as_far_as_clients_are_concerned() -> None:
    stop, last = frames_at_stop(PHASES[Phase.PARKED])
    assert stop == StopFrame("requires_approval")
    assert isinstance(last, UsageFrame)


def test_a_failed_run_closes_with_stop_and_its_error() -> None:
    state = after(BROKEN)
    assert state.error is not None
    assert frames_at_stop(state) == [StopFrame("error"), ErrorFrame(state.error)]


def test_a_run_that_failed_with_an_answer_closes_like_one_that_succeeded() -> None:
    cut_short = after(replied(finish="length"))
    invalid = after(replied(judged("note", "fatal")), returned("note"))
    for state, reason in ((cut_short, "max_tokens_exceeded"), (invalid, "invalid_tool_call")):
        stop, last = frames_at_stop(state)
        assert isinstance(stop, StopFrame)
        assert stop.stop_reason == reason
        assert isinstance(last, UsageFrame)


async def test_a_checkpoint_without_the_lease_writes_nothing_and_says_so(world: World, session: Session) -> None:
    await world.database.write(lambda tx: leases.claim(tx, session.run.id, "worker-other", 2**62, 1))
    before = await take_snapshot(world.database)
    session.failed(_failure())
    with pytest.raises(LeaseLost):
        await checkpoint(world.database, session)
    assert await take_snapshot(world.database) == before
    assert session.draft.has_facts, "a draft that was not written is still a draft"


async def test_a_checkpoint_does_not_overtake_a_recorded_cancel_unless_it_carries_it_out(
    world: World, session: Session
) -> None:
    await world.database.write(lambda tx: runs.ask_cancel(tx, session.run.id, 5))
    before = await take_snapshot(world.database)
    session.failed(_failure())
    with pytest.raises(CancelPending):
        await checkpoint(world.database, session)
    assert await take_snapshot(world.database) == before
    session.cancel(None)
    await checkpoint(world.database, session)
    run = await world.run(session.run.id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    await assert_invariants(world.database, idle=True)


async def test_nothing_of_a_checkpoint_is_stored_when_a_part_of_it_cannot_be(world: World, session: Session) -> None:
    session.failed(_failure())
    session.journalled -= 1  # as if somebody else had driven the run: its next event has been written already
    before = await take_snapshot(world.database)
    with pytest.raises(Exception, match="The database refused a row"):
        await checkpoint(world.database, session)
    assert await take_snapshot(world.database) == before


async def test_the_last_frames_reach_listeners_with_the_commit_not_before(world: World, session: Session) -> None:
    session.failed(_failure())
    assert session.stream.frames == []
    await checkpoint(world.database, session)
    assert isinstance(session.stream.frames[-1], ErrorFrame)
    assert session.stream.unstored() == []
    await assert_invariants(world.database, idle=True)


def _failure() -> Failure:
    return classify(RuntimeError("it broke"), "run-1")

"""Cancel at every await of the driver: one end, one story in store, window and stream, and the next message works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.core.frames import ReasoningFrame, RetryFrame, TextFrame
from holdfast.core.records import Run
from holdfast.engine.streams import Numbered, without_abandoned
from holdfast.errors import RequestError
from holdfast.store import holds, runs
from holdfast.store.transaction import Transaction
from tests.invariants import Snapshot, assert_invariants, stream_violations
from tests.scenario import World

from .cancelling import SeamNode
from .scenes import MODES, SCENES, Mode, Scene, check_counted, lead_up, pending_hold, play, played
from .templates import Template, world_from

ANSWER_S = 60.0

# Where a driver's awaits are most at odds with other connections: tools that return while another's return is being
# written, and a decision that is written while the question is withdrawn. All of them would take four minutes.
ON_POSTGRES = [("three parallel tools", MODES[3]), ("resume with an approval", MODES[2])]


class Trial:
    """One scene, played once, with a cancel at one await of its last turn."""

    def __init__(self, world: World, scene: Scene, mode: Mode) -> None:
        self.world = world
        self.scene = scene
        self.mode = mode
        self.node = SeamNode(world)
        self.stoppable: str | None = None  # the run that could be stopped when the cancel was made
        self.run_id: str | None = None
        self.shown: list[Numbered] = []  # to one who listened all the while
        self.told: list[Numbered] = []  # in all, marks of what was given up included

    async def play(self, at: int, times: int) -> bool:
        """False when the scene was over before its await number `at`."""
        await lead_up(self.node, self.scene)
        hold = await pending_hold(self.world)

        async def strike() -> None:
            await self.world.database.write(_nothing)  # what is on its way to the disk is there now
            self.stoppable = await self._find_stoppable()
            await self.node.strike(times)

        self.node.seams.arm(at, strike)
        try:
            accepted = await play(self.node, self.scene.act, self.mode, hold=hold)
        except RequestError:
            assert hold is not None, "only an answer whose question was withdrawn may be refused"
        else:
            assert accepted.stream is not None
            self.run_id = accepted.run.id
            self.shown = [numbered async for batch in accepted.stream.follow() for numbered in batch]
            await self.node.worker.stopped(accepted.run.id)
            self.told = list(enumerate(accepted.stream.frames, 1))
        self.node.seams.disarm()
        return self.node.seams.struck is not None

    async def check(self) -> None:
        async with asyncio.timeout(ANSWER_S):
            answers = [await asking for asking in self.node.cancelling]
        expected = {self.stoppable: "cancelled"} if self.stoppable else None
        assert answers[:1] == [expected][: len(answers)]
        assert all(answer in (expected, None) for answer in answers[1:])
        snapshot = await assert_invariants(self.world.database, idle=True)
        if self.stoppable is not None:
            assert snapshot.runs[self.stoppable].status == "cancelled"
        if self.run_id is not None:
            await self._check_run(snapshot, snapshot.runs[self.run_id])
            await check_counted(self.world, self.scene, snapshot.runs[self.run_id])
        self._check_that_finished_tools_have_their_returns(snapshot)
        self._check_that_nothing_is_left_running()
        await self._check_that_the_next_message_works()

    async def _check_run(self, snapshot: Snapshot, run: Run) -> None:
        assert (run.status == "cancelled") == (self.stoppable == run.id)
        assert not list(stream_violations(snapshot, run, self.told))
        heard = {frame.message_id for _, frame in self.shown if isinstance(frame, (TextFrame, ReasoningFrame))}
        void = {gone for _, frame in self.shown if isinstance(frame, RetryFrame) for gone in frame.abandoned_ids}
        assert heard - void <= set(snapshot.messages), "what was said to the client is not in the history"
        if run.background:
            assert await self.node.replay(run.id) == without_abandoned(self.told)
        if self.scene.act.text is not None:
            assert any(row.role == "user" for row in snapshot.of_run(run.id))

    def _check_that_finished_tools_have_their_returns(self, snapshot: Snapshot) -> None:
        stored = {part.call_id: part.status for row in snapshot.messages.values() for part in row.returns}
        assert all(stored[call_id] == "success" for call_id in self.node.executor.handed_back)

    def _check_that_nothing_is_left_running(self) -> None:
        assert self.node.catalog.offline.model.open_streams == 0
        counts = self.world.tools
        assert counts.begun == counts.finished + counts.killed
        assert not counts.begun or max(counts.begun.values()) == 1

    async def _check_that_the_next_message_works(self) -> None:
        parked = await self.world.pending()
        if parked is not None:
            answer = await self.node.cancel.of_agent(self.world.agent_id, None)
            assert answer == {parked.run_id: "cancelled"}
        run = await self.node.ask("Hello again [[say:Here I am.]]")
        assert (run.status, run.stop_reason) == ("completed", "end_turn")
        await assert_invariants(self.world.database, idle=True)

    async def _find_stoppable(self) -> str | None:
        thread_id = self.world.agent_id
        active = await self.world.database.read(lambda tx: runs.active_of_thread(tx, thread_id))
        hold = await self.world.database.read(lambda tx: holds.open_of_thread(tx, thread_id))
        return active.id if active else hold.run_id if hold else None


async def _nothing(_: Transaction) -> None:
    pass


async def try_every_await(template: Template, directory: Path, scene: Scene, mode: Mode, times: int = 1) -> int:
    at = 1
    while True:
        async with world_from(template, directory) as world:
            trial = Trial(world, scene, mode)
            struck = await trial.play(at, times)
            try:
                await trial.check()
            except AssertionError as error:
                error.add_note(f"cancelled at await {at} of {scene.name!r}, {mode}: {trial.node.seams.struck}")
                raise
        if not struck:
            return at - 1
        at += 1


@played(MODES, ON_POSTGRES)
async def test_a_cancel_at_any_await_ends_the_run_once_and_leaves_everything_in_order(
    template: Template, tmp_path: Path, scene: Scene, mode: Mode
) -> None:
    assert await try_every_await(template, tmp_path, scene, mode) >= 8


@pytest.mark.parametrize("scene", SCENES[1:5:3], ids=lambda scene: scene.name)
async def test_a_second_cancel_at_any_await_changes_nothing(template: Template, tmp_path: Path, scene: Scene) -> None:
    assert await try_every_await(template, tmp_path, scene, MODES[3], times=2) >= 8

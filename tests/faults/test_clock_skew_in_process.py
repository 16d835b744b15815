"""Two workers over one database in this process, one of them with a wrong clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.engine.clock import SystemClock
from holdfast.engine.worker import WorkerSettings
from tests.invariants import assert_invariants

from .scenes import on_both_databases
from .templates import Template, world_from

SHORT = WorkerSettings(lease_ttl_s=0.5, drain_s=0.0)
STEADY = WorkerSettings(lease_ttl_s=20.0, drain_s=0.0)


class SkewedClock(SystemClock):
    def __init__(self, ahead_s: int) -> None:
        self._ahead_us = ahead_s * 1_000_000

    def now_us(self) -> int:
        return super().now_us() + self._ahead_us


@on_both_databases
@pytest.mark.parametrize("ahead_s", [-30, 30, 3600])
async def test_a_run_accepted_under_a_wrong_clock_is_not_taken_over(
    template: Template, tmp_path: Path, ahead_s: int
) -> None:
    async with world_from(template, tmp_path) as world:
        world.tools.let_go.clear()
        right = world.node(STEADY)
        world.clock = SkewedClock(ahead_s)
        wrong = world.node(STEADY)
        accepted = await wrong.send("[[call:slow {}]] [[say:Done.]]")
        await world.tools.waiting.wait()
        assert await right.worker.recover() == 0
        expires_us = (await world.run(accepted.run.id)).lease_expires_us
        assert expires_us is not None
        assert 0 < expires_us - await world.database.now_us() <= STEADY.lease_ttl_s * 1_000_000
        world.tools.let_go.set()
        await wrong.worker.stopped(accepted.run.id)
        assert (await world.run(accepted.run.id)).lease == 1
        await assert_invariants(world.database, idle=True)


@on_both_databases
@pytest.mark.parametrize("ahead_s", [-30, 30, 3600])
async def test_a_run_of_a_dead_worker_with_a_wrong_clock_is_taken_over_after_its_lease(
    template: Template, tmp_path: Path, ahead_s: int
) -> None:
    async with world_from(template, tmp_path) as world:
        world.tools.let_go.clear()
        right = world.node(SHORT)
        world.clock = SkewedClock(ahead_s)
        wrong = world.node(SHORT)
        accepted = await wrong.send("[[call:slow {}]] [[say:Done.]]")
        await world.tools.waiting.wait()
        await wrong.die()
        world.tools.let_go.set()
        async with asyncio.timeout(20):
            taken = 0
            while not taken:
                await asyncio.sleep(SHORT.lease_ttl_s / 5)  # a lease runs out by time alone
                taken = await right.worker.recover()
        await right.settled()
        assert (await world.run(accepted.run.id)).status == "completed"
        await assert_invariants(world.database, idle=True)


async def test_a_clock_that_is_far_from_the_databases_is_logged_once(
    template: Template, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world_from(template, tmp_path) as world:
        world.clock = SkewedClock(-30)
        node = world.node()
        await node.worker.recover()
        await node.worker.recover()
    assert caplog.text.count("off the database's") == 1

"""The figures for a monitor change when the thing happens that they count."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
from sqlalchemy import update

from holdfast.actions import monitoring
from holdfast.actions.monitoring import Metrics
from holdfast.actions.runs.cancel import Histogram
from holdfast.core.frames import StopFrame
from holdfast.engine.worker import WorkerSettings
from holdfast.store import runs
from holdfast.store.tables import runs as run_rows
from holdfast.store.transaction import Database, DatabaseError, Job, Transaction

from ..exposition import parsed
from ..scenario import Node, World, eventually
from ..wrapping import WrappedDatabase

T = TypeVar("T")


def metrics_of(node: Node, database: Database | None = None) -> Metrics:
    return Metrics(database or node.database, node.worker, node.streams, node.cancel, node.admission, node.rate_limits)


async def shown(node: Node) -> dict[str, float]:
    """Fresh ones. Without the label that all have."""
    found = parsed(await metrics_of(node).text())
    return {
        name.replace('process="0"', "").replace("{,", "{").replace(",}", "}"): value for name, value in found.items()
    }


async def begin_stalled(node: Node) -> str:
    run_id = (await node.send("[[stall]] hello")).run.id
    await eventually(lambda: node.catalog.offline.model.open_streams == 1)
    return run_id


async def change_runs(world: World, **values: int | None) -> None:
    async def job(tx: Transaction) -> None:
        await tx.execute(update(run_rows).values(**values))

    await world.database.write(job)


async def test_a_run_that_ended_is_counted_with_its_reason_its_frames_and_its_transactions(node: Node) -> None:
    before = await shown(node)
    frames = len(await node.told(await node.send("hello")))
    await node.settled()
    after = await shown(node)
    assert before["holdfast_runs_started_total{}"] == 0
    assert after["holdfast_runs_started_total{}"] == 1
    assert after['holdfast_runs_ended_total{status="completed",stop_reason="end_turn"}'] == 1
    assert after["holdfast_frames_total{}"] == frames
    assert after["holdfast_slots_used{}"] == 0
    for kind in ("read", "write"):
        for name in ("transactions", "seconds"):
            counted = f'holdfast_database_{name}_total{{kind="{kind}"}}'
            assert after[counted] > before[counted]


async def test_a_run_that_is_driven_takes_a_slot_and_a_cancel_is_timed(node: Node) -> None:
    run_id = await begin_stalled(node)
    busy = await shown(node)
    assert busy["holdfast_slots_used{}"] == 1
    assert busy['holdfast_runs{state="driven"}'] == 1
    assert busy["holdfast_frames_total{}"] == node.streams.published
    assert await node.cancel.one(run_id) == "cancelled"
    await node.settled()
    after = await shown(node)
    assert after["holdfast_cancel_seconds_count{}"] == 1
    assert after["holdfast_cancel_seconds_sum{}"] > 0
    assert after['holdfast_cancel_seconds_bucket{le="+Inf"}'] == 1
    assert after['holdfast_runs_ended_total{status="cancelled",stop_reason="cancelled"}'] == 1
    assert after['holdfast_runs{state="driven"}'] == 0


async def test_a_run_that_asks_for_approval_has_stopped_and_is_held(node: Node) -> None:
    await node.ask("call the guarded tool")
    after = await shown(node)
    assert after['holdfast_runs_ended_total{status="completed",stop_reason="requires_approval"}'] == 1
    assert after['holdfast_runs{state="held"}'] == 1


async def test_a_lost_lease_is_counted_where_it_was_lost_and_a_takeover_where_it_is_taken(world: World) -> None:
    first, second = world.node(), world.node()
    run_id = await begin_stalled(first)
    await change_runs(world, lease_expires_us=1)
    assert await second.worker.recover() == 1
    await first.worker.renew_leases()
    await first.worker.stopped(run_id)
    await first.settled()
    lost, taken = await shown(first), await shown(second)
    assert (lost["holdfast_lease_losses_total{}"], lost["holdfast_runs_taken_over_total{}"]) == (1, 0)
    assert (taken["holdfast_lease_losses_total{}"], taken["holdfast_runs_taken_over_total{}"]) == (0, 1)
    assert not [name for name in lost if name.startswith("holdfast_runs_ended_total")]
    await second.die()


async def test_a_lease_whose_loss_only_a_checkpoint_notices_is_counted_too(world: World) -> None:
    first, second = world.node(), world.node()
    await first.send("call the slow_lookup tool")
    await world.tools.waiting.wait()
    await change_runs(world, lease_expires_us=1)
    await second.worker.recover()
    world.tools.let_go.set()
    await asyncio.gather(first.settled(), second.settled())
    assert (await shown(first))["holdfast_lease_losses_total{}"] == 1
    assert (await shown(second))["holdfast_lease_losses_total{}"] == 0


def test_frames_are_counted_once_also_of_a_stream_that_another_has_replaced(node: Node) -> None:
    streams, frame = node.streams, StopFrame("end_turn")
    first = streams.open("run-1")
    first.publish(frame, frame)
    second = streams.open("run-1", first=2, lease=2)
    second.publish(frame)
    assert streams.published == 3
    for stream in (first, first, second, second):
        streams.end(stream)
        assert streams.published == 3


async def test_a_run_that_waits_is_shown_with_its_age(world: World) -> None:
    node = world.node(WorkerSettings(takes_waiting=False))
    await node.send("hello", background=True)
    created_us = world.clock.now_us() - 60_000_000
    await change_runs(world, created_us=created_us)
    waiting = await shown(node)
    assert waiting['holdfast_runs{state="waiting"}'] == 1
    for quantile in ("0.5", "0.95", "1"):
        assert 60 <= waiting[f'holdfast_queue_age_seconds{{quantile="{quantile}"}}'] < 120
    # One whose worker died has waited only since its lease ran out.
    await change_runs(world, lease_expires_us=created_us + 50_000_000)
    assert 10 <= (await shown(node))['holdfast_queue_age_seconds{quantile="0.5"}'] < 60


def test_quantiles_are_of_the_sorted_ages() -> None:
    found = runs.Queue(driven=0, held=0, waiting=20, ages_s=list(map(float, range(1, 21))))
    assert [found.age_s(quantile) for quantile in (0.5, 0.95, 1.0)] == [11, 20, 20]
    assert runs.Queue(driven=0, held=0, waiting=0, ages_s=[]).age_s(0.5) == 0


def test_a_value_is_counted_in_the_first_bucket_that_holds_it() -> None:
    counted = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        counted.add(value)
    assert (counted.counts, counted.sum) == ([2, 1, 1], 7.65)


class Watched(WrappedDatabase):
    """Counts the long reads; they fail when they are told to."""

    failure: Exception | None = None
    hangs = False
    asked = 0

    async def read_long(self, job: Job[T]) -> T:
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        if self.hangs:
            await asyncio.Event().wait()
        return await super().read_long(job)


async def test_however_many_scrape_the_database_is_asked_once_in_a_while(world: World, node: Node) -> None:
    database = Watched(world.database)
    figures = metrics_of(node, database)
    await asyncio.gather(*(figures.text() for _ in range(50)))
    await figures.text()
    assert database.asked == 1
    figures._ask_again_at = 0.0
    await figures.text()
    assert database.asked == 2


@pytest.mark.parametrize("hangs", [False, True])
async def test_without_the_database_the_figures_of_the_process_are_still_there(
    world: World, node: Node, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "ANSWER_S", 0.01 if hangs else 60.0)
    database = Watched(world.database)
    database.hangs, database.failure = hangs, None if hangs else DatabaseError("the disk is gone")
    figures = metrics_of(node, database)
    down = parsed(await figures.text())
    assert down['holdfast_database_up{process="0"}'] == 0
    assert down['holdfast_slots_used{process="0"}'] == 0
    assert not [name for name in down if name.startswith(("holdfast_runs{", "holdfast_queue_age"))]
    monkeypatch.setattr(monitoring, "ANSWER_S", 60.0)
    database.hangs, database.failure, figures._ask_again_at = False, None, 0.0
    assert parsed(await figures.text())['holdfast_database_up{process="0"}'] == 1

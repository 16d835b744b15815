"""Stops runs: puts the wish on record, pushes the run's scope, and answers once the run has really ended."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

from holdfast.core.records import Run
from holdfast.engine.checkpoint import cancel_parked
from holdfast.engine.clock import Clock
from holdfast.engine.worker import Worker
from holdfast.errors import NothingToCancel
from holdfast.store import agents, holds, runs, threads
from holdfast.store.paging import Page
from holdfast.store.runs import RunFilter
from holdfast.store.transaction import Database, Transaction

Result = Literal["cancelled", "failed", "already_finished"]
# An owner in this process needs milliseconds; one elsewhere learns of it when it renews its leases.
_WAIT_S = 30.0
_EVERY = Page(limit=None)
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, _WAIT_S)


class CancelRuns:
    def __init__(self, database: Database, worker: Worker, clock: Clock) -> None:
        self._database = database
        self._worker = worker
        self._clock = clock
        self.latency_s = Histogram(_BOUNDS_S)  # from the request until the run has ended

    async def of_agent(self, agent_id: str, run_ids: Sequence[str] | None) -> dict[str, Result]:
        if run_ids:
            return {run_id: await self.one(run_id, agent_id) for run_id in dict.fromkeys(run_ids)}
        found = await self._database.read(lambda tx: _stoppable_of_agent(tx, agent_id))
        if not found:
            raise NothingToCancel(f"CONFLICT: No active runs to cancel for agent {agent_id}")
        return await self._all(found)

    async def of_thread(self, thread_id: str) -> dict[str, Result]:
        found = await self._database.read(lambda tx: _stoppable_of_thread(tx, thread_id))
        if not found:
            raise NothingToCancel(f"CONFLICT: No active runs to cancel for conversation {thread_id}")
        return await self._all(found)

    async def before_deleting_agent(self, agent_id: str) -> None:
        """What is deleted must not go on working, nor leave a stream without its end."""
        await self._all(await self._database.read(lambda tx: _all_of_agent(tx, agent_id)))

    async def before_deleting_thread(self, thread_id: str) -> None:
        await self._all(await self._database.read(lambda tx: _stoppable_of_thread(tx, thread_id)))

    async def _all(self, run_ids: Sequence[str]) -> dict[str, Result]:
        results = await asyncio.gather(*(self.one(run_id) for run_id in run_ids))
        return dict(zip(run_ids, results, strict=True))

    async def one(self, run_id: str, agent_id: str | None = None) -> Result:
        run = await self._database.read(lambda tx: runs.find(tx, run_id))
        if run is None or (agent_id is not None and run.agent_id != agent_id):
            return "failed"
        if run.is_active:
            run = await self._stop(run)
        elif run.status == "cancelled":
            await self._stop_descendants(run_id)  # whoever cancelled it may not have come so far
        if run.stop_reason == "requires_approval" and await self._cancel_parked(run_id):
            return "cancelled"
        if run.is_active:
            return "failed"
        return "cancelled" if run.status == "cancelled" else "already_finished"

    async def by_id(self, run_id: str) -> Run:
        """The run as it is afterwards; one that had ended stays as it was."""
        await self.one(run_id)
        return await self._database.read(lambda tx: runs.get(tx, run_id))

    async def _cancel_parked(self, run_id: str) -> bool:
        return await self._database.write(lambda tx: cancel_parked(tx, self._clock, run_id))

    async def _stop(self, run: Run) -> Run:
        """After this the run cannot complete any more: the worker's checkpoints find the wish on record.

        What it has started goes with it, whatever becomes of this process: the wish is put on all of them at once.
        What it starts until it has ended goes afterwards; then it starts no more.
        """
        asked_ns = self._clock.now_ns()
        if asked := await self._database.write(lambda tx: _ask_cancel(tx, run.id, self._clock.now_us())):
            self._worker.bus.cancel_asked(asked)
            await self._ended(run.id)
            self.latency_s.add((self._clock.now_ns() - asked_ns) / 1_000_000_000)
            await self._stop_descendants(run.id)
        return await self._database.read(lambda tx: runs.get(tx, run.id))

    async def _stop_descendants(self, run_id: str) -> None:
        await self._all(await self._database.read(lambda tx: runs.active_descendants(tx, run_id)))

    async def _ended(self, run_id: str) -> None:
        """Returns in time also when the run has not ended: its checkpoint may be waiting for the database."""
        deadline_ns = self._clock.now_ns() + int(_WAIT_S * 1_000_000_000)
        with self._worker.bus.watch(run_id) as watch:
            while (left_ns := deadline_ns - self._clock.now_ns()) > 0:
                # Pushed anew each time: this worker may have begun to drive it, or taken it over, since the last.
                self._worker.cancel(run_id)
                owned = self._worker.owns(run_id)
                if not owned:
                    run = await self._database.read(lambda tx: runs.get(tx, run_id))
                    if not run.is_active:
                        return
                    if not self._worker.draining:
                        await self._worker.take(run_id)  # it may wait for a worker, or its worker may have died
                await self._worker.until_changed(watch, left_ns / 1_000_000_000)
                if owned and not self._worker.owns(run_id):
                    return


async def _ask_cancel(tx: Transaction, run_id: str, now_us: int) -> list[str]:
    """Of which runs it was asked: none, if it was not active."""
    if await runs.ask_cancel(tx, run_id, now_us) is None:
        return []
    descendants = await runs.active_descendants(tx, run_id)
    for descendant in descendants:
        await runs.ask_cancel(tx, descendant, now_us)
    return [run_id, *descendants]


async def _stoppable_of_agent(tx: Transaction, agent_id: str) -> list[str]:
    return await _with_parked(tx, agent_id, await _active_of_agent(tx, agent_id))


async def _all_of_agent(tx: Transaction, agent_id: str) -> list[str]:
    """Also the runs that wait for a decision in its conversations, which a cancel of the agent's runs leaves alone."""
    active = await _active_of_agent(tx, agent_id)
    parked = await holds.list_open(tx, agent_id, _EVERY)
    return [*(run.id for run in active), *(hold.run_id for hold in parked)]


async def _active_of_agent(tx: Transaction, agent_id: str) -> list[Run]:
    await agents.require(tx, agent_id)
    return await runs.list_runs(tx, RunFilter(agent_ids=(agent_id,), active=True), _EVERY)


async def _stoppable_of_thread(tx: Transaction, thread_id: str) -> list[str]:
    await threads.get(tx, thread_id)
    active = await runs.active_of_thread(tx, thread_id)
    return await _with_parked(tx, thread_id, [active] if active else [])


async def _with_parked(tx: Transaction, thread_id: str, active: Sequence[Run]) -> list[str]:
    """A run whose approval is pending has the status `completed`, and can be cancelled all the same."""
    hold = await holds.open_of_thread(tx, thread_id)
    return [*(run.id for run in active), *([hold.run_id] if hold else [])]


class Histogram:
    """How many values lay in which range, in this process since it started. For metrics."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

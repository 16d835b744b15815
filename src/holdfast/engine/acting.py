"""Runs a batch of tool calls. Children only report; the runner alone decides what a report means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from holdfast.core.messages import ToolReturn
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.waiting import until_database_answers

# Runs one call outside this process. Cancelling it kills the tool before CancelledError comes back.
Execute = Callable[[], Awaitable[ToolReturn]]


class Executor(Protocol):
    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        """Whatever can be done before the call may be run; nothing of it can be seen outside."""
        ...


class Batch:
    """Reports arrive in the order in which the tools finish."""

    def __init__(
        self, task: asyncio.Task[None], reports: asyncio.Queue[ToolReturn | None], may_run: asyncio.Event
    ) -> None:
        self._task = task
        self._reports = reports
        self._may_run = may_run

    def run(self) -> None:
        """Their start is on record."""
        self._may_run.set()

    async def next(self) -> list[ToolReturn]:
        """At least one report and whatever else has come in; empty when all are told."""
        first = await self._reports.get()
        if first is None:
            await self._ended()
            return []
        return [first, *self.rest()]

    def rest(self) -> list[ToolReturn]:
        """Reports that nobody has taken yet."""
        taken: list[ToolReturn] = []
        while not self._reports.empty() and (report := self._reports.get_nowait()) is not None:
            taken.append(report)
        if self._task.done() and self._reports.empty():
            self._reports.put_nowait(None)
        return taken

    async def _ended(self) -> None:
        try:
            await self._task
        except ExceptionGroup as group:
            # One reason is enough to end the run, and it is the one that its error should name.
            raise group.exceptions[0] from group

    async def stop(self) -> None:
        """Returns when every tool of the batch is dead."""
        self._task.cancel()
        await asyncio.wait([self._task])


@asynccontextmanager
async def preparing(executor: Executor, spec: RunSpec, calls: Sequence[OpenCall]) -> AsyncGenerator[Batch]:
    """Gets them ready, and no more, until the batch is told to run."""
    reports: asyncio.Queue[ToolReturn | None] = asyncio.Queue()
    may_run = asyncio.Event()
    task = asyncio.create_task(_run_all(executor, spec, calls, reports, may_run))
    batch = Batch(task, reports, may_run)
    try:
        yield batch
    finally:
        await batch.stop()


def next_batch(spec: RunSpec, calls: Sequence[OpenCall]) -> list[OpenCall]:
    """Tools marked parallel-safe first and together, then the others one by one in the order of the reply.

    A call whose turn has not come is not on record as started, so a cancel or a crash leaves no doubt about it.
    """
    together = [call for call in calls if (tool := spec.tool(call.call.name)) is not None and tool.parallel]
    return together or list(calls[:1])


async def _run_all(
    executor: Executor,
    spec: RunSpec,
    calls: Sequence[OpenCall],
    reports: asyncio.Queue[ToolReturn | None],
    may_run: asyncio.Event,
) -> None:
    async def run_one(call: OpenCall) -> None:
        # Waits here: by now its start is in the draft, and a read that fails must not look like a tool that did.
        execute = await until_database_answers(lambda: executor.prepare(spec, call), f"call {call.call.id}")
        await may_run.wait()
        reports.put_nowait(await execute())

    try:
        async with asyncio.TaskGroup() as together:
            for call in calls:
                together.create_task(run_one(call))
    finally:
        reports.put_nowait(None)

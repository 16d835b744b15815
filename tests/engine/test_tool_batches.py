"""Batches of tools: who runs when, and how a batch is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from holdfast.core.messages import ToolReturn
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.tool_calls import Batch, Execute, Executor, next_batch, preparing

from ..core.machine import call, spec


def together(*names: str) -> RunSpec:
    """The spec in which only these tools are marked as safe to run at the same time."""
    given = spec()
    tools = tuple(msgspec.structs.replace(tool, parallel=tool.name in names) for tool in given.tools)
    return msgspec.structs.replace(given, tools=tools)


def calls(*names: str) -> list[OpenCall]:
    return [OpenCall(call(name), "started") for name in names]


class Gated:
    """Each tool waits for its own gate."""

    def __init__(self, *open_gates: str) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.ready: list[str] = []
        self.begun: list[str] = []
        self.killed: list[str] = []
        self.another = asyncio.Event()
        for name in open_gates:
            self.gate(name).set()

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def all_ready(self, count: int) -> None:
        while len(self.ready) < count:
            self.another.clear()
            await self.another.wait()

    async def all_begun(self, count: int) -> None:
        while len(self.begun) < count:
            self.another.clear()
            await self.another.wait()

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        self.ready.append(call.call.name)
        self.another.set()
        return lambda: self._execute(call)

    async def _execute(self, call: OpenCall) -> ToolReturn:
        name = call.call.name
        self.begun.append(name)
        self.another.set()
        try:
            await self.gate(name).wait()
        except asyncio.CancelledError:
            self.killed.append(name)
            raise
        if name == "guarded":
            raise RuntimeError("the executor broke")
        return ToolReturn(call.call.id, name, "success", "out")


@asynccontextmanager
async def running(executor: Executor, given: RunSpec, wanted: Sequence[OpenCall]) -> AsyncGenerator[Batch]:
    async with preparing(executor, given, wanted) as batch:
        batch.run()
        yield batch


async def test_tools_are_made_ready_at_once_and_run_only_when_they_are_told_to() -> None:
    tools = Gated("note", "lookup")
    async with preparing(tools, spec(), calls("note", "lookup")) as batch:
        await tools.all_ready(2)
        assert tools.begun == []
        batch.run()
        assert await batch.next()
        assert tools.begun == ["note", "lookup"]


async def test_a_batch_that_is_left_before_it_was_told_to_run_has_run_nothing() -> None:
    tools = Gated("note", "lookup")
    async with preparing(tools, spec(), calls("note", "lookup")) as batch:
        await tools.all_ready(2)
    assert (tools.begun, batch.rest()) == ([], [])


def test_parallel_tools_run_together_first_and_the_others_one_by_one_in_order() -> None:
    given, left = together("lookup", "remember"), calls("note", "lookup", "finish", "remember")
    batches: list[list[str]] = []
    while left:
        batch = next_batch(given, left)
        batches.append([call.call.name for call in batch])
        left = [call for call in left if call not in batch]
    assert batches == [["lookup", "remember"], ["note"], ["finish"]]


def test_a_tool_that_nobody_knows_runs_alone() -> None:
    assert len(next_batch(together("note"), calls("unknown", "finish"))) == 1


async def test_reports_come_in_the_order_in_which_the_tools_finish() -> None:
    tools = Gated()
    async with running(tools, spec(), calls("note", "lookup")) as batch:
        tools.gate("lookup").set()
        first = await batch.next()
        tools.gate("note").set()
        assert [answer.name for answer in (*first, *await batch.next())] == ["lookup", "note"]
        assert await batch.next() == []


async def test_a_stopped_batch_is_dead_when_stop_returns_and_what_it_reported_is_kept() -> None:
    tools = Gated("note")
    async with running(tools, spec(), calls("note", "lookup")) as batch:
        await tools.all_begun(2)
        await batch.stop()
        assert tools.killed == ["lookup"]
        assert [answer.name for answer in batch.rest()] == ["note"]
        assert batch.rest() == []


async def test_leaving_the_batch_kills_what_still_runs() -> None:
    tools = Gated()
    with pytest.raises(ZeroDivisionError):
        async with running(tools, spec(), calls("note", "lookup")):
            await tools.all_begun(2)
            _ = 1 / 0
    assert sorted(tools.killed) == ["lookup", "note"]


async def test_an_executor_that_breaks_is_heard_of_after_the_reports_of_the_others() -> None:
    tools = Gated("note", "guarded")
    async with running(tools, spec(), calls("note", "guarded")) as batch:
        taken: list[ToolReturn] = []
        with pytest.raises(RuntimeError, match="the executor broke"):
            while reports := await batch.next():
                taken += reports
    assert [answer.name for answer in taken] == ["note"]

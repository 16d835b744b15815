"""A server whose every await can be the moment at which somebody cancels.

The seams through which the driver leaves its own code are counted: database, model, tools. At the n-th passage the
cancel is made just as the route makes it, and it is on record before the driver goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from holdfast.actions.messages.send import SendMessage
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.core.deltas import Delta
from holdfast.core.messages import ToolReturn
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.streams import Streams
from holdfast.engine.tool_calls import Execute, Executor
from holdfast.engine.worker import Worker
from holdfast.errors import NothingToCancel
from holdfast.llm.base import Model, ModelInfo, ModelRequest
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store.transaction import Database, Job
from tests.scenario import LONG, Node, World, runner_of
from tests.wrapping import WrappedDatabase

T = TypeVar("T")
Answer = dict[str, str] | None  # None: there was nothing to cancel


class Seams:
    def __init__(self) -> None:
        self.passed = 0
        self.struck: str | None = None  # where the cancel was made
        self._at: int | None = None
        self._place: str | None = None
        self._strike: Callable[[], Awaitable[None]] | None = None

    def arm(self, at: int, strike: Callable[[], Awaitable[None]], place: str | None = None) -> None:
        """Counted from now, from 1; only passages of one place, if one is named."""
        self.passed, self._at, self._strike, self._place = 0, at, strike, place

    def disarm(self) -> None:
        self._at = None

    async def passing(self, place: str) -> None:
        if self._place not in (None, place):
            return
        self.passed += 1
        if self.passed == self._at and self._strike is not None:
            self.struck = place
            await self._strike()


class SeamDatabase(WrappedDatabase):
    def __init__(self, inner: Database, seams: Seams) -> None:
        super().__init__(inner)
        self._seams = seams

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        await self._seams.passing("before a write")
        try:
            written = await self._inner.write(job, performed)
        except Exception as error:
            if settled is not None:
                settled(error)
            raise
        await self._seams.passing("after a write")
        if settled is not None:
            settled(None)  # its commit is heard of only now
        return written

    async def read(self, job: Job[T]) -> T:
        await self._seams.passing("before a read")
        return await self._inner.read(job)


class SeamCatalog(ModelCatalog):
    def __init__(self, seams: Seams) -> None:
        super().__init__()
        self._seams = seams

    async def find(self, handle: str) -> ModelInfo:
        await self._seams.passing("looking up the model")
        return await super().find(handle)

    def open(self, info: ModelInfo) -> Model:
        return SeamModel(super().open(info), self._seams)


class SeamModel:
    def __init__(self, inner: Model, seams: Seams) -> None:
        self._inner = inner
        self._seams = seams

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta]:
        await self._seams.passing("before the first token")
        async with aclosing(self._inner.stream(request)) as deltas:
            async for delta in deltas:
                await self._seams.passing("before a token is handed on")
                yield delta
        await self._seams.passing("after the last token")

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return self._inner.payload(request)


class SeamExecutor:
    def __init__(self, inner: Executor, seams: Seams) -> None:
        self._inner = inner
        self._seams = seams
        self.handed_back: list[str] = []  # calls whose returns the driver was given

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        await self._seams.passing("while a tool is made ready")
        inner = await self._inner.prepare(spec, call)

        async def execute() -> ToolReturn:
            await self._seams.passing("before a tool")
            answer = await inner()
            await self._seams.passing("after a tool")
            self.handed_back.append(call.call.id)
            return answer

        return execute


class AnnouncingDatabase(WrappedDatabase):
    """What the canceller writes through. `written` is set after its first write."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.written = asyncio.Event()

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        done = await super().write(job, performed, settled)
        self.written.set()
        return done


class SeamNode(Node):
    def __init__(self, world: World) -> None:
        super().__init__(world, LONG)
        clock = world.clock
        self.seams = Seams()
        database = SeamDatabase(world.database, self.seams)
        self.catalog = SeamCatalog(self.seams)
        self.streams = Streams(database)
        self.executor = SeamExecutor(world.tools, self.seams)
        runner = runner_of(database, self.catalog, self.executor, TokenRatios(database), clock, world.retry_policy)
        self.worker = Worker(database, runner, self.streams, clock, LONG)
        retries = world.retry_policy.retries
        self._send = SendMessage(database, self.catalog, self.worker, clock, retries)
        self.cancel = CancelRuns(world.database, self.worker, clock)
        self.cancelling: list[asyncio.Task[Answer]] = []

    async def strike(self, times: int = 1) -> None:
        """Cancels and returns when the wish is on record, or there was nothing to wish for. The answer comes later."""
        recorded: list[asyncio.Task[Any]] = []
        try:
            for _ in range(times):
                view = AnnouncingDatabase(self.world.database)
                asking = asyncio.create_task(self._cancel(CancelRuns(view, self.worker, self.world.clock)))
                self.cancelling.append(asking)
                recorded.append(asyncio.create_task(view.written.wait()))
                await asyncio.wait({asking, recorded[-1]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in recorded:
                waiting.cancel()

    async def _cancel(self, cancel: CancelRuns) -> Answer:
        try:
            return dict(await cancel.of_agent(self.world.agent_id, None))
        except NothingToCancel:
            return None

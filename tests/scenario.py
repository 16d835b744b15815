"""A world for tests of the engine: a real store, the offline model, tools that only count, and workers that can die.

A `World` outlives its workers. A `Node` is one server process over it: drop it, and another may carry on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from sqlalchemy import update

from holdfast import ids
from holdfast.actions.agents.create import add_sleeptime_agent
from holdfast.actions.messages.send import Accepted, SendMessage, SendRequest
from holdfast.actions.runs.cancel import CancelRuns
from holdfast.actions.tools.base_tools import find_named
from holdfast.core.failures import RetryPolicy
from holdfast.core.frames import Frame, StopFrame
from holdfast.core.messages import Decision, Message, Text, ToolReturn
from holdfast.core.rate_limits import Limit
from holdfast.core.records import Agent, ModelChoice, Run, Thread, Tool
from holdfast.core.run import OpenCall
from holdfast.core.spec import RunSpec
from holdfast.core.tool_rules import ExitLoop, RequiresApproval, Rule
from holdfast.engine.admission import Admission
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.bus import Bus
from holdfast.engine.clock import Clock, SystemClock
from holdfast.engine.compacting import Compactor
from holdfast.engine.model_call import TokenRatios
from holdfast.engine.rate_limits import RateLimits
from holdfast.engine.retention import Retention, RetentionPolicy
from holdfast.engine.run_reader import RunReader
from holdfast.engine.runner import Runner
from holdfast.engine.streams import Numbered, Streams
from holdfast.engine.tool_calls import Execute, Executor, InlineTools
from holdfast.engine.tracing import Instrumentation
from holdfast.engine.worker import Worker, WorkerSettings
from holdfast.llm.base import Catalog
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents, blocks, groups, holds, messages, runs, threads, tools
from holdfast.store.database import open_database
from holdfast.store.holds import HoldRow
from holdfast.store.signals import Signals
from holdfast.store.tables import agents as agent_rows
from holdfast.store.transaction import CommitUnknown, Database, DatabaseError, Job, TookTooLong, Transaction
from holdfast.wire.requests import LettaRequest, NewMessage, ParsedInput
from tests.wrapping import WrappedDatabase

T = TypeVar("T")
HANDLE = "holdfast/offline"
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
RULES: tuple[Rule, ...] = (RequiresApproval(tool_name="guarded"),)
ENDING = (*RULES, ExitLoop(tool_name="finish"))
LONG = WorkerSettings(lease_ttl_s=600, drain_s=0.0)
Moment = Literal["before", "during", "after"]  # of a crash: a commit that it interrupts never happens
IMPATIENT = RetryPolicy(retries=0)
HASTY = RetryPolicy(retries=3, first_pause_s=0.001)


class Crash(BaseException):
    """The process is gone. Not an Exception, so that nothing on the way can think of repairing it."""


class _Undone(Exception):
    def __init__(self, result: Any) -> None:
        self.result = result


class FragileDatabase(WrappedDatabase):
    """Dies before, during or after its n-th write, and is dead from then on: whoever holds it can write no more."""

    def __init__(self, inner: Database) -> None:
        super().__init__(inner)
        self.writes = 0
        self.dead = False
        self._crash_at: int | None = None
        self._reads_left: int | None = None
        self._reads_heal = False
        self._when: Moment = "before"
        self._lost_writes: dict[int, Literal["before", "after"]] = {}
        self.lost = 0
        self.long_reads_hang = False
        self.hanging = asyncio.Event()
        self.long_reads_take_too_long = False

    def crash_at(self, write: int, when: Moment) -> None:
        """Counted from now."""
        self._crash_at = self.writes + write
        self._when = when

    def fail_reads_after(self, reads: int, *, once: bool = False) -> None:
        """As when the disk or the connection is gone, which is an error like any other, not a death."""
        self._reads_left = reads
        self._reads_heal = once

    def lose_write(self, write: int, when: Literal["before", "after"], times: int = 1) -> None:
        """That write, counted from now, and the next ones fail as with a lost connection: the server lives on, and does
        not know whether the commit has happened."""
        self._lost_writes = {self.writes + write + number: when for number in range(times)}

    def spare(self) -> None:
        self._crash_at = None

    async def write(
        self,
        job: Job[T],
        performed: Callable[[T], None] | None = None,
        settled: Callable[[BaseException | None], None] | None = None,
    ) -> T:
        self._check()
        self.writes += 1
        if (lost := self._lost_writes.get(self.writes)) is not None:
            self.lost += 1
            if lost == "after":
                await self._inner.write(job)
            error = CommitUnknown("the connection was lost")
            if settled is not None:
                settled(error)
            raise error
        if self.writes != self._crash_at:
            return await super().write(job, performed, settled)
        if self._when == "after":
            await self._inner.write(job)
        self.dead = True
        if self._when == "during" and performed is not None:
            await self._undo(job, performed)
        raise Crash

    async def _undo(self, job: Job[T], performed: Callable[[T], None]) -> None:
        """The job is performed, and what it led to begins; the disk never hears of it."""

        async def undone(tx: Transaction) -> None:
            raise _Undone(await job(tx))

        try:
            await self._inner.write(undone)
        except _Undone as undoing:
            performed(undoing.result)
            for _ in range(10):  # turns of the loop, in which a model is asked and replies
                await asyncio.sleep(0)

    async def read(self, job: Job[T]) -> T:
        self._count_read()
        return await super().read(job)

    async def read_one(self, job: Job[T]) -> T:
        self._count_read()
        return await super().read_one(job)

    def _count_read(self) -> None:
        self._check()
        if self._reads_left is not None:
            if not self._reads_left:
                self.lost += 1
                if self._reads_heal:
                    self._reads_left = None
                raise DatabaseError("the disk is gone")
            self._reads_left -= 1

    async def read_long(self, job: Job[T]) -> T:
        self._count_read()
        if self.long_reads_hang:
            self.hanging.set()
            await asyncio.Event().wait()  # until whoever waits for it is cancelled
        if self.long_reads_take_too_long:
            raise TookTooLong("The database did not finish in time.")
        return await super().read_long(job)

    async def write_lease(self, job: Job[T]) -> T:
        self._check()
        return await super().write_lease(job)

    def _check(self) -> None:
        if self.dead:
            raise Crash


class CountingTools:
    """An executor whose tools do nothing but be counted. `slow` waits until it is let go; others return at once."""

    def __init__(self) -> None:
        self.begun = Counter[str]()  # by call id
        self.finished = Counter[str]()
        self.killed = Counter[str]()
        self.names: dict[str, str] = {}
        self.in_flight: set[str] = set()  # call ids
        self.let_go = asyncio.Event()
        self.waiting = asyncio.Event()  # a slow tool has begun
        self.answers: dict[str, Callable[[OpenCall], Awaitable[ToolReturn]]] = {}
        self.on_the_way: dict[str, Callable[[OpenCall], Awaitable[None]]] = {}  # what a tool does before it returns

    async def prepare(self, spec: RunSpec, call: OpenCall) -> Execute:
        return lambda: self._execute(call)

    async def _execute(self, call: OpenCall) -> ToolReturn:
        call_id, name = call.call.id, call.call.name
        self.begun[call_id] += 1
        self.names[call_id] = name
        self.in_flight.add(call_id)
        try:
            if name.startswith("slow"):
                self.waiting.set()
                await self.let_go.wait()
            if name in self.on_the_way:
                await self.on_the_way[name](call)
            if name in self.answers:
                return await self.answers[name](call)
        except asyncio.CancelledError:
            self.killed[call_id] += 1
            raise
        finally:
            self.in_flight.discard(call_id)
        self.finished[call_id] += 1
        status = "error" if name == "failing" else "success"
        return ToolReturn(call_id, name, status, f"{name} was run")


class Node:
    """One server process."""

    def __init__(
        self,
        world: World,
        pace: WorkerSettings = LONG,
        catalog: ModelCatalog | None = None,
        instrumentation: Instrumentation | None = None,
        executor: Executor | None = None,
        signals: Signals | None = None,
        limits: Sequence[Limit] = (),
        longest_wait_s: float = 60.0,
        most_foreground: int = 0,
        most_waiting: int = 0,
        database: Database | None = None,
    ) -> None:
        """`database`: how it reaches the world's, if not directly."""
        self.world = world
        self.database = FragileDatabase(database or world.database)
        self.catalog = catalog or ModelCatalog()
        clock = world.clock
        bus = Bus(signals)
        self.streams = Streams(self.database, bus.run_changed)
        self.ratios = TokenRatios(self.database)
        self.rate_limits = RateLimits(self.database, clock, limits, longest_wait_s)
        runner = runner_of(
            self.database,
            self.catalog,
            executor or world.tools,
            self.ratios,
            clock,
            world.retry_policy,
            instrumentation,
            self.rate_limits,
        )
        self.worker = Worker(self.database, runner, self.streams, clock, pace, bus)
        retries = world.retry_policy.retries
        self.admission = Admission(self.database, self.worker, most_foreground, most_waiting)
        self._send = SendMessage(self.database, self.catalog, self.worker, clock, retries, self.admission)
        self.cancel = CancelRuns(self.database, self.worker, clock)
        self.reader = RunReader(self.database, self.worker, self.streams)
        self.retention = Retention(self.database, clock, RetentionPolicy())

    async def send(
        self,
        text: str | None = None,
        *,
        decisions: Sequence[Decision] | None = None,
        thread: str | None = None,
        otid: str | None = None,
        stream_tokens: bool = False,
        background: bool = False,
        wait_s: float = 0.0,
        **request: Any,
    ) -> Accepted:
        await self._require_true_window(thread or self.world.agent_id)
        said = () if text is None else (NewMessage(role="user", parts=(Text(text),), otid=otid),)
        parsed = ParsedInput(
            messages=said,
            decisions=None if decisions is None else tuple(decisions),
            otids=(otid,) if otid else (),
            request_key=f"key-{otid}" if otid else None,
        )
        return await self._send(
            SendRequest(
                thread_id=thread or self.world.agent_id,
                parsed=parsed,
                request=LettaRequest.model_validate({"input": "unused", **request}),
                run_type="send_message",
                request_config={},
                stream_tokens=stream_tokens,
                background=background,
                wait_s=wait_s,
            )
        )

    async def _require_true_window(self, thread_id: str) -> None:
        """What this process remembers of a window, if anything, is what is stored."""

        async def read(tx: Transaction) -> tuple[int, list[Message]]:
            return (await threads.head(tx, thread_id)).end, await threads.window(tx, thread_id)

        end, stored = await self.world.database.read(read)
        remembered = self.worker.windows.of(thread_id, end)
        assert remembered is None or remembered == stored

    async def told(self, accepted: Accepted) -> list[Frame]:
        """Everything the run showed, once it has ended."""
        assert accepted.stream is not None
        return [frame async for batch in accepted.stream.follow() for _, frame in batch]

    async def ask(self, text: str | None = None, **options: Any) -> Run:
        """Send, and wait until the run has stopped."""
        accepted = await self.send(text, **options)
        await self.worker.stopped(accepted.run.id)
        return await self.world.run(accepted.run.id)

    async def replay(self, run_id: str, after: int = 0) -> list[Numbered]:
        return [numbered async for batch in self.streams.follow(run_id, after) for numbered in batch]

    async def take_over_all(self) -> int:
        """As a server does at its start that shares its database with nobody."""
        await self.worker.expire_other_leases()
        return await self.worker.recover()

    async def settled(self) -> None:
        """Returns when nothing is driven here any more. A dead process has nothing left to say."""
        while self.worker._tasks:
            await asyncio.wait(self.worker._tasks)

    async def die(self) -> None:
        """As kill -9 would have it: no more writes, and nobody cleans up."""
        self.database.dead = True
        tasks = list(self.worker._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class World:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.retry_policy = IMPATIENT
        self.clock = SystemClock()
        self.tools = CountingTools()
        self.closing = AsyncExitStack()  # what a scene has opened
        self.agent_id = ""

    def node(self, pace: WorkerSettings = LONG) -> Node:
        return Node(self, pace)

    async def run(self, run_id: str) -> Run:
        return await self.database.read(lambda tx: runs.get(tx, run_id))

    async def window(self, thread: str | None = None) -> list[Message]:
        return await self.database.read(lambda tx: threads.window(tx, thread or self.agent_id))

    async def pending(self, thread: str | None = None) -> HoldRow | None:
        return await self.database.read(lambda tx: holds.open_of_thread(tx, thread or self.agent_id))

    async def add_thread(self) -> str:
        """A conversation of the agent's own."""
        thread = Thread(id=ids.new("conv"), agent_id=self.agent_id, created_us=self.clock.now_us())
        await self.database.write(lambda tx: _open_thread(tx, self.agent_id, thread))
        return thread.id

    async def speak_through_send_message(self) -> None:
        """Makes it an agent of the kind that says nothing except by calling send_message."""
        settings = {"strict": False, "put_inner_thoughts_in_kwargs": True}
        model = {"max_output_tokens": 4_096, "temperature": 1.0, "settings": settings}
        agent = _agent(self.agent_id, (*RULES, ExitLoop(tool_name="send_message")), **model)

        async def change(tx: Transaction) -> None:
            await agents.update_agent(tx, agent)
            kind = update(agent_rows).where(agent_rows.c.id == agent.id).values(agent_type="memgpt_v2_agent")
            await tx.execute(kind)
            found = await find_named(tx, ["send_message"], self.clock.now_us())
            await tools.attach_many(tx, agent.id, [tool.id for tool in found.values()])

        await self.database.write(change)

    async def be_looked_after(self) -> str:
        """Gives it a sleeptime agent, which is set to work after every turn; its id."""

        async def change(tx: Transaction) -> str:
            agent, now_us = await agents.get(tx, self.agent_id), self.clock.now_us()
            group = await add_sleeptime_agent(tx, agent, await blocks.of_agent(tx, agent.id), now_us)
            await groups.update_group(tx, msgspec.structs.replace(group, sleeptime_agent_frequency=None))
            await agents.set_sleeptime(tx, agent.id, True)
            return group.agent_ids[0]

        return await self.database.write(change)

    async def change_rules(self, rules: tuple[Rule, ...], **model: Any) -> None:
        """As an edit of the agent would."""
        agent = _agent(self.agent_id, rules, **model)
        await self.database.write(lambda tx: agents.update_agent(tx, agent))


@asynccontextmanager
async def world_at(url: str, rules: tuple[Rule, ...] = RULES, **model: Any) -> AsyncGenerator[World]:
    database = await open_database(url)
    try:
        yield await world_in(database, rules, **model)
    finally:
        await database.aclose()


async def world_in(database: Database, rules: tuple[Rule, ...] = RULES, **model: Any) -> World:
    world = World(database)
    world.agent_id = await database.write(lambda tx: _create(tx, rules, model))
    return world


def runner_of(
    database: Database,
    catalog: Catalog,
    tools: Executor,
    ratios: TokenRatios,
    clock: Clock,
    retry_policy: RetryPolicy,
    instrumentation: Instrumentation | None = None,
    rate_limits: RateLimits | None = None,
) -> Runner:
    spans = instrumentation.spans if instrumentation else None
    compactor = Compactor(catalog, clock, ratios, retry_policy, spans, rate_limits)
    inline = InlineTools(database, clock, ArchivalMemory(database, catalog, clock))
    return Runner(
        database, catalog, tools, inline, clock, compactor, retry_policy, instrumentation, rate_limits=rate_limits
    )


def sqlite_at(directory: Path) -> str:
    return f"sqlite:///{directory}/holdfast.db"


async def eventually(what: Callable[[], bool], attempts: int = 20_000) -> None:
    """For what another task is about to do, where there is no event to wait for."""
    for _ in range(attempts):
        if what():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came about")


def stop_of(frames: Sequence[Frame]) -> str | None:
    return next((frame.stop_reason for frame in frames if isinstance(frame, StopFrame)), None)


def _agent(agent_id: str, rules: tuple[Rule, ...], **model: Any) -> Agent:
    given: dict[str, Any] = {"handle": HANDLE, "context_window": 128_000, "parallel_tool_calls": True}
    choice = ModelChoice(**given | model)
    return Agent(
        id=agent_id,
        name="ada",
        agent_type="letta_v1_agent",
        system="Be brief.",
        model=choice,
        tool_rules=rules,
    )


async def _create(tx: Transaction, rules: tuple[Rule, ...], model: dict[str, Any]) -> str:
    agent_id = ids.new("agent")
    await agents.insert(tx, _agent(agent_id, rules, **model))
    await _open_thread(tx, agent_id, Thread(id=agent_id, agent_id=agent_id))
    kinds = {"note": False, "lookup": True, "guarded": False, "slow": False, "slow_lookup": True, "finish": False}
    made = [
        _tool(number, name, retry_safe) for number, (name, retry_safe) in enumerate({**kinds, "failing": False}.items())
    ]
    for tool in made:
        assert await tools.insert(tx, tool)
    await tools.attach_many(tx, agent_id, [tool.id for tool in made])
    return agent_id


async def _open_thread(tx: Transaction, agent_id: str, thread: Thread) -> None:
    system = Message(id=ids.new("message"), role="system", parts=(Text("Be brief."),), created_us=0)
    await threads.insert(tx, thread)
    await messages.insert_many(tx, agent_id, [system])
    await threads.append(tx, thread.id, [system.id])


def _tool(number: int, name: str, retry_safe: bool) -> Tool:
    return Tool(
        id=ids.new("tool"),
        name=name,
        tool_type="custom",
        description=f"The tool {name}.",
        json_schema={"name": name, "description": "", "parameters": NO_ARGUMENTS},
        enable_parallel_execution=name.startswith("slow"),
        tags=("retry-safe",) if retry_safe else (),
        created_us=number,
    )

"""How background runs reach another process: by signal and claim, or by a job of Procrastinate for each run.

python -m pip install procrastinate 'psycopg[binary,pool]' && python -m bench.dispatch [--runs 400] [--rounds 3]

Decision 28 is made of these figures. Procrastinate is no dependency of Holdfast, so it has to be installed first. One
process accepts, as `holdfast serve --no-worker` does, but without HTTP; another drives, as `holdfast worker` does. Both
ways take turns on one PostgreSQL, each in a database of its own. The sweeps that would find a lost run are switched
off. `jobs`: the accepting process gathers ids for as long as signals are gathered, and defers them in one statement on
a connection of its own; a job calls `Worker.take`, which claims the run by its lease.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import uvloop
from tests.postgres import create_database, running_server
from tests.scenario import eventually

from holdfast import ids
from holdfast.actions.dependencies import Holdfast
from holdfast.actions.messages.send import SendRequest
from holdfast.core.messages import Message, Text
from holdfast.core.records import Agent, ModelChoice, Thread
from holdfast.engine.run_loading import LoadedRun
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.settings import OFFLINE_MODEL, Settings
from holdfast.store import agents, messages, threads
from holdfast.store.database import open_database
from holdfast.store.postgres_signals import GATHER_S
from holdfast.store.transaction import Transaction
from holdfast.wire.requests import LettaRequest, NewMessage, ParsedInput
from holdfast.wiring import assemble, new_sandbox

Way = Literal["signal", "jobs"]
WAYS: Final[tuple[Way, ...]] = ("signal", "jobs")
CLIENTS: Final = (1, 8, 32)  # the one waits until its run has begun before it sends the next
ONE_BY_ONE: Final = 60
CPU: Final = "cpu"
JOBS_AT_ONCE: Final = 16
NEVER_S: Final = 3600.0
WITHIN_S: Final = 60.0
TEXT: Final = "Hello [[say:Good day.]] [[no_reasoning]]"
logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns of an application that a script makes
procrastinate: Any = importlib.import_module("procrastinate")


class Figures(NamedTuple):
    accepted_per_s: float
    delays_ms: list[float]
    cpu_ms: float  # of both processes, for each run


@asynccontextmanager
async def opened(url: str, *, worker: bool) -> AsyncGenerator[Holdfast]:
    """A server without HTTP whose worker finds nothing but by what is measured."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), database_url=url, default_model=OFFLINE_MODEL, worker=worker)
        database, sandbox = await open_database(url), new_sandbox(settings)
        deps = assemble(settings, database, sandbox, ModelCatalog())
        deps.worker._settings = msgspec.structs.replace(deps.worker._settings, sweep_s=NEVER_S)
        forever = asyncio.create_task(deps.worker.run_forever())
        try:
            yield deps
        finally:
            forever.cancel()
            await sandbox.aclose()
            await database.aclose()


@asynccontextmanager
async def jobs(url: str) -> AsyncGenerator[tuple[Any, Callable[[Callable[[str], Any]], Any]]]:
    """The application, and what makes a task of a function of a run's id."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=4))
    async with app.open_async():
        yield app, app.task(name="drive", queue="runs")


class Deferring:
    """Gathers ids, and defers a job for each in one statement, on a connection beside those of the store."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._waiting: list[str] = []
        self._due = asyncio.Event()

    def offer(self, run_id: str) -> None:
        self._waiting.append(run_id)
        self._due.set()

    async def run_forever(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            ready, self._waiting = self._waiting, []
            await self._task.batch_defer_async(*({"run_id": run_id} for run_id in ready))
            await asyncio.sleep(GATHER_S)


# --- the process that drives ---


def drive(url: str, way: Way, told: Any) -> None:
    uvloop.run(_drive(url, way, told))


async def _drive(url: str, way: Way, told: Any) -> None:
    """Tells which run it begins and when, and, whenever it is asked, how much CPU time it has used. None ends it."""
    async with opened(url, worker=True) as deps, AsyncExitStack() as stack:
        begin = deps.worker.drive

        def noting(loaded: LoadedRun, *given: Any, **named: Any) -> Any:
            told.send((loaded.run.id, time.time()))
            return begin(loaded, *given, **named)

        deps.worker.drive = noting
        await eventually(lambda: bool(deps.worker.bus.connected))
        if way == "jobs":
            app, task = await stack.enter_async_context(jobs(url))
            task(deps.worker.take)
            options = {"concurrency": JOBS_AT_ONCE, "install_signal_handlers": False, "delete_jobs": "successful"}
            working = asyncio.create_task(app.run_worker_async(queues=["runs"], **options))
            stack.push_async_callback(_stop, working)
        told.send((CPU, time.process_time()))
        while await asyncio.to_thread(told.recv) is not None:
            while deps.worker._tasks:
                await asyncio.wait(deps.worker._tasks)
            told.send((CPU, time.process_time()))


# --- the process that accepts ---


class Accepting:
    """One way: the process that drives, and a server without HTTP that leaves all background runs to it."""

    def __init__(self, way: Way, url: str) -> None:
        self.way: Way = way
        self._url = url
        self._begun: dict[str, float] = {}  # by run; under CPU, what the other process has used
        self._arrived = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        driving = context.Process(target=drive, args=(self._url, self.way, theirs), daemon=True)
        driving.start()
        async with opened(self._url, worker=False) as self._deps, AsyncExitStack() as stack:
            await eventually(lambda: bool(self._deps.worker.bus.connected))
            if self.way == "jobs":
                _, task = await stack.enter_async_context(jobs(self._url))
                deferring = Deferring(task(_elsewhere))
                self._deps.worker.offer = deferring.offer
                stack.push_async_callback(_stop, asyncio.create_task(deferring.run_forever()))
            threading.Thread(target=self._hear, args=(asyncio.get_running_loop(),), daemon=True).start()
            await self._until(lambda: CPU in self._begun)
            yield
            self._pipe.send(None)
            await asyncio.to_thread(driving.join, WITHIN_S)

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own, which ends with the other process."""
        while True:
            try:
                name, number = self._pipe.recv()
            except (EOFError, OSError):
                return
            loop.call_soon_threadsafe(self._note, name, number)

    def _note(self, name: str, number: float) -> None:
        self._begun[name] = number
        self._arrived.set()

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not true():
                self._arrived.clear()
                await self._arrived.wait()

    async def _cpu_s(self) -> float:
        """Of both processes, once the other has nothing more to do."""
        del self._begun[CPU]
        self._pipe.send(CPU)
        await self._until(lambda: CPU in self._begun)
        return self._begun[CPU] + time.process_time()

    async def one_round(self, runs: int, clients: int) -> Figures:
        waiting, accepted = await _threads(self._deps, runs), dict[str, float]()
        cpu_s, began = await self._cpu_s(), time.time()

        async def client() -> None:
            while waiting:
                await _send(self._deps, waiting.pop(), accepted)
                if clients == 1:
                    await self._until(lambda: accepted.keys() <= self._begun.keys())

        await asyncio.gather(*(client() for _ in range(clients)))
        took = time.time() - began
        await self._until(lambda: accepted.keys() <= self._begun.keys())
        delays = [(self._begun[run_id] - at) * 1e3 for run_id, at in accepted.items()]
        return Figures(runs / took, delays, (await self._cpu_s() - cpu_s) * 1e3 / runs)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _elsewhere(run_id: str) -> None:
    raise AssertionError("the other process does it")


async def _send(deps: Holdfast, thread_id: str, accepted: dict[str, float]) -> None:
    request = SendRequest(
        thread_id=thread_id,
        parsed=ParsedInput(messages=(NewMessage(role="user", parts=(Text(TEXT),)),)),
        request=LettaRequest.model_validate({"input": "unused"}),
        run_type="send_message_async",
        request_config={},
        background=True,
    )
    accepted[(await deps.send(request)).run.id] = time.time()


async def _threads(deps: Holdfast, count: int) -> list[str]:
    """Of ten agents."""
    made: list[str] = []
    for _ in range(10):
        made += await deps.database.write(lambda tx: _agent_with_threads(tx, count // 10 + 1))
    return made[:count]


async def _agent_with_threads(tx: Transaction, count: int) -> list[str]:
    agent_id, made = ids.new("agent"), [ids.new("conv") for _ in range(count)]
    model = ModelChoice(handle=OFFLINE_MODEL, context_window=128_000)
    await agents.insert(
        tx, Agent(id=agent_id, name="ada", agent_type="letta_v1_agent", system="Be brief.", model=model)
    )
    for thread_id in made:
        system = Message(id=ids.new("message"), role="system", parts=(Text("Be brief."),), created_us=0)
        await threads.insert(tx, Thread(id=thread_id, agent_id=agent_id))
        await messages.insert_many(tx, agent_id, [system])
        await threads.append(tx, thread_id, [system.id])
    return made


# --- both, in turns ---


async def measure(server: str, runs: int, rounds: int, several: list[int]) -> None:
    print("| clients | way | accepted per s | accepted → begun p50 | p99 | CPU of both processes per run |")
    print("|---|---|---|---|---|---|")
    async with AsyncExitStack() as stack:
        ways: list[Accepting] = []
        for way in WAYS:
            url = await create_database(server)
            if way == "jobs":
                async with jobs(url) as (app, _):
                    await app.schema_manager.apply_schema_async()
            ways.append(Accepting(way, url))
            await stack.enter_async_context(ways[-1].open())
        for clients in several:
            kept: dict[Way, list[Figures]] = {way: [] for way in WAYS}
            for number in range(rounds + 1):  # the first pays for what is loaded on first use
                for each in ways if number % 2 else ways[::-1]:
                    figures = await each.one_round(runs if clients > 1 else min(runs, ONE_BY_ONE), clients)
                    if number:
                        kept[each.way].append(figures)
            for way, measured in kept.items():
                print(f"| {clients} | {way} | {_shown(measured)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dispatch", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="accepted in each round by several clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    given = parser.parse_args()
    with running_server() as postgres:
        uvloop.run(measure(postgres.uri, given.runs, given.rounds, given.clients))


def _shown(rounds: list[Figures]) -> str:
    delays = sorted(delay for figures in rounds for delay in figures.delays_ms)
    rates = [figures.accepted_per_s for figures in rounds]
    spread = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} – {max(rates):,.0f})"
    cpu = statistics.median(figures.cpu_ms for figures in rounds)
    middle, late = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    return f"{spread} | {middle:,.1f} ms | {late:,.1f} ms | {cpu:.1f} ms"


if __name__ == "__main__":
    main()

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
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import uvloop
from tests.postgres import create_database, running_server
from tests.scenario import eventually

from holdfast import ids
from holdfast.actions.assembled import Holdfast
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
from holdfast.wire.inputs import NewMessage, ParsedInput
from holdfast.wire.requests import LettaRequest
from holdfast.wiring import assemble, new_sandbox

Way = Literal["signal", "jobs"]
WAYS: Final[tuple[Way, ...]] = ("signal", "jobs")
CLIENTS: Final = (1, 8, 32)  # the one waits until its run has begun before it sends the next
ONE_BY_ONE: Final = 60
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


def drive(url: str, way: Way, told: Connection) -> None:
    uvloop.run(_drive(url, way, told))


async def _drive(url: str, way: Way, told: Connection) -> None:
    async with opened(url, worker=True) as deps:
        begin = deps.worker.drive

        def noting(loaded: LoadedRun, *given: Any, **named: Any) -> Any:
            told.send((loaded.run.id, time.time()))
            return begin(loaded, *given, **named)

        deps.worker.drive = noting
        if way == "signal":
            await eventually(lambda: bool(deps.worker.bus.connected))
            cpu = await _until_told(told)
        else:
            async with jobs(url) as (app, task):
                task(deps.worker.take)
                options = {"concurrency": JOBS_AT_ONCE, "install_signal_handlers": False, "delete_jobs": "successful"}
                working = asyncio.create_task(app.run_worker_async(queues=["runs"], **options))
                cpu = await _until_told(told)
                working.cancel()
                await asyncio.wait([working])
        while deps.worker._tasks:
            await asyncio.wait(deps.worker._tasks)
        told.send(("cpu", time.process_time() - cpu))


async def _until_told(told: Connection) -> float:
    """Says that it is ready, and gives the CPU time that was used by then."""
    cpu = time.process_time()
    told.send(None)
    await asyncio.to_thread(told.recv)
    return cpu


# --- the process that accepts ---


async def accept(url: str, way: Way, runs: int, clients: int, told: Connection) -> Figures:
    async with opened(url, worker=False) as deps:
        await eventually(lambda: bool(deps.worker.bus.connected))
        waiting = await _threads(deps, runs)
        if way == "signal":
            return await _send_all(deps, waiting, clients, told)
        async with jobs(url) as (_, task):
            deferring = Deferring(task(_elsewhere))
            deps.worker.offer = deferring.offer
            forever = asyncio.create_task(deferring.run_forever())
            try:
                return await _send_all(deps, waiting, clients, told)
            finally:
                forever.cancel()


async def _elsewhere(run_id: str) -> None:
    raise AssertionError("the other process does it")


async def _send_all(deps: Holdfast, waiting: list[str], clients: int, told: Connection) -> Figures:
    expected, accepted, begun = len(waiting), dict[str, float](), dict[str, float]()
    arrived = asyncio.Event()
    hearing = asyncio.create_task(_hear(told, begun, expected, arrived))
    await _send(deps, waiting.pop(), accepted)  # the first pays for what is loaded on first use
    began, cpu = time.time(), time.process_time()

    async def client() -> None:
        while waiting:
            run_id = await _send(deps, waiting.pop(), accepted)
            while clients == 1 and run_id not in begun:
                arrived.clear()
                await arrived.wait()

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*(client() for _ in range(clients)))
        took = time.time() - began
        await hearing
    delays = [(begun[run_id] - at) * 1e3 for run_id, at in accepted.items()][1:]
    return Figures((expected - 1) / took, delays, (time.process_time() - cpu) * 1e3 / expected)


async def _hear(told: Connection, begun: dict[str, float], expected: int, arrived: asyncio.Event) -> None:
    while len(begun) < expected:
        run_id, at = await asyncio.to_thread(told.recv)
        begun[run_id] = at
        arrived.set()


async def _send(deps: Holdfast, thread_id: str, accepted: dict[str, float]) -> str:
    request = SendRequest(
        thread_id=thread_id,
        parsed=ParsedInput(messages=(NewMessage(role="user", parts=(Text(TEXT),)),)),
        request=LettaRequest.model_validate({"input": "unused"}),
        run_type="send_message_async",
        request_config={},
        background=True,
    )
    run_id = (await deps.send(request)).run.id
    accepted[run_id] = time.time()
    return run_id


async def _threads(deps: Holdfast, count: int) -> list[str]:
    """Of ten agents."""
    made: list[str] = []

    async def job(tx: Transaction) -> None:
        made.clear()
        for _ in range(10):
            agent_id = ids.new("agent")
            model = ModelChoice(handle=OFFLINE_MODEL, context_window=128_000)
            await agents.insert(
                tx, Agent(id=agent_id, name="ada", agent_type="letta_v1_agent", system="Be brief.", model=model)
            )
            for _ in range(count // 10 + 1):
                thread = Thread(id=ids.new("conv"), agent_id=agent_id)
                system = Message(id=ids.new("message"), role="system", parts=(Text("Be brief."),), created_us=0)
                await threads.insert(tx, thread)
                await messages.insert_many(tx, agent_id, [system])
                await threads.append(tx, thread.id, [system.id])
                made.append(thread.id)

    await deps.database.write(job)
    return made[:count]


# --- both, in turns ---


def one_round(url: str, way: Way, runs: int, clients: int) -> Figures:
    context = multiprocessing.get_context("spawn")
    pipe: Any = context.Pipe()
    ours, theirs = pipe
    driving = context.Process(target=drive, args=(url, way, theirs), daemon=True)
    driving.start()
    ours.recv()
    figures = uvloop.run(accept(url, way, runs, clients, ours))
    ours.send(None)
    while (last := ours.recv())[0] != "cpu":
        pass
    driving.join(30)
    return figures._replace(cpu_ms=figures.cpu_ms + last[1] * 1e3 / runs)


async def _prepare(url: str) -> None:
    async with jobs(url) as (app, _):
        await app.schema_manager.apply_schema_async()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dispatch", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="accepted in each round by several clients")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| clients | way | accepted per s | accepted → begun p50 | p99 | CPU of both processes per run |")
    print("|---|---|---|---|---|---|")
    with running_server() as postgres:
        urls = {way: asyncio.run(create_database(postgres.uri)) for way in WAYS}
        asyncio.run(_prepare(urls["jobs"]))
        for clients in CLIENTS:
            runs = given.runs if clients > 1 else ONE_BY_ONE
            kept: dict[Way, list[Figures]] = {way: [] for way in WAYS}
            for number in range(given.rounds):
                for way in WAYS if number % 2 else WAYS[::-1]:
                    kept[way].append(one_round(urls[way], way, runs, clients))
            for way, figures in kept.items():
                print(f"| {clients} | {way} | {_shown(figures)} |", flush=True)


def _shown(rounds: list[Figures]) -> str:
    delays = sorted(delay for figures in rounds for delay in figures.delays_ms)
    rates = [figures.accepted_per_s for figures in rounds]
    spread = f"{statistics.median(rates):,.0f} ({min(rates):,.0f} – {max(rates):,.0f})"
    cpu = statistics.median(figures.cpu_ms for figures in rounds)
    middle, late = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    return f"{spread} | {middle:,.1f} ms | {late:,.1f} ms | {cpu:.1f} ms"


if __name__ == "__main__":
    main()

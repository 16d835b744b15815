"""asyncpg and psycopg 3 side by side: the transactions of a no-tool turn, on one PostgreSQL, in one process, in turns.

python -m pip install 'psycopg[binary]' && python -m bench.drivers [--rounds 200] [--latency-ms 0.5]

Decision 24 is made of these figures. psycopg is no dependency of Holdfast, so it has to be installed first. `pipelined`
waits only where the next statement depends on a result; a statement whose result nobody reads is sent and not waited
for, and so is BEGIN. Every cursor is kept for its statement, which saves psycopg an eighth of its CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

import asyncpg
import uvloop
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from tests.store.world import NOW, a_message, a_run, a_step, add_agent

from bench.postgres import new_database
from holdfast.core.changes import Change
from holdfast.core.messages import Message
from holdfast.core.records import Run, Step
from holdfast.errors import BugError
from holdfast.store import agents, journal, messages, runs, steps, threads
from holdfast.store.database import open_database
from holdfast.store.postgres_transaction import PostgresTransaction
from holdfast.store.statements import Compiler, Statement
from holdfast.store.transaction import Dialect, Job, Parameters, Row

psycopg: Any = importlib.import_module("psycopg")
_asyncpg: Any = asyncpg

COMPILER: Final = Compiler(PGDialect_psycopg(paramstyle="numeric_dollar"), insert)
AT_ONCE: Final = (1, 8, 32)
WARM_UP: Final = 8
SPEC_HASH: Final = "spec"
READ_ONLY: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
UNREAD: Final = {id(each) for each in (steps._SAVE, agents._RECORD_LAST_RUN, journal._APPEND)}

Transact = Callable[[Any, Job[Any], bool], Coroutine[Any, Any, Any]]


class _Row(dict[str, Any]):
    def __iter__(self) -> Any:
        return iter(self.values())


def _row_maker(cursor: Any) -> Callable[[Sequence[Any]], Any]:
    if cursor.description is None:
        return lambda values: values
    names = [column.name for column in cursor.description]
    return lambda values: _Row(zip(names, values, strict=True))


class PsycopgTransaction:
    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any, pipeline: Any = None) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self.changes: list[Change] = []

    async def execute(self, statement: Statement, parameters: Parameters | None = None) -> int:
        cursor = await self._run(statement, parameters or {})
        if self._pipeline is not None:
            if id(statement) in UNREAD:
                return 0
            await self._pipeline.sync()
        return cursor.rowcount

    async def execute_many(self, statement: Statement, parameters: Sequence[Parameters]) -> None:
        for each in parameters:
            await self._run(statement, each)

    async def execute_one(self, statement: Statement, parameters: Parameters) -> bool:
        return await self.execute(statement, parameters) == 1

    async def fetch_all(self, statement: Statement, parameters: Parameters | None = None) -> list[Row]:
        return await (await self._run(statement, parameters or {})).fetchall()

    async def fetch_one(self, statement: Statement, parameters: Parameters | None = None) -> Row | None:
        rows = await self.fetch_all(statement, parameters)
        return rows[0] if rows else None

    async def command(self, sql: str) -> None:
        sql, cursor = self._kept(sql)
        await cursor.execute(sql, prepare=False)

    async def _run(self, statement: Statement, parameters: Parameters) -> Any:
        sql, values = COMPILER.prepare(statement, parameters).bind(parameters)
        sql, cursor = self._kept(sql)
        return await cursor.execute(sql, values, prepare=True, binary=True)

    def _kept(self, sql: str) -> tuple[str, Any]:
        """A cursor remembers how to send and to read, as long as it is given the very same text."""
        known: dict[str, tuple[str, Any]] = self._connection.__dict__.setdefault("kept", {})
        if sql not in known:
            known[sql] = sql, psycopg.AsyncRawCursor(self._connection, row_factory=_row_maker)
        return known[sql]


async def with_asyncpg(connection: Any, job: Job[Any], read_only: bool) -> Any:
    tx = PostgresTransaction(connection, READ_ONLY if read_only else "BEGIN")
    result = await job(tx)
    await tx.commit()
    return result


async def with_psycopg(connection: Any, job: Job[Any], read_only: bool) -> Any:
    tx = PsycopgTransaction(connection)
    await tx.command(READ_ONLY if read_only else "BEGIN")
    result = await job(tx)
    await tx.command("COMMIT")
    return result


async def pipelined(connection: Any, job: Job[Any], read_only: bool) -> Any:
    async with connection.pipeline() as pipeline:
        tx = PsycopgTransaction(connection, pipeline)
        await tx.command(READ_ONLY if read_only else "BEGIN")
        result = await job(tx)
        await tx.command("COMMIT")
    return result


async def connect_asyncpg(url: str) -> Any:
    return await _asyncpg.connect(
        url, statement_cache_size=1_000, max_cached_statement_lifetime=0, server_settings={"jit": "off"}
    )


async def connect_psycopg(url: str) -> Any:
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0, options="-c jit=off")
    connection.prepared_max = 1_000
    return connection


class Turn(NamedTuple):
    run: Run
    step: Step
    asked: Message
    answered: Message

    @classmethod
    def of(cls, agent: str) -> Turn:
        run = a_run(agent, status="running", started_us=NOW, lease=1, lease_owner="bench")
        step = a_step(run)
        return cls(run, step, a_message(run_id=run.id), a_message(role="assistant", run_id=run.id, step_id=step.id))


def read(turn: Turn) -> Job[Any]:
    """Five selects, each of which waits for its rows."""

    async def job(tx: Any) -> None:
        for _ in range(5):
            await threads.system_digest(tx, turn.run.thread_id)

    return job


def accept(turn: Turn, end: int) -> Job[Any]:
    """As `actions/messages/send.py` does: 6 statements, 2 of which must affect a row."""

    async def job(tx: Any) -> None:
        await runs.insert(tx, turn.run, 15_000_000)
        await threads.extend(tx, turn.run.thread_id, end, 1, NOW, otherwise=BugError("the thread has moved"))
        await messages.insert_many(tx, turn.run.agent_id, [turn.asked])
        await threads.place(tx, turn.run.thread_id, [(end, turn.asked.id)])
        await journal.append_start(tx, turn.run.id, journal.START + "x" * 400, SPEC_HASH, NOW)
        await steps.save(tx, turn.step)

    return job


def checkpoint(turn: Turn) -> Job[Any]:
    """As `engine/checkpoint.py` does at the end of a run: 7 statements, of which one must affect a row and one has a
    result that is needed."""

    async def job(tx: Any) -> None:
        ended: dict[str, Any] = {"status": "completed", "stop_reason": "end_turn", "completed_us": NOW, "ttft_ns": 1}
        assert await runs.checkpoint(tx, turn.run, 1, unless_cancelling=True, **ended) == "ok"
        await journal.append(tx, turn.run.id, 2, ['{"event":"model_replied"' + "x" * 180], NOW)
        await steps.save(tx, turn.step)
        await messages.insert_many(tx, turn.run.agent_id, [turn.answered])
        first = await threads.reserve(tx, turn.run.thread_id, 1, NOW)
        await threads.place(tx, turn.run.thread_id, [(first, turn.answered.id)])
        await agents.record_last_run(tx, turn.run.agent_id, "end_turn", NOW, 1)

    return job


class Taken(NamedTuple):
    wall_s: float
    cpu_s: float  # of this process


async def timed(work: Sequence[Coroutine[Any, Any, Any]]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*work)
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


async def one_round(transact: Transact, lines: list[Any], agents: list[str], ends: dict[str, int]) -> dict[str, Taken]:
    turns = [Turn.of(agent) for agent in agents]
    pairs = list(zip(lines, turns, strict=False))
    taken = {
        "read": await timed([transact(line, read(turn), True) for line, turn in pairs]),
        "accept": await timed([transact(line, accept(turn, ends[turn.run.agent_id]), False) for line, turn in pairs]),
        "checkpoint": await timed([transact(line, checkpoint(turn), False) for line, turn in pairs]),
    }
    for agent in agents:
        ends[agent] += 2  # the question and the answer
    return taken


async def measure(url: str, rounds: int) -> None:
    database = await open_database(url)
    agents = [await add_agent(database) for _ in range(max(AT_ONCE))]
    await database.aclose()
    admin = await connect_asyncpg(url)
    await admin.execute("INSERT INTO specs (hash, spec, used_us) VALUES ($1, '{}', 0)", SPEC_HASH)
    ends: dict[str, int] = dict(await admin.fetch("SELECT id, next_position FROM threads"))
    drivers: dict[str, tuple[Transact, list[Any]]] = {
        "asyncpg": (with_asyncpg, [await connect_asyncpg(url) for _ in agents]),
        "psycopg": (with_psycopg, [await connect_psycopg(url) for _ in agents]),
        "pipelined": (pipelined, [await connect_psycopg(url) for _ in agents]),
    }
    print("| transaction | at once | asyncpg, wall / CPU each | psycopg | psycopg, pipelined |\n|---|---|---|---|---|")
    for count in AT_ONCE:
        kept: dict[str, list[dict[str, Taken]]] = {name: [] for name in drivers}
        names = list(drivers)
        for number in range(WARM_UP + max(WARM_UP, rounds // min(count, 8))):
            for name in names[number % 3 :] + names[: number % 3]:
                taken = await one_round(*drivers[name], agents[:count], ends)
                if number >= WARM_UP:
                    kept[name].append(taken)
        for what in ("read", "accept", "checkpoint"):
            print(f"| {what} | {count} | " + " | ".join(_shown(kept, name, what, count) for name in names) + " |")
    for _, lines in drivers.values():
        for line in lines:
            await line.close()
    await admin.close()


def _shown(kept: dict[str, list[dict[str, Taken]]], name: str, what: str, count: int) -> str:
    mine, base = [taken[what] for taken in kept[name]], [taken[what] for taken in kept["asyncpg"]]
    wall, cpu = (statistics.median(column) * 1e3 / count for column in zip(*mine, strict=True))
    if name == "asyncpg":
        return f"{wall:.2f} / {cpu:.2f} ms"
    ratios = [
        statistics.median(one[index] / other[index] for one, other in zip(mine, base, strict=True)) for index in (0, 1)
    ]
    return f"× {ratios[0]:.2f} / × {ratios[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drivers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="with one at a time; fewer with many")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="each way, between the driver and PostgreSQL")
    given = parser.parse_args()
    with new_database(given.latency_ms) as url:
        uvloop.run(measure(url, given.rounds))


if __name__ == "__main__":
    main()

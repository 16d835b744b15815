"""Rows that a test needs before it can say what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import asyncpg

from holdfast import ids
from holdfast.core.messages import Message, Role, Text
from holdfast.core.records import Run, RunStatus, Step, Thread
from holdfast.store import messages, runs, steps, threads
from holdfast.store.statements import insert_into
from holdfast.store.tables import agents
from holdfast.store.transaction import Database, Transaction

_driver: Any = asyncpg
NOW = 1_790_000_000_000_000
_AGENT = insert_into(agents)


async def call(database: Database, function: Callable[..., Coroutine[Any, Any, Any]], *given: Any, **named: Any) -> Any:
    """One store function as one write transaction."""

    async def job(tx: Transaction) -> Any:
        return await function(tx, *given, **named)

    return await database.write(job)


async def look(database: Database, function: Callable[..., Coroutine[Any, Any, Any]], *given: Any, **named: Any) -> Any:
    """One store function as one read."""

    async def job(tx: Transaction) -> Any:
        return await function(tx, *given, **named)

    return await database.read(job)


async def add_agent(database: Database, *, created_us: int = NOW) -> str:
    """An agent with its default thread."""
    agent_id = ids.new("agent")

    async def job(tx: Transaction) -> None:
        await tx.execute(
            _AGENT,
            {
                "id": agent_id,
                "name": "ada",
                "agent_type": "letta_v1_agent",
                "system": "Be brief.",
                "model": '{"handle":"openai/gpt-4o","context_window":64000}',
                "tool_rules": "[]",
                "compaction": "{}",
                "timezone": "UTC",
                "message_buffer_autoclear": False,
                "created_us": created_us,
                "updated_us": created_us,
            },
        )
        await threads.insert(tx, Thread(id=agent_id, agent_id=agent_id, created_us=created_us, updated_us=created_us))

    await database.write(job)
    return agent_id


async def add_conversation(database: Database, agent_id: str, **fields: Any) -> str:
    known: dict[str, Any] = {"id": ids.new("conv"), "agent_id": agent_id, "created_us": NOW, "updated_us": NOW}
    thread = Thread(**known | fields)
    await call(database, threads.insert, thread)
    return thread.id


def a_run(agent_id: str, thread_id: str | None = None, **fields: Any) -> Run:
    known: dict[str, Any] = {
        "id": ids.new("run"),
        "agent_id": agent_id,
        "thread_id": thread_id or agent_id,
        "status": "created",
        "created_us": NOW,
    }
    return Run(**known | fields)


async def add_run(database: Database, agent_id: str, thread_id: str | None = None, **fields: Any) -> Run:
    run = a_run(agent_id, thread_id, **fields)
    await call(database, runs.insert, run)
    return run


async def end_run(database: Database, run: Run, status: RunStatus = "completed", **fields: Any) -> None:
    given = {"stop_reason": "end_turn", "completed_us": NOW + 1, "unless_cancelling": False} | fields
    number = run.checkpoints + 1
    assert await call(database, runs.checkpoint, run, number, status=status, **given) == "ok"


def a_step(run: Run, number: int = 1, **fields: Any) -> Step:
    known: dict[str, Any] = {
        "id": ids.derive("step", run.id, number),
        "run_id": run.id,
        "agent_id": run.agent_id,
        "number": number,
        "status": "pending",
        "model_handle": "openai/gpt-5",
        "context_window_limit": 32_000,
        "created_us": NOW + number,
    }
    return Step(**known | fields)


async def add_step(database: Database, run: Run, number: int = 1, **fields: Any) -> Step:
    step = a_step(run, number, **fields)
    await call(database, steps.save, step)
    return step


def a_message(text: str = "hello", role: Role = "user", **fields: Any) -> Message:
    known: dict[str, Any] = {"id": ids.new("message"), "role": role, "parts": (Text(text),), "created_us": NOW}
    return Message(**known | fields)


async def say(database: Database, thread_id: str, agent_id: str, said: Sequence[Message]) -> list[str]:
    """Append messages to a thread."""

    async def job(tx: Transaction) -> None:
        await messages.insert_many(tx, agent_id, said)
        await threads.append(tx, thread_id, [message.id for message in said])

    await database.write(job)
    return [message.id for message in said]


Fetch = Callable[..., Awaitable[Sequence[Any]]]


async def walk(fetch: Fetch, *, before: str | None = None, rounds: int = 200) -> list[str]:
    """Iterate as letta-client does: until a page is empty, by `after` the last id, or by `before` the first."""
    seen: list[str] = []
    cursor: dict[str, str] = {} if before is None else {"before": before}
    for _ in range(rounds):
        page = await fetch(**cursor)
        if not page:
            return seen
        page_ids = [item.id for item in page]
        if before is None:
            seen.extend(page_ids)
            cursor = {"after": page_ids[-1]}
        else:
            seen[:0] = page_ids
            cursor = {"before": page_ids[0]}
    raise AssertionError("the list never came to its end")


async def until_somebody_waits(url: str, write: asyncio.Task[object]) -> None:
    """For a lock of PostgreSQL, or the write has ended without."""
    connection = await _driver.connect(url)
    try:
        while not write.done():
            if await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                return
            await asyncio.sleep(0.01)
    finally:
        await connection.close()

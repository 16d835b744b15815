"""How a turn grows with what is stored and with what is in context. Histories go straight into the database."""

from __future__ import annotations

import statistics
from pathlib import Path

from bench.client import Client
from bench.process import Server
from bench.sections import Row, at_most, model_s
from bench.socket_client import Line
from holdfast import ids
from holdfast.core.messages import Message, Text, Turn
from holdfast.store import messages, threads
from holdfast.store.database import open_database
from holdfast.store.transaction import Transaction


async def history(data_dir: Path) -> list[Row]:
    with Server(data_dir) as server:
        async with Client(server.url) as client:
            small, long, wide = [await client.agent() for _ in range(3)]
    database = await open_database(f"sqlite:///{data_dir}/holdfast.db")
    for agent, stored, in_context in ((small, 100, 100), (long, 100_000, 100), (wide, 2_000, 2_000)):
        for first in range(0, stored, 5_000):
            count = min(5_000, stored - first)
            kept = max(0, in_context - (stored - first - count))
            await database.write(lambda tx, a=agent, n=count, k=kept: _fill(tx, a, n, k))
    await database.aclose()
    with Server(data_dir) as server, Line(server.url) as line:
        taken = {agent: [line.turn(agent) for _ in range(25)] for agent in (small, long, wide)}
    said = tuple(Turn("user" if number % 2 == 0 else "assistant", row.parts) for number, row in enumerate(_rows(2_000)))
    floor = statistics.median(model_s("hello", said) for _ in range(50)) * 1e3
    base, much, full = (statistics.median(taken[agent]) * 1e3 for agent in (small, long, wide))
    return [
        at_most("turn with 100,000 stored, 100 in context, against 100 stored", much / base, "×", 1.2),
        at_most("turn with 2,000 messages in context, overhead p50", full - floor, "ms", 30, "1,080 ms"),
    ]


def _rows(count: int) -> list[Message]:
    return [
        Message(
            id=ids.new("message"),
            role="user" if number % 2 == 0 else "assistant",
            parts=(Text(f"message number {number} of a long conversation about nothing much"),),
            created_us=number,
            model="holdfast/offline",
        )
        for number in range(count)
    ]


async def _fill(tx: Transaction, agent: str, count: int, in_context: int) -> None:
    rows = _rows(count)
    await messages.insert_many(tx, agent, rows)
    await threads.append(tx, agent, [row.id for row in rows])
    gone = [row.id for row in rows[: max(0, count - in_context)]]
    if gone:
        await threads.replace_window(tx, agent, gone)

"""Export and import of an agent with 2,000 messages in its context window, through the API of a server on SQLite.

The floor is what cannot be left out: the JSON of the file is read and written, and its rows are put into SQLite and
read back, by nothing but msgspec and sqlite3 in this process.
"""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench.calibration import Gauge
from bench.client import Client
from bench.process import Server
from bench.sections import Row, at_most

MESSAGES: Final = 2_000
TIMES: Final = 15


async def agent_files(data_dir: Path) -> list[Row]:
    gauge = Gauge()
    with Server(data_dir) as server:
        async with Client(server.url) as client:
            agent = (await _imported(client, _file()))["agent_ids"][0]
            text = await client.text(f"/agents/{agent}/export")
            for number in range(TIMES):
                await gauge.take_awaited("export", partial(_timed, client.text, f"/agents/{agent}/export"))
                await gauge.take_awaited("import", partial(_timed, _imported, client, text))
                gauge.take("export floor", partial(_export_floor, data_dir / f"{number}.db", text), 1)
                gauge.take("import floor", partial(_import_floor, data_dir / f"{number}.db", text), 1)
    return [
        row
        for name, goal in (("export", 150.0), ("import", 300.0))
        for row in (
            at_most(f"{name} of an agent with {MESSAGES:,} messages, p50", gauge.median_ms(name), "ms", goal),
            at_most(f"{name}: JSON and rows alone, p50", gauge.median_ms(f"{name} floor"), "ms", goal),
        )
    ]


def _file() -> bytes:
    """A conversation with a tool call in every other turn."""
    rows: list[dict[str, Any]] = [{"role": "system", "content": "You answer."}]
    while len(rows) < MESSAGES:
        number = len(rows)
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
        rows += [
            {"role": "user", "content": f"question {number}, of some sixty characters, as people ask them"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}], "tool_calls": [call]},
            {"role": "tool", "content": [], "tool_returns": [{"tool_call_id": call["id"], "func_response": "fine"}]},
            {"role": "assistant", "content": f"answer {number}, which says a little more than was asked for"},
        ]
    messages = [{**row, "id": f"message-{number}"} for number, row in enumerate(rows[:MESSAGES])]
    config = {"model": "offline", "handle": "holdfast/offline"}
    agent = {"id": "agent-0", "name": "bench", "system": "You answer.", "llm_config": config, "messages": messages}
    return msgspec.json.encode({"agents": [agent]})


async def _imported(client: Client, text: bytes) -> Any:
    form = aiohttp.FormData()
    form.add_field("file", text, filename="bench.af")
    return await client.call("POST", "/agents/import", form=form)


async def _timed(work: Any, *arguments: Any) -> float:
    began = time.perf_counter()
    await work(*arguments)
    return time.perf_counter() - began


def _import_floor(path: Path, text: bytes) -> float:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE messages (id TEXT PRIMARY KEY, parts TEXT)")
        began = time.perf_counter()
        messages = msgspec.json.decode(text)["agents"][0]["messages"]
        rows = [(each["id"], msgspec.json.encode(each["content"]).decode()) for each in messages]
        database.executemany("INSERT INTO messages VALUES (?, ?)", rows)
        database.commit()
    return time.perf_counter() - began


def _export_floor(path: Path, text: bytes) -> float:
    _import_floor(path, text)
    with sqlite3.connect(path) as database:
        began = time.perf_counter()
        rows = database.execute("SELECT id, parts FROM messages").fetchall()
        for _, parts in rows:
            msgspec.json.decode(parts)
        msgspec.json.format(msgspec.json.encode(msgspec.json.decode(text)), indent=2)
    return time.perf_counter() - began

"""A real server under load is killed with SIGKILL, again and again, at any moment. Nothing accepted may be lost.

Two hundred kills, spread over four servers so that they can be had in parallel. Each has its own seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.messages import ToolCall
from holdfast.store.database import open_database
from tests.invariants import Snapshot, assert_invariants
from tests.serving import ServerProcess

from .load import TALLY, Client, Tally

KILLS = 50
SEEDS = range(4)
CLIENTS = 4
LOOK_EVERY = 10  # kills: the database is read as the dead server left it
LONGEST_LIVES_S = (0.1, 0.4, 1.0)  # before it is fully awake, hardly awake, at work
SETTLE_S = 120.0

pytestmark = [pytest.mark.kill9, pytest.mark.timeout(1_800)]


async def read_database(server: ServerProcess, *, idle: bool) -> Snapshot:
    database = await open_database(f"sqlite:///{server.data_dir}/holdfast.db")
    try:
        return await assert_invariants(database, idle=idle)
    finally:
        await database.aclose()


async def make_tools(server: ServerProcess) -> list[str]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        made: list[str] = []
        for name in ("mark", "ask"):
            body = {"source_code": TALLY.format(name=name), "default_requires_approval": name == "ask"}
            answer = await http.post("/v1/tools/", json=body)
            assert answer.status_code == 200, answer.text
            made.append(answer.json()["id"])
        return made


async def kill_again_and_again(server: ServerProcess, chance: random.Random) -> None:
    for kill in range(1, KILLS + 1):
        longest_s = chance.choice(LONGEST_LIVES_S)
        await asyncio.sleep(chance.uniform(0.0, longest_s))  # how long this one lives is what is being tested
        await asyncio.to_thread(server.kill)
        if kill % LOOK_EVERY == 0:
            await read_database(server, idle=False)
        await asyncio.to_thread(server.start)


async def wait_until_idle(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http, asyncio.timeout(SETTLE_S):
        while True:
            active = await http.get("/v1/runs/", params={"active": "true"})
            if not active.json():
                return
            await asyncio.sleep(0.05)  # over a socket there is nothing else to wait for


async def check_replays(server: ServerProcess, run_ids: list[str]) -> None:
    """The stream of every background run can still be read whole, from its beginning and from its middle."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        for run_id in run_ids:
            whole = await replay(http, run_id, 0)
            kinds = [event.get("message_type") for event in whole]
            assert kinds.count("stop_reason") == 1, kinds
            assert kinds[-2] == "stop_reason", kinds
            numbers = [event["seq_id"] for event in whole if event.get("seq_id") is not None]
            assert numbers == sorted(numbers)
            middle = numbers[len(numbers) // 2]
            assert await replay(http, run_id, middle) == [e for e in whole if (e.get("seq_id") or middle + 1) > middle]


async def replay(http: httpx.AsyncClient, run_id: str, after: int) -> list[dict[str, Any]]:
    body = {"starting_after": after, "include_pings": False}
    answer = await http.post(f"/v1/runs/{run_id}/stream", json=body)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", answer.text[-500:]
    return [httpx.Response(200, text=line).json() for line in lines[:-1]]


def check_requests(snapshot: Snapshot, clients: list[Client]) -> None:
    """Every request that was answered is there, once."""
    stored = Counter(row.otid for row in snapshot.messages.values() if row.otid)
    for client in clients:
        assert client.sent, "a client never got through"
        for sent in client.sent:
            assert stored[sent.otid] == 1, f"{sent.otid} is stored {stored[sent.otid]} times"
            assert sent.run_id is None or sent.run_id in snapshot.runs


def check_marks(snapshot: Snapshot, tally: Tally) -> None:
    """No tool ran twice, and none is said to have run that did not."""
    twice = {key: count for key, count in tally.marks.items() if count > 1}
    assert not twice
    calls: dict[str, ToolCall] = {call.id: call for row in snapshot.messages.values() for call in row.calls}
    succeeded = [part for row in snapshot.messages.values() for part in row.returns if part.status == "success"]
    assert len(succeeded) >= CLIENTS, "not even those that nobody disturbed ran to their end"
    for part in succeeded:
        key = str(part.content).removeprefix("marked ")
        assert tally.marks[key] == 1, f"{calls[part.call_id]} did not leave its mark"


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_server_that_is_killed_again_and_again_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    tally, chance = Tally(), random.Random(seed)
    server = ServerProcess(tmp_path, HOLDFAST_LOG_LEVEL="WARNING")
    async with tally.listening():
        await asyncio.to_thread(server.start)
        try:
            tool_ids = await make_tools(server)
            clients = [Client(server.url, tally, seed * CLIENTS + number) for number in range(CLIENTS)]
            for client in clients:
                await client.set_up(tool_ids)
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as busy:
                for client in clients:
                    busy.create_task(client.keep_busy(stop))
                await kill_again_and_again(server, chance)
                stop.set()
            await wait_until_idle(server)
            await check_replays(server, [run_id for client in clients for run_id in client.background])
        finally:
            await asyncio.to_thread(server.stop)
    assert "Traceback" not in server.read_log(), server.read_log()
    snapshot = await read_database(server, idle=True)
    check_requests(snapshot, clients)
    check_marks(snapshot, tally)

"""SIGTERM: what can finish finishes, what cannot is handed over, and whoever was listening hears a proper end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.rows import OUTCOME_UNKNOWN
from holdfast.store.database import open_database
from tests.invariants import assert_invariants
from tests.served import served
from tests.serving import ServerProcess

from . import fleet
from .load import TALLY, Tally

SLOW = "Hello [[no_reasoning]] [[tokens:60]] [[delay:0.02]]"
TOO_SLOW = "Hello [[no_reasoning]] [[tokens:200]] [[delay:0.04]]"  # to be over before the server is


class Listener:
    """Reads one stream to its end."""

    def __init__(self, http: httpx.AsyncClient, agent_id: str, text: str, **options: Any) -> None:
        self.events: list[Any] = []
        self.begun = asyncio.Event()
        self._http = http
        self._path = f"/v1/agents/{agent_id}/messages/stream"
        self._body = {"input": text, "include_pings": True, **options}

    async def read(self) -> None:
        async with self._http.stream("POST", self._path, json=self._body) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = line.removeprefix("data: ")
                    self.events.append(event if event == "[DONE]" else json.loads(event))
                if len(self.events) > 3:
                    self.begun.set()

    @property
    def run_id(self) -> str:
        return str(self.events[0]["run_id"])


@asynccontextmanager
async def running_server(directory: Path, drain_s: float) -> AsyncGenerator[tuple[ServerProcess, httpx.AsyncClient]]:
    server = ServerProcess(directory, HOLDFAST_DRAIN_S=str(drain_s))
    await asyncio.to_thread(server.start)
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            yield server, http
    finally:
        await asyncio.to_thread(server.stop)


async def make_agent(http: httpx.AsyncClient, **fields: Any) -> str:
    body = {"model": "holdfast/offline", "include_base_tools": False, **fields}
    return str((await http.post("/v1/agents/", json=body)).json()["id"])


async def check_database(directory: Path, *, idle: bool) -> None:
    database = await open_database(f"sqlite:///{directory}/holdfast.db")
    try:
        await assert_invariants(database, idle=idle)
    finally:
        await database.aclose()


async def wait_for_end(http: httpx.AsyncClient, run_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            run = (await http.get(f"/v1/runs/{run_id}")).json()
            if run["status"] not in ("created", "running"):
                return run
            await asyncio.sleep(0.05)  # over a socket there is nothing else to wait for


async def test_a_run_that_can_finish_in_time_does_and_its_listener_hears_the_end(tmp_path: Path) -> None:
    async with running_server(tmp_path, drain_s=20) as (server, http):
        agent_id = await make_agent(http)
        listener = Listener(http, agent_id, SLOW, stream_tokens=True)
        reading = asyncio.create_task(listener.read())
        await listener.begun.wait()
        await asyncio.to_thread(server.stop)
        await reading
    assert listener.events[-1] == "[DONE]"
    assert [event["message_type"] for event in listener.events[-3:-1]] == ["stop_reason", "usage_statistics"]
    assert listener.events[-3]["stop_reason"] == "end_turn"
    await check_database(tmp_path, idle=True)


async def test_a_run_that_cannot_finish_is_handed_over_and_carried_on_after_the_restart(tmp_path: Path) -> None:
    async with running_server(tmp_path, drain_s=0.2) as (server, http):
        agents = [await make_agent(http) for _ in range(2)]
        listeners = [
            Listener(http, agent_id, TOO_SLOW, stream_tokens=True, background=background)
            for agent_id, background in zip(agents, (False, True), strict=True)
        ]
        reading = [asyncio.create_task(listener.read()) for listener in listeners]
        for listener in listeners:
            await listener.begun.wait()
        await asyncio.to_thread(server.stop)
        await asyncio.gather(*reading)
        await check_database(tmp_path, idle=False)
        await asyncio.to_thread(server.start)
        for listener in listeners:
            assert "stop_reason" not in [event["message_type"] for event in listener.events if event != "[DONE]"]
            run = await wait_for_end(http, listener.run_id)
            assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        replayed = await http.post(f"/v1/runs/{listeners[1].run_id}/stream", json={"starting_after": 0})
        assert replayed.text.count('"message_type":"stop_reason"') == 1
        assert replayed.text.endswith("data: [DONE]\n\n")
    await check_database(tmp_path, idle=True)


async def test_a_tool_cut_off_by_the_shutdown_is_not_run_again_and_the_model_is_told(tmp_path: Path) -> None:
    tally = Tally()
    async with tally.listening(), running_server(tmp_path, drain_s=0.2) as (server, http):
        tool = await http.post("/v1/tools/", json={"source_code": TALLY.format(name="mark")})
        agent_id = await make_agent(http, tool_ids=[tool.json()["id"]])
        given = json.dumps({"port": tally.port, "key": "once", "pause": 60})
        body = {"messages": [{"role": "user", "content": f"[[call:mark {given}]]"}]}
        run_id = (await http.post(f"/v1/agents/{agent_id}/messages/async", json=body)).json()["id"]
        await asyncio.wait_for(tally.marked.wait(), 60)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert (await wait_for_end(http, run_id))["status"] == "completed"
        rows = (await http.get(f"/v1/runs/{run_id}/messages")).json()
        returned = [row["tool_return"] for row in rows if row["message_type"] == "tool_return_message"]
        assert returned == [OUTCOME_UNKNOWN]
    assert tally.marks == {"once": 1}
    await check_database(tmp_path, idle=True)


@pytest.mark.parametrize("drain_s", [0.2, 1.0])
async def test_a_blocking_request_that_the_shutdown_cuts_short_is_answered_503(tmp_path: Path, drain_s: float) -> None:
    """Not by a bare 500 of the web server, whose own time for open requests must not run out first."""
    async with running_server(tmp_path, drain_s=drain_s) as (server, http):
        agents = [await make_agent(http) for _ in range(4)]
        asking = [
            asyncio.create_task(http.post(f"/v1/agents/{agent_id}/messages", json={"input": TOO_SLOW}))
            for agent_id in agents
        ]
        await fleet.wait_until_busy(server.url, len(agents))
        await asyncio.to_thread(server.stop)
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [503] * len(agents), answers[0].text
        assert "Traceback" not in server.read_log()


async def test_a_server_that_is_stopping_refuses_new_work_with_a_sentence(tmp_path: Path) -> None:
    async with served(tmp_path, drain_s=30) as client:
        agent = await client.agent()
        listener = Listener(client.http, agent.id, "Hi [[tokens:100]] [[delay:0.01]]", stream_tokens=True)
        reading = asyncio.create_task(listener.read())
        await listener.begun.wait()
        draining = asyncio.create_task(client.deps.worker.drain())
        await asyncio.sleep(0)
        other = await client.agent()
        for path in ("", "/stream", "/async"):
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            answer = await client.http.post(f"/v1/agents/{other.id}/messages{path}", json=body)
            assert answer.status_code == 503
            assert "shutting down" in answer.json()["detail"]
        await reading
        await draining
        assert listener.events[-3]["stop_reason"] == "end_turn"
        await assert_invariants(client.deps.database, idle=True)

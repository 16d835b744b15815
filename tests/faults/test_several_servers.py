"""Two and three servers on one PostgreSQL: one finishes what another cannot, and messages wait for busy threads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from . import fleet
from .fleet import Fleet
from .paid_model import PaidModel
from .tally import Tally

LEASE_S = "1"
LONG_S = 120.0  # until a tool ends that nobody ends before
SLOW = "Hi [[no_reasoning]] [[tokens:60]] [[delay:0.03]]"
ANSWERS = 20

pytestmark = pytest.mark.timeout(180)


async def begin_on_each(servers: Fleet, tally: Tally, model: PaidModel, pauses: Sequence[float]) -> list[str]:
    """On every server a run whose model has begun to reply and waits, and one whose tool pauses for so many seconds."""
    (mark, _), runs = await fleet.make_tools(servers.urls[0]), list[str]()
    for number, (url, pause) in enumerate(zip(servers.urls, pauses, strict=True)):
        model.answering.clear()
        runs.append(await fleet.begin(url, await fleet.make_agent(url, model=model.handle), "Hello"))
        await asyncio.wait_for(model.answering.wait(), 60)
        agent_id = await fleet.make_agent(url, tool_ids=[mark])
        tally.marked.clear()
        runs.append(await fleet.begin(url, agent_id, tally.message("mark", f"tool-{number}", pause)))
        await asyncio.wait_for(tally.marked.wait(), 60)
    return runs


@pytest.mark.parametrize(("size", "killed"), [(2, 1), (3, 2)], ids=["one of two", "two of three"])
async def test_runs_of_killed_servers_are_finished_by_those_that_are_left_and_no_tool_runs_twice(
    tmp_path: Path, postgres_url: str, size: int, killed: int
) -> None:
    tally, model = Tally(), PaidModel()
    async with (
        tally.listening(),
        model.listening(),
        fleet.running(
            tmp_path, postgres_url, size, [model.environment] * size, HOLDFAST_LEASE_TTL_S=LEASE_S
        ) as servers,
    ):
        runs = await begin_on_each(servers, tally, model, [LONG_S] * killed + [0.0] * (size - killed))
        for server in servers.servers[:killed]:
            await asyncio.to_thread(server.kill)
        model.let_go.set()
        ends = [await fleet.wait_for_end(servers.urls[-1], run_id) for run_id in runs]
        servers.check_alive()
        assert [end["status"] for end in ends] == ["completed"] * len(runs)
        snapshot = await servers.read_database(idle=True)
        assert sum(run.lease > 1 for run in snapshot.runs.values()) >= 2 * killed, "runs have changed their owner"
        fleet.check_marks(snapshot, tally, at_least=1)
        assert tally.marks == {f"tool-{number}": 1 for number in range(size)}
        servers.check_logs()


async def test_a_server_that_was_stopped_for_longer_than_its_lease_writes_nothing_afterwards(
    tmp_path: Path, postgres_url: str
) -> None:
    tally, model = Tally(), PaidModel()
    async with (
        tally.listening(),
        model.listening(),
        fleet.running(tmp_path, postgres_url, 2, [model.environment] * 2, HOLDFAST_LEASE_TTL_S=LEASE_S) as servers,
    ):
        stopped, other = servers.servers
        runs = await begin_on_each(servers, tally, model, [LONG_S, 0.0])
        stopped.pause()
        model.let_go.set()
        for run_id in runs:
            await fleet.wait_for_end(other.url, run_id)
        before = await servers.read_database(idle=True)
        stopped.resume()
        await fleet.get(stopped.url, "/v1/ready/")
        await asyncio.sleep(2 * float(LEASE_S))  # in which it would write, if it did
        after = await servers.read_database(idle=True)
        assert (after.runs, after.messages, after.journals) == (before.runs, before.messages, before.journals)
        assert after.frames == before.frames
        assert [run.status for run in after.runs.values()] == ["completed"] * len(runs)
        assert all(count == 1 for count in tally.marks.values())
        servers.check_alive()


async def test_a_blocking_message_waits_for_a_thread_that_is_busy_on_another_server(
    tmp_path: Path, postgres_url: str
) -> None:
    async with fleet.running(tmp_path, postgres_url, 2, HOLDFAST_QUEUE_WAIT_S="30") as servers:
        busy, other = servers.urls
        agent_id = await fleet.make_agent(busy)
        run_id = await fleet.begin(busy, agent_id, SLOW)
        answer = await fleet.send(other, agent_id, "And I? [[say:Now you.]]")
        assert answer.status_code == 200, answer.text
        assert "Now you." in answer.text
        assert (await fleet.wait_for_end(busy, run_id))["status"] == "completed"
        await servers.read_database(idle=True)


async def test_a_blocking_message_is_refused_with_409_when_a_thread_stays_busy_on_another_server(
    tmp_path: Path, postgres_url: str
) -> None:
    async with fleet.running(tmp_path, postgres_url, 2, HOLDFAST_QUEUE_WAIT_S="0.3") as servers:
        busy, other = servers.urls
        agent_id = await fleet.make_agent(busy)
        run_id = await fleet.begin(busy, agent_id, "Hi [[stall]]")
        async with httpx.AsyncClient(base_url=other, timeout=60) as http:
            answer = await http.post(f"/v1/agents/{agent_id}/messages", json={"input": "And I?"})
            cancelled = await http.post(f"/v1/agents/{agent_id}/messages/cancel", json={})
        assert answer.status_code == 409
        assert cancelled.status_code == 200
        assert (await fleet.wait_for_end(busy, run_id))["status"] == "cancelled"


async def park(servers: Fleet, tally: Tally, key: str) -> tuple[str, str]:
    """An agent on the first server that waits for an approval. It and the call it asks for."""
    _, ask = await fleet.make_tools(servers.urls[0])
    agent_id = await fleet.make_agent(servers.urls[0], tool_ids=[ask])
    run_id = await fleet.begin(servers.urls[0], agent_id, tally.message("ask", key))
    assert (await fleet.wait_for_end(servers.urls[0], run_id))["stop_reason"] == "requires_approval"
    shown = await fleet.get(servers.urls[-1], f"/v1/agents/{agent_id}", include="agent.pending_approval")
    return agent_id, shown["pending_approval"]["tool_calls"][0]["tool_call_id"]


async def answer_approval(url: str, agent_id: str, call_id: str, *, approve: bool) -> httpx.Response:
    decision = {"type": "approval", "approve": approve, "tool_call_id": call_id}
    body: dict[str, Any] = {"messages": [{"type": "approval", "approvals": [decision]}]}
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        return await http.post(f"/v1/agents/{agent_id}/messages", json=body)


async def test_an_approval_that_one_server_asks_for_can_be_answered_through_another(
    tmp_path: Path, postgres_url: str
) -> None:
    tally = Tally()
    async with tally.listening(), fleet.running(tmp_path, postgres_url, 2) as servers:
        agent_id, call_id = await park(servers, tally, "asked")
        await asyncio.to_thread(servers.servers[0].kill)
        answer = await answer_approval(servers.urls[1], agent_id, call_id, approve=True)
        assert answer.status_code == 200, answer.text
        assert "marked asked" in answer.text
        await servers.read_database(idle=True)
    assert tally.marks == {"asked": 1}


async def test_of_many_answers_to_one_approval_through_two_servers_exactly_one_wins(
    tmp_path: Path, postgres_url: str
) -> None:
    tally = Tally()
    async with tally.listening(), fleet.running(tmp_path, postgres_url, 2) as servers:
        agent_id, call_id = await park(servers, tally, "asked")
        answers = await asyncio.gather(
            *(
                answer_approval(servers.urls[number % 2], agent_id, call_id, approve=number // 2 % 2 == 0)
                for number in range(ANSWERS)
            )
        )
        statuses = Counter(answer.status_code for answer in answers)
        assert set(statuses) <= {200, 400, 409}, statuses
        await fleet.wait_until_idle(servers.urls[0])
        snapshot = await servers.read_database(idle=True)
        (hold,) = snapshot.holds.values()
        returns = [part for row in snapshot.messages.values() for part in row.returns if part.call_id == call_id]
        assert hold.decided_by_run is not None
        assert len(returns) == 1
        approved = returns[0].status == "success"
        servers.check_alive()
    assert tally.marks == ({"asked": 1} if approved else {})

"""SIGTERM: runs that can finish in the drain time do, others are carried on after a restart, and clients are told."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from holdfast.core.transitions import OUTCOME_UNKNOWN
from tests.invariants import assert_invariants
from tests.served import served

from . import fleet
from .listening import sending
from .tally import Tally

SLOW = "Hello [[no_reasoning]] [[tokens:60]] [[delay:0.02]]"
TOO_SLOW = "Hello [[no_reasoning]] [[tokens:200]] [[delay:0.04]]"  # to be over before the server is


async def test_a_run_that_can_finish_in_the_drain_time_does_and_its_stream_ends_with_the_stop_reason(
    tmp_path: Path,
) -> None:
    async with fleet.running(tmp_path, None, HOLDFAST_DRAIN_S="40") as servers:
        url = servers.urls[0]
        listener = sending(url, await fleet.make_agent(url), SLOW)
        reading = asyncio.create_task(listener.read())
        await listener.begun.wait()
        await servers.stop()
        await reading
        assert listener.events[-1] == "[DONE]"
        assert listener.kinds[-2:] == ["stop_reason", "usage_statistics"]
        assert listener.events[-3]["stop_reason"] == "end_turn"
        await servers.read_database(idle=True)


async def test_a_run_that_cannot_finish_in_the_drain_time_is_carried_on_after_the_restart(tmp_path: Path) -> None:
    async with fleet.running(tmp_path, None, HOLDFAST_DRAIN_S="0.2") as servers:
        url = servers.urls[0]
        listeners = [
            sending(url, await fleet.make_agent(url), TOO_SLOW, background=background) for background in (False, True)
        ]
        reading = [asyncio.create_task(listener.read()) for listener in listeners]
        for listener in listeners:
            await listener.begun.wait()
        await servers.stop()
        await asyncio.gather(*reading)
        await servers.read_database(idle=False)
        await servers.start()
        for listener in listeners:
            assert "stop_reason" not in listener.kinds
            run = await fleet.wait_for_end(url, listener.run_id)
            assert (run["status"], run["stop_reason"]) == ("completed", "end_turn")
        await fleet.check_replays(url, [listeners[1].run_id])
        await servers.read_database(idle=True)


async def test_a_tool_that_the_shutdown_ends_is_not_run_again_and_the_model_is_told(tmp_path: Path) -> None:
    tally = Tally()
    async with tally.listening(), fleet.running(tmp_path, None, HOLDFAST_DRAIN_S="0.2") as servers:
        url = servers.urls[0]
        mark, _ = await fleet.make_tools(url)
        agent_id = await fleet.make_agent(url, tool_ids=[mark])
        run_id = await fleet.begin(url, agent_id, tally.message("mark", "once", pause=60))
        await asyncio.wait_for(tally.marked.wait(), 60)
        await servers.stop()
        await servers.start()
        assert (await fleet.wait_for_end(url, run_id))["status"] == "completed"
        rows = await fleet.get(url, f"/v1/runs/{run_id}/messages")
        returned = [row["tool_return"] for row in rows if row["message_type"] == "tool_return_message"]
        assert returned == [OUTCOME_UNKNOWN]
        await servers.read_database(idle=True)
    assert tally.marks == {"once": 1}


@pytest.mark.parametrize("drain_s", [0.2, 1.0])
async def test_a_blocking_request_that_the_shutdown_cuts_short_is_answered_503(tmp_path: Path, drain_s: float) -> None:
    """Not by a bare 500 of the web server, whose own time for open requests must not run out first."""
    async with fleet.running(tmp_path, None, HOLDFAST_DRAIN_S=str(drain_s)) as servers:
        url = servers.urls[0]
        agents = [await fleet.make_agent(url) for _ in range(4)]
        asking = [asyncio.create_task(fleet.send(url, agent_id, "Hello [[stall]]")) for agent_id in agents]
        await fleet.wait_until_busy(url, len(agents))
        await servers.stop()
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [503] * len(agents), answers[0].text
        servers.check_logs()


async def test_a_server_that_is_told_to_stop_is_unready_and_serves_everybody_until_others_have_noticed(
    tmp_path: Path,
) -> None:
    async with fleet.running(tmp_path, None, HOLDFAST_UNREADY_S="3") as servers:
        url, agent_id = servers.urls[0], await fleet.make_agent(servers.urls[0])
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            before = await http.get("/v1/ready/")
            servers.servers[0].terminate()

            async def unready() -> httpx.Response | None:
                answer = await http.get("/v1/ready/")
                return answer if answer.status_code == 503 else None

            refused = await fleet.poll(unready)
            answer = await fleet.send(url, agent_id, "Hello [[say:Still here.]]")
            # Nobody may keep a connection that is about to be closed under a request.
            closing = [each.headers.get("connection") for each in (before, refused, answer)]
        servers.servers[0].stop()
    assert refused.json()["status"] == "draining"
    assert answer.status_code == 200, answer.text
    assert "Still here." in answer.text
    assert closing == [None, "close", "close"]
    assert servers.servers[0].exit_code == 0


async def test_a_server_that_is_stopping_refuses_new_messages_with_503(tmp_path: Path) -> None:
    async with served(tmp_path, drain_s=30) as client:
        agent, other = await client.agent(), await client.agent()
        body = {"input": "Hi [[tokens:100]] [[delay:0.01]]", "stream_tokens": True}
        async with client.http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json=body) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            draining = asyncio.create_task(client.deps.worker.drain())
            await asyncio.sleep(0)
            for path in ("", "/stream", "/async"):
                body = {"messages": [{"role": "user", "content": "Hello"}]}
                answer = await client.http.post(f"/v1/agents/{other.id}/messages{path}", json=body)
                assert answer.status_code == 503
                assert "shutting down" in answer.json()["detail"]
            rest = fleet.events_in("\n".join([line async for line in lines]))
        await draining
        assert json.loads(rest[-3])["stop_reason"] == "end_turn"
        await assert_invariants(client.deps.database, idle=True)

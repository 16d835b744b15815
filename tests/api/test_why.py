"""Why a run stands where it stands, and what waits for a decision."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import journal
from holdfast.store.transaction import Transaction

from ..scenario import eventually
from ..served import ServedClient, run_of, served

DOOR = '''
def open_door(name: str) -> str:
    """Open a door.

    Args:
        name (str): Which one.
    """
    return "opened"
'''
SLOW = '''
def wait_long() -> str:
    """Wait for a long time."""
    import time
    time.sleep(60)
    return "done"
'''


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def why(client: ServedClient, agent_id: str) -> Any:
    (run,) = await client.ask("GET", "/v1/runs/", agent_id=agent_id)
    return await client.ask("GET", f"/v1/runs/{run['id']}/why")


async def until_event(stream: Any) -> None:
    """Untyped: the client does not know events."""
    async for event in stream:
        if event.message_type == "event_message":
            return


async def test_a_finished_run_says_how_it_ended(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    answer = await why(client, agent.id)
    assert (answer["status"], answer["phase"], answer["waiting_for"]) == ("completed", "done", None)
    assert "the model answered" in answer["doing"]
    assert answer["unblock"] == [] and answer["driver"] is None
    assert "is over since" in answer["summary"]
    assert len(answer["history"]) == 2
    assert "started with 1 message(s) for holdfast/offline" in answer["history"][0]


async def test_a_failed_run_says_what_the_vendor_said(client: ServedClient) -> None:
    agent = await client.agent()
    await client.http.post(
        f"/v1/agents/{agent.id}/messages", json={"input": "[[error:auth]] [[message:the key is void]]"}
    )
    answer = await why(client, agent.id)
    assert answer["status"] == "failed"
    assert "the model's provider failed" in answer["doing"]
    assert "the key is void" in answer["summary"]


async def test_a_run_that_went_on_after_an_overflow_is_not_said_to_have_failed(client: ServedClient) -> None:
    agent = await client.agent(context_window_limit=8_000)
    await client.say(agent.id, "[[say:fine]] [[error:context]][[error_times:1]] hello")
    answer = await why(client, agent.id)
    assert answer["status"] == "completed"
    told = [line.partition("  ")[2] for line in answer["history"]]
    assert told[1].startswith("the request did not fit: CONTEXT_WINDOW_EXCEEDED: ")
    assert told[2] == "1 message(s) were summarised"


async def test_a_run_whose_summary_fails_says_what_could_not_be_done(client: ServedClient) -> None:
    agent = await client.agent(context_window_limit=8_000)
    await client.say(agent.id, "[[say:fine]] [[usage:7900,5]] [[summary_error:auth]] hello")
    answer = await why(client, agent.id)
    assert answer["status"] == "completed"
    assert "the oldest messages could not be summarised: UNAUTHENTICATED: " in answer["history"][-1]


async def test_a_run_that_waits_to_try_again_says_for_how_long_and_why(client: ServedClient) -> None:
    agent = await client.agent()
    text = "[[error:rate_limit]] [[retry_after:60]] [[message:Slow down.]]"
    stream = await client.agents.messages.create(agent.id, input=text, streaming=True)
    await until_event(stream)
    answer = await why(client, agent.id)
    assert re.match(
        r"Waiting [1-6]\d\.\d s before try 2 of 4 of holdfast/offline, because RATE_LIMIT_EXCEEDED: Slow down\.",
        answer["doing"],
    )
    assert re.fullmatch(r"[1-6]\d\.\d s to pass", answer["waiting_for"])
    assert answer["history"][-1].endswith(
        "a try failed, and another follows after 60.0 s: RATE_LIMIT_EXCEEDED: Slow down."
    )
    await client.agents.messages.cancel(agent.id)
    await stream.close()


async def test_a_run_in_its_second_try_says_so(client: ServedClient) -> None:
    agent = await client.agent()
    text = "[[error:server]] [[error_times:1]] [[retry_after:0.01]] [[delay:30]]"
    stream = await client.agents.messages.create(agent.id, input=text, streaming=True)
    await until_event(stream)
    await eventually(lambda: client.open_model_streams == 1)
    answer = await why(client, agent.id)
    assert answer["doing"].startswith("Model call 1 of holdfast/offline, try 2 of 4, has been running for ")
    await client.agents.messages.cancel(agent.id)
    await stream.close()


async def test_a_run_that_waits_for_the_model_names_it_and_how_to_stop_it(client: ServedClient) -> None:
    agent = await client.agent()
    stream = await client.agents.messages.create(agent.id, input="[[stall]]", streaming=True)
    run_id = await run_of(stream)
    answer = await why(client, agent.id)
    assert (answer["run_id"], answer["phase"]) == (run_id, "thinking")
    assert answer["doing"].startswith("Model call 1 of holdfast/offline has been running for ")
    assert answer["waiting_for"] == "holdfast/offline to reply"
    assert client.deps.worker.owner in answer["driver"]
    assert any("/messages/cancel" in sentence and run_id in sentence for sentence in answer["unblock"])
    await client.agents.messages.cancel(agent.id)
    assert "it was cancelled" in (await why(client, agent.id))["summary"]
    await stream.close()


async def test_a_run_that_waits_for_a_tool_names_it(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=SLOW)
    agent = await client.agent(tool_ids=[tool.id])
    stream = await client.agents.messages.create(agent.id, input="Call wait_long [[no_reasoning]]", streaming=True)
    kinds = aiter(stream)
    while (await anext(kinds)).message_type != "tool_call_message":
        pass
    answer = await why(client, agent.id)
    assert (answer["phase"], answer["waiting_for"]) == ("acting", "wait_long to return")
    assert [(call["name"], call["status"]) for call in answer["calls"]] == [("wait_long", "started")]
    await client.agents.messages.cancel(agent.id)
    await stream.close()


async def test_a_run_that_waits_for_approval_says_what_to_send(client: ServedClient) -> None:
    agent = await client.guarded_agent(DOOR)
    paused = await client.say(agent.id, "Call open_door with 'cellar'")
    call_id = paused.messages[-1].tool_call.tool_call_id
    answer = await why(client, agent.id)
    assert (answer["phase"], answer["waiting_for"]) == ("parked", "a person to approve or deny open_door")
    assert '{"name":"cellar"}' in answer["doing"]
    assert f"POST /v1/agents/{agent.id}/messages" in answer["unblock"][0]
    assert call_id in answer["unblock"][0]
    assert answer["calls"][0]["status"] == "held"
    assert "is not over" in answer["summary"]


async def test_a_run_whose_approval_was_given_names_the_run_that_carries_on(client: ServedClient) -> None:
    agent = await client.guarded_agent(DOOR)
    paused = await client.say(agent.id, "Call open_door with 'cellar'")
    approval = {"type": "approval", "tool_call_id": paused.messages[-1].tool_call.tool_call_id, "approve": True}
    body = {"messages": [{"type": "approval", "approvals": [approval]}]}
    await client.ask("POST", f"/v1/agents/{agent.id}/messages", body)
    successor, asked = await client.ask("GET", "/v1/runs/", agent_id=agent.id)
    answer = await client.ask("GET", f"/v1/runs/{asked['id']}/why")
    assert answer["waiting_for"] is None
    assert successor["id"] in answer["doing"]
    assert "to carry on open_door" in (await client.ask("GET", f"/v1/runs/{successor['id']}/why"))["history"][0]


async def test_a_client_tool_is_the_clients_to_run(client: ServedClient) -> None:
    agent = await client.agent()
    tool: dict[str, Any] = {"name": "scan", "description": "Scan.", "parameters": {"type": "object", "properties": {}}}
    await client.say(agent.id, "Call scan", client_tools=[tool])
    answer = await why(client, agent.id)
    assert answer["waiting_for"] == "the client to run scan"
    assert '"type": "tool"' in answer["unblock"][0]
    (waiting,) = await client.ask("GET", "/v1/approvals/")
    assert waiting["tool_calls"][0]["client"] is True


async def test_a_run_whose_journal_cannot_be_read_still_has_an_answer(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    (run,) = await client.ask("GET", "/v1/runs/", agent_id=agent.id)

    async def spoil(tx: Transaction) -> None:
        await journal.append_next(tx, run["id"], ['{"event": "from the future"}'], 0)

    await client.deps.database.write(spoil)
    answer = await client.ask("GET", f"/v1/runs/{run['id']}/why")
    assert (answer["phase"], answer["history"]) == ("unknown", [])
    assert "journal cannot be read" in answer["summary"]


async def test_what_waits_for_a_decision_is_listed_newest_first(client: ServedClient) -> None:
    one = await client.guarded_agent(DOOR)
    two = await client.agent(tool_ids=[tool.id async for tool in client.agents.tools.list(one.id)])
    await client.agents.tools.update_approval("open_door", agent_id=two.id, body_requires_approval=True)
    for agent in (one, two):
        await client.say(agent.id, "Call open_door with 'cellar'")
    newest, oldest = await client.ask("GET", "/v1/approvals/")
    assert (newest["agent_id"], oldest["agent_id"]) == (two.id, one.id)
    assert newest["tool_calls"][0]["name"] == "open_door"
    assert newest["tool_calls"][0]["arguments"] == '{"name":"cellar"}'
    assert newest["asked_at"] > oldest["asked_at"]
    assert [found["id"] for found in await client.ask("GET", "/v1/approvals/", limit=1)] == [newest["id"]]
    assert await client.ask("GET", "/v1/approvals/", after=newest["id"]) == [oldest]
    assert await client.ask("GET", "/v1/approvals/", agent_id=one.id) == [oldest]
    await client.agents.messages.cancel(two.id)
    assert await client.ask("GET", "/v1/approvals/") == [oldest]

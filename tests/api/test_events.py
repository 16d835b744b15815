"""`/v1/events/`: what it tells, to whom, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.changes import Change
from holdfast.engine.feed import MOST_UNREAD
from tests.scenario import eventually
from tests.served import ServedClient, served
from tests.serving import ServerProcess

from .application import client_of

GREET = 'def greet(name: str) -> str:\n    """Greets.\n\n    Args:\n        name: whom\n    """\n    return name\n'
FIELDS = {"type", "id", "agent_id", "conversation_id", "folder_id", "status", "stop_reason", "at"}
LIMIT_S = 30


class Followed:
    """A stream of events, and those that were taken from it."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()
        self.seen: list[dict[str, Any]] = []
        self.comments: list[str] = []

    async def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT_S):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments.append(line)
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    assert event.keys() == FIELDS
                    self.seen.append(event)
                    if wanted(event):
                        return event
        raise AssertionError(f"the stream ended: {self.seen}")

    async def until_type(self, type: str, **fields: Any) -> dict[str, Any]:
        return await self.until(lambda event: event["type"] == type and fields.items() <= event.items())


@asynccontextmanager
async def following(http: httpx.AsyncClient, **query: Any) -> AsyncGenerator[Followed]:
    async with http.stream("GET", "/v1/events/", params=query) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        followed = Followed(answer)
        hello = await followed.until(lambda _: True)
        assert (hello["type"], hello["id"], hello["status"]) == ("hello", None, None)
        yield followed


@pytest.fixture
async def client(tmp_path: Path, database_url: str) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path, database_url=database_url) as opened:
        yield opened


async def test_a_turn_is_told_from_its_beginning_to_its_end(client: ServedClient) -> None:
    agent = await client.agent()
    async with following(client.http) as feed:
        await client.say(agent.id, "Hello")
        ended = await feed.until_type("run", status="completed")
        told = [(event["type"], event["status"]) for event in feed.seen if event["type"] == "run"]
        assert told[0] == ("run", "running")  # a worker had room for it; else it would be `created`
        assert (ended["agent_id"], ended["conversation_id"], ended["stop_reason"]) == (agent.id, None, "end_turn")
        [run] = (await client.runs.list(agent_id=agent.id)).items
        assert {event["id"] for event in feed.seen if event["type"] == "run"} == {run.id}


async def test_a_run_in_a_conversation_names_it(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    async with following(client.http) as feed:
        await client.ask("POST", f"/v1/conversations/{conversation.id}/messages", {"input": "x", "streaming": False})
        ended = await feed.until_type("run", status="completed")
        assert ended["conversation_id"] == conversation.id


async def test_an_approval_is_told_when_it_is_asked_for_and_when_it_is_decided(client: ServedClient) -> None:
    agent = await client.guarded_agent(GREET)
    async with following(client.http) as feed:
        await client.say(agent.id, "Call greet with 'Ada'")
        asked = await feed.until_type("approval", status="open")
        [waiting] = await client.ask("GET", "/v1/approvals/")
        assert (asked["id"], asked["agent_id"]) == (waiting["run_id"], agent.id)
        approvals = [
            {"type": "approval", "tool_call_id": call["tool_call_id"], "approve": True}
            for call in waiting["tool_calls"]
        ]
        await client.ask(
            "POST", f"/v1/agents/{agent.id}/messages", {"messages": [{"type": "approval", "approvals": approvals}]}
        )
        decided = await feed.until_type("approval", status="decided")
        assert decided["id"] == waiting["run_id"]


async def test_an_approval_that_is_cancelled_is_decided_and_its_run_cancelled(client: ServedClient) -> None:
    agent = await client.guarded_agent(GREET)
    await client.say(agent.id, "Call greet with 'Ada'")
    [waiting] = await client.ask("GET", "/v1/approvals/")
    async with following(client.http) as feed:
        await client.ask("POST", f"/v1/agents/{agent.id}/messages/cancel", {"run_ids": [waiting["run_id"]]})
        await feed.until_type("run", id=waiting["run_id"], status="cancelled", stop_reason="cancelled")
        assert ("approval", "decided") in {(event["type"], event["status"]) for event in feed.seen}


async def test_agents_are_told_as_created_changed_and_deleted(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=GREET)
    async with following(client.http, types="agent") as feed:
        agent = await client.agent(memory_blocks=[{"label": "human", "value": "Ada"}])
        await client.agents.update(agent.id, name="grace")
        await client.agents.tools.attach(tool.id, agent_id=agent.id)
        await client.agents.delete(agent.id)
        await feed.until_type("agent", status="deleted")
        assert [event["status"] for event in feed.seen[1:]] == ["created", "changed", "changed", "deleted"]
        assert {event["id"] for event in feed.seen[1:]} == {agent.id}


async def test_a_run_that_is_deleted_is_told_of(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "Hello")
    [run] = (await client.runs.list(agent_id=agent.id)).items
    async with following(client.http) as feed:
        await client.ask("DELETE", f"/v1/runs/{run.id}")
        assert (await feed.until_type("run", status="deleted"))["id"] == run.id


async def test_a_file_is_told_of_while_it_is_ingested(client: ServedClient) -> None:
    folder = await client.folders.create(name="shelf")
    async with following(client.http, types="file") as feed:
        file = await client.folders.files.upload(folder.id, file=("tea.txt", b"Ada likes tea."))
        await feed.until_type("file", id=file.id, status="completed", folder_id=folder.id)


async def test_a_reader_sees_only_the_agent_and_the_types_it_asked_for(client: ServedClient) -> None:
    mine, other = await client.agent(), await client.agent()
    async with (
        following(client.http, agent_id=mine.id) as of_agent,
        following(client.http, types=["approval", "agent"]) as of_types,
    ):
        await client.say(other.id, "Hello")
        await client.say(mine.id, "Hello")
        await client.agents.update(mine.id, name="grace")
        await of_agent.until_type("agent", status="changed")
        await of_types.until_type("agent", status="changed")
        assert {event["agent_id"] for event in of_agent.seen[1:]} == {mine.id}
        assert {event["type"] for event in of_agent.seen[1:]} == {"run", "agent"}
        assert {event["type"] for event in of_types.seen[1:]} == {"agent"}


async def test_a_type_that_there_is_not_is_refused(client: ServedClient) -> None:
    assert "types" in await client.refusal(422, "GET", "/v1/events/", types="everything")


async def test_silence_is_broken_by_comments(tmp_path: Path) -> None:
    async with served(tmp_path, keepalive_s=0.05) as client, following(client.http) as feed:
        agent = await client.agent()
        await feed.until_type("agent", status="created")
        waiting = asyncio.create_task(feed.until_type("agent", status="deleted"))
        await eventually(lambda: len(feed.comments) >= 2)
        await client.agents.delete(agent.id)
        await waiting
        assert set(feed.comments) == {": nothing has changed"}


async def test_a_reader_that_leaves_is_forgotten(client: ServedClient) -> None:
    async with following(client.http):
        assert client.deps.feed.readers == 1
    await eventually(lambda: client.deps.feed.readers == 0)


async def test_a_client_that_does_not_read_misses_events_and_is_told_so(client: ServedClient) -> None:
    """The transport takes 64 pieces that nobody has read, as a socket takes so many bytes; then the writer waits."""
    async with following(client.http) as feed:
        for place in range(MOST_UNREAD + 200):
            client.deps.feed.committed([Change("agent", f"agent-{place}", "changed", f"agent-{place}")])
            await asyncio.sleep(0)
        await feed.until_type("resync")
        assert len(feed.seen) < 200
        agent = await client.agent()
        await feed.until_type("agent", id=agent.id, status="created")


async def test_it_needs_the_key_as_everything_does() -> None:
    async with client_of(api_key="secret") as http:
        assert (await http.get("/v1/events/")).status_code == 401


@pytest.mark.slow
def test_a_server_that_stops_ends_its_readers_streams_whole(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", HOLDFAST_DRAIN_S="30") as server:
        with httpx.stream("GET", f"{server.url}/v1/events/", timeout=LIMIT_S) as answer:
            lines = answer.iter_lines()
            assert '"hello"' in next(lines)
            server.terminate()
            assert [line for line in lines if line] == []  # and no error: a body that is cut off raises
        server.stop(within_s=10)
        assert "Traceback" not in server.read_log()


@pytest.mark.slow
@pytest.mark.postgres
def test_what_one_process_changes_is_told_by_another(tmp_path: Path, postgres_url: str) -> None:
    """Two real servers on one PostgreSQL, and a reader at the one that does nothing."""
    shared = {"HOLDFAST_DATABASE_URL": postgres_url, "HOLDFAST_DEFAULT_MODEL": "holdfast/offline"}
    shared["HOLDFAST_ENCRYPTION_KEY"] = "one for both"
    with (
        ServerProcess(tmp_path / "one", **shared) as busy,
        ServerProcess(tmp_path / "two", **shared) as idle,
        httpx.stream("GET", f"{idle.url}/v1/events/", timeout=LIMIT_S) as answer,
    ):
        lines = (json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: "))
        assert next(lines)["type"] == "hello"
        client = busy.client()
        tool = client.tools.upsert(source_code=GREET, default_requires_approval=True)
        agent = client.agents.create(name="ada", include_base_tools=False, tool_ids=[tool.id])
        wanted = {("agent", "changed"), ("run", "completed"), ("approval", "open"), ("approval", "decided")}
        wanted.add(("run", "cancelled"))
        first = next(lines)  # `resync` if the busy one had not heard of a reader, else the agent itself
        assert (first["type"], first["id"]) in {("resync", None), ("agent", agent.id)}
        client.agents.update(agent.id, name="grace")
        client.agents.messages.create(agent.id, input="Call greet with 'Ada'")
        client.agents.messages.cancel(agent.id)
        while wanted:
            event = next(lines)
            assert event["type"] != "resync"
            assert event["agent_id"] == agent.id
            wanted.discard((event["type"], event["status"]))

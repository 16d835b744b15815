"""Runs: found, followed again, measured, forgotten; and the callbacks that tell of their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from letta_client import ConflictError, NotFoundError

from holdfast import ids
from holdfast.core.frames import StopFrame, TextFrame, UsageFrame
from holdfast.core.records import Run
from holdfast.core.usage import Usage
from holdfast.engine.streams import encode
from holdfast.store import frames, runs
from holdfast.store.transaction import Transaction

from ..served import ServedClient, run_of, served

DICE = 'def roll_dice() -> int:\n    """Roll a die."""\n    return 4\n'
DOOR = 'def open_door() -> str:\n    """Open the door."""\n    return "opened"\n'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def background_run(client: ServedClient, agent_id: str, text: str, **options: Any) -> list[Any]:
    body = {"input": text, "streaming": True, "background": True, "include_pings": False, **options}
    return await client.events(f"/v1/agents/{agent_id}/messages", body)


async def replay(client: ServedClient, run_id: str, after: int = 0) -> list[Any]:
    return await client.events(f"/v1/runs/{run_id}/stream", {"starting_after": after, "include_pings": False})


async def only_run(client: ServedClient, agent_id: str) -> Any:
    (run,) = await client.ask("GET", "/v1/runs/", agent_id=agent_id)
    return run


# --- listing and reading ---------------------------------------------------------------------------------------------


async def test_walking_the_runs_meets_each_once_in_both_orders(client: ServedClient) -> None:
    agent = await client.agent()
    for text in ("one", "two", "three"):
        await client.say(agent.id, text)
    newest = [run.id async for run in client.runs.list(agent_id=agent.id, limit=2)]
    assert len(newest) == len(set(newest)) == 3
    assert [run.id async for run in client.runs.list(agent_id=agent.id, limit=2, order="asc")] == newest[::-1]
    assert [run.id async for run in client.runs.list(agent_id=agent.id, ascending=True)] == newest[::-1]


async def test_runs_are_filtered_by_everything_that_tells_them_apart(client: ServedClient) -> None:
    agent, other = await client.agent(), await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    plain = await only_after(client, agent.id, client.say(agent.id, "hello"))
    path = f"/v1/conversations/{conversation.id}/messages"
    talked = await only_after(client, agent.id, client.ask("POST", path, {"input": "x", "streaming": False}))
    background = await only_after(client, agent.id, background_run(client, agent.id, "quietly"))
    await client.say(other.id, "elsewhere")

    async def found(**query: Any) -> list[str]:
        return [run["id"] for run in await client.ask("GET", "/v1/runs/", **query)]

    assert await found(agent_id=agent.id) == [background, talked, plain]
    assert await found(agent_ids=[agent.id, other.id], limit=1) != [background]
    assert await found(background=True) == [background]
    assert await found(conversation_id=conversation.id) == [talked]
    assert await found(conversation_id="default", agent_id=agent.id) == [background, plain]
    assert await found(stop_reason="cancelled") == []
    assert len(await found(stop_reason="end_turn", statuses=["completed", "failed"])) == 4
    assert await found(active=True) == []
    assert len(await found(active=True, statuses=["completed"])) == 4
    await client.refusal(422, "GET", "/v1/runs/", limit=0)
    await client.refusal(404, "GET", "/v1/runs/", after=ids.new("run"))
    await client.refusal(404, "GET", "/v1/runs/", conversation_id="default")


async def test_an_active_run_is_listed_as_active_until_it_ends(client: ServedClient) -> None:
    agent = await client.agent()
    stream = await client.agents.messages.create(agent.id, input="[[stall]]", streaming=True)
    run_id = await run_of(stream)
    (active,) = await client.ask("GET", "/v1/runs/active", agent_id=agent.id)
    assert (active["id"], active["status"], active["completed_at"]) == (run_id, "running", None)
    assert (await client.ask("GET", "/v1/runs/", active=True))[0]["id"] == run_id
    await client.agents.messages.cancel(agent.id)
    assert await client.ask("GET", "/v1/runs/active") == []
    await stream.close()


async def test_the_messages_of_a_run_begin_with_its_input(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=DICE)
    agent = await client.agent(tool_ids=[tool.id])
    await client.say(agent.id, "Call roll_dice [[no_reasoning]]")
    run = await only_run(client, agent.id)
    kinds = ["user_message", "tool_call_message", "tool_return_message", "assistant_message"]
    assert [message.message_type async for message in client.runs.messages.list(run["id"])] == kinds
    newest = [message.message_type async for message in client.runs.messages.list(run["id"], order="desc")]
    assert newest == kinds[::-1]


async def test_the_messages_of_a_run_are_those_its_request_wanted(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello", include_return_message_types=["assistant_message"])
    run = await only_run(client, agent.id)
    shown = await client.ask("GET", f"/v1/runs/{run['id']}/messages")
    assert [message["message_type"] for message in shown] == ["assistant_message"]


async def test_usage_steps_and_metrics_count_the_whole_run(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=DICE)
    agent = await client.agent(tool_ids=[tool.id])
    await client.say(agent.id, "Call roll_dice [[usage:100,10,40,3]]")
    run = await only_run(client, agent.id)
    usage = await client.ask("GET", f"/v1/runs/{run['id']}/usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (200, 20, 220)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 80
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 6
    numbers = [step.stop_reason async for step in client.runs.steps.list(run["id"])]
    assert numbers == ["end_turn", None]
    metrics = await client.ask("GET", f"/v1/runs/{run['id']}/metrics")
    assert (metrics["num_steps"], metrics["tools_used"]) == (2, [tool.id])
    assert metrics["run_ns"] == run["total_duration_ns"] > 0
    assert run["ttft_ns"] > 0


async def test_a_run_that_called_nothing_used_no_tools(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    run = await only_run(client, agent.id)
    assert (await client.ask("GET", f"/v1/runs/{run['id']}/metrics"))["tools_used"] is None


async def test_an_unknown_run_is_not_found_whatever_is_asked_of_it(client: ServedClient) -> None:
    for tail in ("", "/messages", "/usage", "/metrics", "/steps", "/why"):
        assert await client.refusal(404, "GET", f"/v1/runs/run-nonsense{tail}") == "Run not found"
    await client.refusal(404, "POST", "/v1/runs/run-nonsense/stream")
    await client.refusal(404, "DELETE", "/v1/runs/run-nonsense")
    await client.refusal(404, "GET", "/v1/runs/run-nonsense/trace")


# --- deleting --------------------------------------------------------------------------------------------------------


async def test_a_deleted_run_is_gone_and_its_messages_are_not(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello [[no_reasoning]]")
    run = await only_run(client, agent.id)
    assert await client.ask("DELETE", f"/v1/runs/{run['id']}") is None
    with pytest.raises(NotFoundError):
        await client.runs.retrieve(run["id"])
    assert [step async for step in client.steps.list(agent_id=agent.id)] == []
    assert len([message async for message in client.agents.messages.list(agent.id, order="asc")]) == 3


async def test_an_active_run_is_not_deleted(client: ServedClient) -> None:
    agent = await client.agent()
    stream = await client.agents.messages.create(agent.id, input="[[stall]]", streaming=True)
    run_id = await run_of(stream)
    assert "active" in await client.refusal(409, "DELETE", f"/v1/runs/{run_id}")
    await client.agents.messages.cancel(agent.id)
    await client.ask("DELETE", f"/v1/runs/{run_id}")
    await stream.close()


async def test_deleting_a_run_that_waits_for_approval_leaves_nothing_pending(client: ServedClient) -> None:
    agent = await client.guarded_agent(DOOR)
    await client.say(agent.id, "Call open_door")
    with pytest.raises(ConflictError):
        await client.say(agent.id, "and?")
    await client.ask("DELETE", f"/v1/runs/{(await only_run(client, agent.id))['id']}")
    assert (await client.say(agent.id, "[[say:free]]")).messages[-1].content == "free"


# --- following again -------------------------------------------------------------------------------------------------


async def test_a_replay_shows_the_same_events_from_any_point(client: ServedClient) -> None:
    agent = await client.agent()
    seen = await background_run(client, agent.id, "[[tokens:20]]", stream_tokens=True)
    assert seen[-1] == "[DONE]"
    numbers = [event["seq_id"] for event in seen[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    run_id = seen[0]["run_id"]
    assert await replay(client, run_id) == seen
    assert await replay(client, run_id, after=7) == seen[7:]
    assert await replay(client, run_id, after=len(numbers)) == ["[DONE]"]
    assert await replay(client, run_id, after=10_000) == ["[DONE]"]
    typed = [event async for event in await client.runs.messages.stream(run_id)]
    assert [event.message_type for event in typed][-2:] == ["stop_reason", "usage_statistics"]


async def test_a_run_without_a_body_to_its_stream_request_is_replayed_from_the_start(client: ServedClient) -> None:
    agent = await client.agent()
    seen = await background_run(client, agent.id, "hello")
    answer = await client.http.post(f"/v1/runs/{seen[0]['run_id']}/stream")
    assert answer.text.startswith("data: ") and '"message_type":"ping"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_late_reader_of_a_live_run_misses_nothing(client: ServedClient) -> None:
    agent = await client.agent()
    body = {"input": "[[stall_after:3]]", "stream_tokens": True, "background": True, "include_pings": False}
    async with client.http.stream("POST", f"/v1/agents/{agent.id}/messages/stream", json=body) as first:
        lines = first.aiter_lines()
        head = [await anext(lines) for _ in range(2)]
        run = await only_run(client, agent.id)
        late = asyncio.create_task(replay(client, run["id"]))
        later_still = asyncio.create_task(replay(client, run["id"], after=10_000))
        await asyncio.sleep(0)
        await client.agents.messages.cancel(agent.id)
        text = "\n".join([*head, *[line async for line in lines]])
    seen = await late
    assert text.count("data: ") == len(seen)
    assert [event["message_type"] for event in seen[-3:-1]] == ["stop_reason", "usage_statistics"]
    assert seen[-3]["stop_reason"] == "cancelled"
    assert await later_still == ["[DONE]"]
    assert await replay(client, run["id"]) == seen


async def test_a_foreground_run_cannot_be_followed_again(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "hello")
    run = await only_run(client, agent.id)
    detail = await client.refusal(400, "POST", f"/v1/runs/{run['id']}/stream")
    assert detail == "INVALID_ARGUMENT: Run was not created in background mode, so it cannot be retrieved."


async def test_a_stream_expires_some_time_after_its_end(tmp_path: Path) -> None:
    async with served(tmp_path, frame_retention_s=0.0) as client:
        agent = await client.agent()
        run_id = (await background_run(client, agent.id, "hello"))[0]["run_id"]
        detail = await client.refusal(410, "POST", f"/v1/runs/{run_id}/stream")
        assert detail.startswith("EXPIRED: ")


async def test_a_log_that_broke_off_is_given_the_end_that_its_run_has(client: ServedClient) -> None:
    """As a crash leaves it when nobody could carry the run on: frames without an end, and a row that says failed."""
    agent = await client.agent()
    run = Run(
        id=ids.new("run"),
        agent_id=agent.id,
        thread_id=agent.id,
        status="failed",
        stop_reason="error",
        background=True,
        metadata={"error": {"error_type": "internal_error", "message": "It broke."}},
        created_us=client.deps.clock.now_us(),
        completed_us=client.deps.clock.now_us(),
    )

    async def arrange(tx: Transaction) -> None:
        await runs.insert(tx, run)
        told = [TextFrame(ids.new("message"), 0, ids.new("step"), run.created_us, text) for text in ("so", " far")]
        await frames.append(tx, run.id, 1, 2, encode(told))

    await client.deps.database.write(arrange)
    kinds = [event if isinstance(event, str) else event["message_type"] for event in await replay(client, run.id)]
    assert kinds == ["assistant_message", "assistant_message", "stop_reason", "error_message", "[DONE]"]
    assert [event["seq_id"] for event in (await replay(client, run.id, after=2))[:-1]] == [3, 4]


async def test_a_run_driven_elsewhere_is_followed_through_the_database(client: ServedClient) -> None:
    """Another process has its lease: what it stores arrives here, to the end."""
    agent = await client.agent()
    now_us = client.deps.clock.now_us()
    run = Run(
        id=ids.new("run"),
        agent_id=agent.id,
        thread_id=agent.id,
        status="running",
        background=True,
        created_us=now_us,
        lease=1,
        lease_owner="worker-elsewhere",
        lease_expires_us=now_us + 60_000_000,
    )
    await client.deps.database.write(lambda tx: runs.insert(tx, run))
    following = asyncio.create_task(replay(client, run.id))
    await asyncio.sleep(0)

    async def end(tx: Transaction) -> None:
        await frames.append(tx, run.id, 1, 2, encode([StopFrame("end_turn"), UsageFrame(Usage(), 1)]))
        await runs.checkpoint(tx, run, 1, status="completed", stop_reason="end_turn", unless_cancelling=False)

    await client.deps.database.write(end)
    kinds = [event if isinstance(event, str) else event["message_type"] for event in await following]
    assert kinds == ["stop_reason", "usage_statistics", "[DONE]"]


# --- callbacks -------------------------------------------------------------------------------------------------------


class Listener:
    """A web server that keeps what it is sent and answers with the given statuses, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.second = asyncio.Event()  # is not answered before this
        self.second.set()
        self.url = ""
        self.raw_headers: tuple[tuple[bytes, bytes], ...] = ()  # of the last request

    async def answer(self, request: web.Request) -> web.Response:
        self.raw_headers = request.raw_headers
        self.received.put_nowait(await request.json())
        if self.received.qsize() > 1:
            await self.second.wait()
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return web.Response(status=status, headers={"location": self.url})

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        app = web.Application()
        app.router.add_post("/told", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/told"
        try:
            yield self.url
        finally:
            await runner.cleanup()


async def until(condition: Callable[[], Awaitable[Any]], limit_s: float = 60.0) -> Any:
    """What the condition gives, once it gives something: for what only the database can tell."""
    async with asyncio.timeout(limit_s):
        while True:
            if found := await condition():
                return found
            await asyncio.sleep(0.02)


async def recorded(client: ServedClient, run_id: str) -> Any:
    async def told() -> Any:
        run = await client.ask("GET", f"/v1/runs/{run_id}")
        return run if run["callback_sent_at"] else None

    return await until(told)


@pytest.fixture
async def loopback_client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, allowed_hosts=("127.0.0.1",)) as client:
        yield client


async def test_a_callback_tells_how_the_run_ended_and_is_recorded(loopback_client: ServedClient) -> None:
    client, listener = loopback_client, Listener(204)
    agent = await client.agent()
    async with listener.listening() as url:
        run = await client.agents.messages.create_async(agent.id, input="[[say:done]]", callback_url=url)
        told = await asyncio.wait_for(listener.received.get(), 60)
        after = await recorded(client, run.id)
    assert (b"Content-Type", b"application/json") in listener.raw_headers, "as receivers spell it that mind the case"
    assert (told["run_id"], told["status"]) == (run.id, "completed")
    assert not told["completed_at"].endswith("Z")
    assert told["metadata"]["run_type"] == "send_message_async"
    result = told["metadata"]["result"]
    assert [message["message_type"] for message in result["messages"]][:1] == ["user_message"]
    assert result["messages"][-1]["content"] == "done"
    assert result["stop_reason"]["stop_reason"] == "end_turn"
    assert result["usage"]["step_count"] == 1
    assert (after["callback_status_code"], after["callback_error"]) == (204, None)
    assert listener.received.empty()


async def test_a_redirect_is_recorded_and_not_followed(loopback_client: ServedClient) -> None:
    client, listener = loopback_client, Listener(302)
    agent = await client.agent()
    async with listener.listening() as url:
        run = await client.agents.messages.create_async(agent.id, input="hello", callback_url=url)
        assert (await recorded(client, run.id))["callback_status_code"] == 302
    assert listener.received.qsize() == 1


@pytest.mark.slow
async def test_a_server_error_is_tried_again_and_the_last_attempt_recorded(loopback_client: ServedClient) -> None:
    client, listener = loopback_client, Listener(503, 200)
    listener.second.clear()
    agent = await client.agent()
    async with listener.listening() as url:
        run = await client.agents.messages.create_async(agent.id, input="hello", callback_url=url)
        first = await recorded(client, run.id)
        assert first["callback_status_code"] == 503
        listener.second.set()

        async def delivered() -> bool:
            return (await client.ask("GET", f"/v1/runs/{run.id}"))["callback_status_code"] == 200

        await until(delivered)
    assert listener.received.qsize() == 2


async def test_a_connection_that_is_refused_is_recorded_and_harms_nothing(loopback_client: ServedClient) -> None:
    client = loopback_client
    agent = await client.agent()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # so that nobody else can listen there
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/told"
        run = await client.agents.messages.create_async(agent.id, input="hello", callback_url=url)
        after = await recorded(client, run.id)
    assert (after["status"], after["callback_status_code"]) == ("completed", None)
    assert "Connect" in after["callback_error"]


async def test_a_run_that_paused_for_approval_calls_back_once(loopback_client: ServedClient) -> None:
    client, listener = loopback_client, Listener(200)
    agent = await client.guarded_agent(DOOR)
    async with listener.listening() as url:
        run = await client.agents.messages.create_async(agent.id, input="Call open_door", callback_url=url)
        paused = await asyncio.wait_for(listener.received.get(), 60)
        assert paused["metadata"]["result"]["stop_reason"]["stop_reason"] == "requires_approval"
        sent = await recorded(client, run.id)
        assert await client.agents.messages.cancel(agent.id) == {run.id: "cancelled"}
        await client.say(agent.id, "hello")  # whatever the cancel had made due would be delivered by now
        after = await client.ask("GET", f"/v1/runs/{run.id}")
    assert (after["status"], after["callback_sent_at"]) == ("cancelled", sent["callback_sent_at"])
    assert listener.received.empty()


async def only_after(client: ServedClient, agent_id: str, doing: Awaitable[Any]) -> str:
    """The id of the one run that is there after something was done, and was not before."""
    before = {run["id"] for run in await client.ask("GET", "/v1/runs/", agent_id=agent_id)}
    await doing
    (new,) = {run["id"] for run in await client.ask("GET", "/v1/runs/", agent_id=agent_id)} - before
    return new


async def test_a_vendors_wish_to_wait_is_passed_on_to_whoever_waits_for_the_answer(client: ServedClient) -> None:
    agent = await client.agent()
    said = {"input": "hello [[error:rate_limit]][[retry_after:3600]]"}
    answer = await client.http.post(f"/v1/agents/{agent.id}/messages", json=said)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3600")
    (run,) = await client.ask("GET", "/v1/runs/", agent_id=agent.id)
    assert run["metadata"]["error"]["retry_after"] == 3600

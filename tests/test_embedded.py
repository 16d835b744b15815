from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta, ConflictError
from starlette.types import Receive, Scope, Send

import holdfast
from holdfast.asgi_transport import AsgiTransport
from holdfast.errors import ConfigError

pytestmark = pytest.mark.slow

ROLL = '''
def roll(sides: int) -> str:
    """Rolls a die.

    Args:
        sides: how many sides it has
    """
    return f"a {sides} of {sides}"
'''
QUICK = {"HOLDFAST_DRAIN_S": "0"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[AsyncLetta]:
    async with holdfast.embedded(tmp_path, environment=QUICK) as client:
        yield client


async def agent_with(client: AsyncLetta, *tool_ids: str, **fields: Any) -> str:
    made = await client.agents.create(name="scout", include_base_tools=False, tool_ids=list(tool_ids), **fields)
    return made.id


async def test_a_message_is_answered_in_process(client: AsyncLetta) -> None:
    agent_id = await agent_with(client)
    answer = await client.agents.messages.create(agent_id, input="Good morning")
    assert answer.stop_reason.stop_reason == "end_turn"
    assert "Good morning" in str(answer.messages[-1])


async def test_a_custom_tool_runs_and_its_return_is_told(client: AsyncLetta) -> None:
    tool = await client.tools.create(source_code=ROLL)
    agent_id = await agent_with(client, tool.id)
    answer = await client.agents.messages.create(agent_id, input="Call the roll tool with 16 sides")
    assert [message.message_type for message in answer.messages if "tool" in str(message.message_type)] == [
        "tool_call_message",
        "tool_return_message",
    ]
    assert "a 16 of 16" in str(answer.messages[-1])


async def test_tokens_arrive_while_the_model_is_still_talking(client: AsyncLetta) -> None:
    """It falls silent for ever after five tokens; a transport that collects the whole body would never return."""
    agent_id = await agent_with(client)
    stream = await _talk(client, agent_id, "Talk [[no_reasoning]] [[tokens:50]] [[stall_after:5]]")
    assert len(await _first_words(stream, 5)) == 5
    await client.agents.messages.cancel(agent_id)


async def test_cancel_in_the_middle_of_a_stream_ends_it_properly(client: AsyncLetta) -> None:
    agent_id = await agent_with(client)
    stream = await _talk(client, agent_id, "Talk [[no_reasoning]] [[tokens:50]] [[stall_after:5]]")
    await _first_words(stream, 5)
    results = await client.agents.messages.cancel(agent_id)
    rest = [event async for event in stream]
    assert set(results.values()) == {"cancelled"}
    assert [event.message_type for event in rest] == ["stop_reason", "usage_statistics"]
    assert rest[0].stop_reason == "cancelled"


async def test_leaving_a_stream_does_not_stop_its_run(client: AsyncLetta) -> None:
    agent_id = await agent_with(client)
    stream = await _talk(client, agent_id, "Talk [[no_reasoning]] [[tokens:40]] [[delay:0.005]]")
    await _first_words(stream, 2)
    await stream.close()
    follow_up = await client.agents.messages.create(agent_id, input="And?")
    stored = await client.agents.messages.list(agent_id)
    assert follow_up.stop_reason.stop_reason == "end_turn"
    assert [message.message_type for message in stored.items].count("user_message") == 2
    runs = await client.runs.list(agent_id=agent_id)
    assert {run.stop_reason for run in runs.items} == {"end_turn"}


async def test_an_approval_can_be_given_in_a_later_process(tmp_path: Path) -> None:
    """Asked by one server, answered to the next one on the same directory."""
    async with holdfast.embedded(tmp_path, environment=QUICK) as client:
        tool = await client.tools.create(source_code=ROLL, default_requires_approval=True)
        agent_id = await agent_with(client, tool.id)
        asked = await client.agents.messages.create(agent_id, input="Call the roll tool with 6 sides")
        assert asked.stop_reason.stop_reason == "requires_approval"
        with pytest.raises(ConflictError, match="waiting for approval"):
            await client.agents.messages.create(agent_id, input="Well?")
        request: Any = asked.messages[-1]
    async with holdfast.embedded(tmp_path, environment=QUICK) as client:
        call_id = request.tool_call.tool_call_id
        decision: Any = {"type": "approval", "approve": True, "tool_call_id": call_id}
        answer = await client.agents.messages.create(agent_id, messages=[{"type": "approval", "approvals": [decision]}])
    assert answer.messages[0].message_type == "tool_return_message"
    assert "a 6 of 6" in str(answer.messages[-1])


async def test_what_the_caller_raises_comes_out_as_it_is(tmp_path: Path) -> None:
    raised = LookupError("mine")
    with pytest.raises(LookupError) as caught:
        async with holdfast.embedded(tmp_path, environment=QUICK):
            raise raised
    assert caught.value is raised


async def test_a_data_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    async with holdfast.embedded(tmp_path, environment=QUICK):
        with pytest.raises(ConfigError, match="Another Holdfast server"):
            async with holdfast.embedded(tmp_path, environment=QUICK):
                pass


async def test_a_sqlite_file_has_one_user_at_a_time_whatever_the_data_directory(tmp_path: Path) -> None:
    async with holdfast.embedded(tmp_path / "one", environment=QUICK) as client:
        same = QUICK | {"HOLDFAST_DATABASE_URL": f"sqlite:///{tmp_path}/one/holdfast.db"}
        with pytest.raises(ConfigError, match="Another Holdfast server uses the database"):
            async with holdfast.embedded(tmp_path / "two", environment=same):
                pass
        assert (await client.agents.list()).items == []
    async with holdfast.embedded(tmp_path / "two", environment=same):
        pass


async def test_a_key_in_the_settings_is_used_by_the_client(tmp_path: Path) -> None:
    async with holdfast.embedded(tmp_path, environment=QUICK | {"HOLDFAST_API_KEY": "open sesame"}) as client:
        assert (await client.agents.list()).items == []


def test_without_the_client_the_error_says_what_to_install() -> None:
    program = "import sys; sys.modules['letta_client'] = None\nimport holdfast\nholdfast.embedded"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'holdfast[client]'" in done.stderr


def test_importing_holdfast_loads_neither_the_client_nor_the_server() -> None:
    program = "import sys, holdfast; print([name for name in ('letta_client', 'fastapi') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_transport_carries_a_body_both_ways_piece_by_piece() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 207, "headers": [(b"x-path", scope["raw_path"])]})
        while (message := await receive())["more_body"]:
            await send({"type": "http.response.body", "body": message["body"].upper(), "more_body": True})
        await send({"type": "http.response.body", "body": b"!", "more_body": False})

    async def pieces() -> AsyncGenerator[bytes]:
        yield b"to "
        yield b"be"

    async with _http(echo) as http, http.stream("POST", "/a%20b?c=d", content=pieces()) as response:
        assert (response.status_code, response.headers["x-path"]) == (207, "/a%20b")
        assert [piece async for piece in response.aiter_raw()] == [b"TO ", b"BE", b"!"]


async def test_an_application_that_fails_early_fails_the_request() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("early")

    async with _http(broken) as http:
        with pytest.raises(LookupError, match="early"):
            await http.get("/")


async def test_an_application_that_fails_late_cuts_the_answer() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):  # more than the buffer holds
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise LookupError("late")

    got = b""
    async with _http(broken) as http:
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            async with http.stream("GET", "/") as response:
                async for piece in response.aiter_raw():
                    got += piece
    assert got == b"x" * 100
    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_reader_that_leaves_is_reported_and_blocks_nobody() -> None:
    left = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await _whole_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with _http(endless) as http:
        async with http.stream("GET", "/"):
            pass
        async with asyncio.timeout(60):
            await left.wait()
    assert left.is_set()


async def test_giving_up_before_the_answer_lets_the_application_finish() -> None:
    asked, finished = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await _whole_body(receive)
        asked.set()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        finished.set()

    async with _http(slow) as http:
        request = asyncio.create_task(http.get("/"))
        await asked.wait()
        request.cancel()
        async with asyncio.timeout(60):
            await finished.wait()
        with pytest.raises(asyncio.CancelledError):
            await request


async def _whole_body(receive: Receive) -> None:
    while (await receive())["more_body"]:
        pass


def _http(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=AsgiTransport(app), base_url="http://holdfast")


async def _talk(client: AsyncLetta, agent_id: str, text: str) -> Any:
    return await client.agents.messages.create(agent_id, input=text, streaming=True, stream_tokens=True)


async def _first_words(stream: Any, count: int) -> list[str]:
    words: list[str] = []
    async with asyncio.timeout(60):
        while len(words) < count:
            event = await anext(stream)
            if event.message_type == "assistant_message":
                words.append(event.content)
    return words

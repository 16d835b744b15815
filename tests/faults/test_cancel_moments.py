"""Cancel at each moment that has a name, through the routes, with the real sandbox: quick, final, nothing left over."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.actions.runs import cancel as cancel_runs
from holdfast.core.egress_policy import entries
from holdfast.core.messages import ToolReturn
from holdfast.core.run import OpenCall
from holdfast.core.transitions import DENIED_BY_CANCEL
from tests.invariants import assert_invariants
from tests.scenario import eventually
from tests.served import ServedClient, served

from .asking import GUARDED, history
from .cancelling import SeamNode
from .scenes import on_both_databases
from .templates import Template, world_from

SOON_S = 30.0  # of a model and a tool that would never end
# The line stays open for as long as any process of the call lives.
STUBBORN = """
import os, signal, socket

def stubborn(port: int) -> str:
    \"\"\"Never ends by itself, and ignores whoever asks it to.

    Args:
        port: where somebody listens
    \"\"\"
    line = socket.create_connection(("127.0.0.1", port))
    line.set_inheritable(True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.fork()
    line.sendall(b"r")
    while True:
        pass
"""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[ServedClient]:
    async with served(tmp_path, tool_egress="allow-list", tool_egress_allow=entries("127.0.0.1")) as made:
        yield made


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@asynccontextmanager
async def streaming(client: ServedClient, agent_id: str, text: str, **options: Any) -> AsyncGenerator[list[Any]]:
    """A stream that is being read. Once it has ended, the list holds all of it."""
    seen: list[Any] = []

    async def read() -> None:
        body = {"input": text, "include_pings": False, **options}
        async with client.http.stream("POST", f"/v1/agents/{agent_id}/messages/stream", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    event = line.removeprefix("data: ")
                    seen.append(event if event == "[DONE]" else json.loads(event))

    reading = asyncio.create_task(read())
    yield seen
    await reading


async def cancel_soon(client: ServedClient, agent_id: str) -> str:
    started = time.monotonic()
    answer = await client.agents.messages.cancel(agent_id)
    assert time.monotonic() - started < SOON_S
    assert list(answer.values()) == ["cancelled"]
    return next(iter(answer))


async def check_end(client: ServedClient, agent_id: str, run_id: str, seen: list[Any]) -> None:
    assert [event["message_type"] for event in seen[-3:-1]] == ["stop_reason", "usage_statistics"]
    assert seen[-3]["stop_reason"] == "cancelled"
    assert seen[-1] == "[DONE]"
    assert sum(event != "[DONE]" and event["message_type"] == "stop_reason" for event in seen) == 1
    run = await client.runs.retrieve(run_id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    assert run.completed_at is not None
    assert client.open_model_streams == 0
    assert (await client.agents.retrieve(agent_id)).last_stop_reason == "cancelled"
    assert await history(client, agent_id, "user_message")
    await assert_invariants(client.deps.database, idle=True)
    assert (await client.say(agent_id, "Hello again")).stop_reason.stop_reason == "end_turn"
    await assert_invariants(client.deps.database, idle=True)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("background", [False, True])
async def test_a_silent_model_is_interrupted_at_once(client: ServedClient, tokens: bool, background: bool) -> None:
    agent = await client.agent()
    async with streaming(client, agent.id, "Hi [[stall]]", stream_tokens=tokens, background=background) as seen:
        await client.model_asked()
        run_id = await cancel_soon(client, agent.id)
    await check_end(client, agent.id, run_id, seen)


async def test_a_cancel_is_answered_although_the_checkpoint_of_its_run_is_stuck(
    client: ServedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_runs, "_WAIT_S", 0.5)
    agent = await client.agent()
    async with streaming(client, agent.id, "Hi [[stall]]") as seen:
        await client.model_asked()
        (run,) = await client.ask("GET", "/v1/runs/", agent_id=agent.id)
        stream = client.deps.streams.live(run["id"])
        assert stream is not None
        async with stream.storing, asyncio.timeout(SOON_S):
            answer = await client.ask("POST", f"/v1/agents/{agent.id}/messages/cancel", {})
        assert answer == {run["id"]: "failed"}
    await check_end(client, agent.id, run["id"], seen)


@pytest.mark.parametrize("background", [False, True])
async def test_what_was_said_before_the_cancel_is_kept_under_the_id_it_was_shown_with(
    client: ServedClient, background: bool
) -> None:
    agent = await client.agent()
    text = "Hi [[no_reasoning]] [[tokens:50]] [[stall_after:5]]"
    async with streaming(client, agent.id, text, stream_tokens=True, background=background) as seen:
        await eventually(lambda: len(seen) == 5)
        run_id = await cancel_soon(client, agent.id)
    stored = await history(client, agent.id, "assistant_message")
    assert [(message.id, message.otid) for message in stored] == [(seen[0]["id"], seen[0]["otid"])]
    assert stored[0].content == "".join(event["content"] for event in seen[:5])
    await check_end(client, agent.id, run_id, seen)


@pytest.mark.parametrize("mode", ["steps", "tokens", "background"])
async def test_a_tool_that_ignores_every_request_to_stop_is_killed_with_its_whole_group(
    client: ServedClient, listener: socket.socket, mode: str
) -> None:
    tool = await client.tools.upsert(source_code=STUBBORN)
    agent = await client.agent(tool_ids=[tool.id])
    port = listener.getsockname()[1]
    options = {"stream_tokens": mode == "tokens", "background": mode == "background"}
    loop = asyncio.get_running_loop()
    async with streaming(client, agent.id, f"Call stubborn with port {port}", **options) as seen:
        async with asyncio.timeout(60):
            line, _ = await loop.sock_accept(listener)
            line.setblocking(False)
            assert await loop.sock_recv(line, 2)
        started = time.monotonic()
        run_id = await cancel_soon(client, agent.id)
        assert time.monotonic() - started < SOON_S
    line.settimeout(60)  # the kernel closes what the dead had open one by one
    with line, contextlib.suppress(ConnectionResetError):
        while rest := line.recv(1):
            assert rest == b"r"  # the other process of the call was as far as this
    returned = [event for event in seen if event != "[DONE]" and event["message_type"] == "tool_return_message"]
    assert len(returned) == 1
    assert returned[0]["status"] == "error"
    assert "cancelled" in returned[0]["tool_return"]
    await check_end(client, agent.id, run_id, seen)


async def test_a_blocking_request_that_is_cancelled_is_answered_in_the_ordinary_shape(client: ServedClient) -> None:
    agent = await client.agent()
    asking = asyncio.create_task(client.say(agent.id, "Hi [[stall]]"))
    await client.model_asked()
    await cancel_soon(client, agent.id)
    answer = await asking
    assert (answer.stop_reason.stop_reason, answer.messages) == ("cancelled", [])


async def test_cancelling_a_pause_denies_every_call_and_frees_the_agent(client: ServedClient) -> None:
    free = await client.tools.upsert(source_code=GUARDED.replace("guarded", "free"))
    agent = await client.guarded_agent(GUARDED, model_settings={"provider_type": "openai", "parallel_tool_calls": True})
    await client.agents.tools.attach(free.id, agent_id=agent.id)
    calls = " ".join(f'[[call:{name} {{"what": "x"}}]]' for name in ("guarded", "free", "guarded", "guarded"))
    paused = await client.say(agent.id, f"{calls} [[parallel]]")
    assert paused.stop_reason.stop_reason == "requires_approval"
    run_id = await cancel_soon(client, agent.id)
    answer, returned = (await history(client, agent.id))[-2:]
    assert [each.approve for each in answer.approvals] == [False] * 3
    assert all(DENIED_BY_CANCEL in each.tool_return for each in returned.tool_returns)
    assert len(returned.tool_returns) == 4
    assert {answer.run_id, returned.run_id} == {run_id}
    assert (await client.say(agent.id, "Hello again")).stop_reason.stop_reason == "end_turn"
    await assert_invariants(client.deps.database, idle=True)


async def test_cancelling_twice_at_once_and_again_later_gives_one_end(client: ServedClient) -> None:
    agent = await client.agent()
    async with streaming(client, agent.id, "Hi [[stall]]", background=True) as seen:
        await client.model_asked()
        first, second = await asyncio.gather(*(client.agents.messages.cancel(agent.id) for _ in range(2)))
        run_id = next(iter(first))
        assert first == second == {run_id: "cancelled"}
    assert await client.agents.messages.cancel(agent.id, run_ids=[run_id]) == {run_id: "cancelled"}
    await check_end(client, agent.id, run_id, seen)


async def test_a_run_that_has_ended_by_itself_stays_as_it_ended(client: ServedClient) -> None:
    agent = await client.agent()
    answer = await client.say(agent.id, "Hi")
    run_id = answer.messages[0].run_id
    assert await client.agents.messages.cancel(agent.id, run_ids=[run_id]) == {run_id: "already_finished"}
    assert (await client.runs.retrieve(run_id)).status == "completed"


@on_both_databases
async def test_a_cancel_between_acceptance_and_start_reaches_a_model_that_never_speaks(
    template: Template, tmp_path: Path
) -> None:
    """The run is on record and nobody owns it yet: the push finds no one, and must not be the only chance."""
    async with world_from(template, tmp_path) as world:
        node = SeamNode(world)
        node.seams.arm(1, node.strike, "after a write")
        run = await asyncio.wait_for(node.ask("Hi [[stall]]"), 60)
        assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
        assert await node.cancelling[0] == {run.id: "cancelled"}
        await assert_invariants(world.database, idle=True)


@on_both_databases
async def test_a_tool_that_returns_while_the_return_of_another_is_written_is_not_said_to_have_been_stopped(
    template: Template, tmp_path: Path
) -> None:
    """The cancel comes between: what is being written is refused, and what came meanwhile nobody has looked at yet."""
    async with world_from(template, tmp_path) as world:
        node, may_return = SeamNode(world), asyncio.Event()

        async def cancel_and_let_the_other_return() -> None:
            await node.strike()
            may_return.set()
            await eventually(lambda: len(node.executor.handed_back) == 2)

        async def first(call: OpenCall) -> ToolReturn:
            node.seams.arm(1, cancel_and_let_the_other_return, "before a write")
            return ToolReturn(call.call.id, call.call.name, "success", "first")

        async def second(call: OpenCall) -> ToolReturn:
            await may_return.wait()
            return ToolReturn(call.call.id, call.call.name, "success", "second")

        world.tools.answers |= {"slow": first, "slow_lookup": second}
        run = await asyncio.wait_for(node.ask("[[call:slow {}]] [[call:slow_lookup {}]]"), 60)
        assert (run.status, node.seams.struck) == ("cancelled", "before a write")
        returns = [part for row in await world.window() for part in row.returns]
        assert [(part.status, part.content) for part in returns] == [("success", "first"), ("success", "second")]
        await assert_invariants(world.database, idle=True)

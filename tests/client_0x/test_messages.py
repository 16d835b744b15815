"""Messages as 0.x programs send them: blocking, streamed by the route of their own, in the background, approved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from letta_client import AsyncLetta

from tests.client_0x.conftest import LIMIT_S, MakeAgent
from tests.client_0x.refusals import refused
from tests.client_0x.sources import ROLL
from tests.serving import ServerProcess

CALL = [{"role": "user", "content": "Call the roll tool with 16 sides [[no_reasoning]]"}]
HELLO = [{"role": "user", "content": "Hello [[no_reasoning]]"}]
TURN = ["tool_call_message", "tool_return_message", "assistant_message"]
CLOSING = ["stop_reason", "usage_statistics"]


@pytest.fixture
def roller(client: Any, make_agent: MakeAgent) -> str:
    return make_agent(tool_ids=[client.tools.upsert(source_code=ROLL).id]).id


def types(messages: Iterable[Any]) -> list[str]:
    return [message.message_type for message in messages if message.message_type != "ping"]


def test_a_message_is_answered_and_listed(client: Any, roller: str) -> None:
    answer = client.agents.messages.create(agent_id=roller, messages=CALL)
    assert types(answer.messages) == TURN
    assert (answer.stop_reason.stop_reason, answer.usage.step_count) == ("end_turn", 2)
    assert "a 16 of 16" in answer.messages[-1].content
    assert types(client.agents.messages.list(agent_id=roller)) == ["system_message", "user_message", *TURN]


def test_a_stream_of_steps_ends_with_stop_reason_and_usage(client: Any, roller: str) -> None:
    events = list(client.agents.messages.create_stream(agent_id=roller, messages=CALL))
    assert types(events) == [*TURN, *CLOSING]


def test_tokens_are_streamed_under_one_id(client: Any, roller: str) -> None:
    said = [{"role": "user", "content": "Talk [[no_reasoning]] [[tokens:20]]"}]
    events = list(client.agents.messages.create_stream(agent_id=roller, messages=said, stream_tokens=True))
    words = [event for event in events if event.message_type == "assistant_message"]
    assert len(words) >= 20
    assert len({word.id for word in words}) == 1
    assert types(events)[-2:] == CLOSING


def test_a_background_stream_is_resumed_from_the_middle(client: Any, roller: str) -> None:
    said = [{"role": "user", "content": "Talk [[no_reasoning]] [[tokens:20]]"}]
    events = list(
        client.agents.messages.create_stream(agent_id=roller, messages=said, stream_tokens=True, background=True)
    )
    words = [event for event in events if event.message_type == "assistant_message"]
    middle = words[9]
    resumed = client.runs.stream(run_id=middle.run_id, starting_after=middle.seq_id)
    rest = [event.seq_id for event in resumed if event.message_type == "assistant_message"]
    assert rest == [word.seq_id for word in words[10:]]


async def test_the_asynchronous_client_streams(server: ServerProcess, roller: str) -> None:
    connect: Any = AsyncLetta
    async with httpx.AsyncClient(timeout=LIMIT_S) as http:
        client = connect(base_url=server.url, token="not needed", httpx_client=http)
        stream = client.agents.messages.create_stream(agent_id=roller, messages=CALL)
        assert types([event async for event in stream]) == [*TURN, *CLOSING]


def test_an_asynchronous_message_becomes_a_run_with_steps_and_usage(client: Any, roller: str) -> None:
    run = client.agents.messages.create_async(agent_id=roller, messages=[{"role": "user", "content": "[[say:Yes]]"}])
    client.agents.messages.create(agent_id=roller, messages=HELLO)  # waits in line, so the run is over then
    ended = client.runs.retrieve(run_id=run.id)
    assert (ended.status, ended.agent_id) == ("completed", roller)
    assert types(client.runs.messages.list(run_id=run.id))[-1] == "assistant_message"
    assert len(client.runs.steps.list(run_id=run.id)) == 1
    assert client.runs.usage.retrieve(run_id=run.id).total_tokens > 0
    assert run.id in {found.id for found in client.runs.list(agent_ids=[roller])}
    assert run.id not in {found.id for found in client.runs.list_active()}


def test_a_call_that_needs_approval_is_answered_in_the_words_of_0x(client: Any, roller: str) -> None:
    client.agents.tools.modify_approval(agent_id=roller, tool_name="roll", requires_approval=True)
    asked = client.agents.messages.create(agent_id=roller, messages=CALL)
    assert asked.stop_reason.stop_reason == "requires_approval"
    request = asked.messages[-1]
    assert request.message_type == "approval_request_message"
    assert client.agents.retrieve(agent_id=roller).pending_approval["id"] == request.id
    approval = {"type": "approval", "approve": True, "approval_request_id": request.id}
    answer = client.agents.messages.create(agent_id=roller, messages=[approval])
    assert types(answer.messages) == TURN[1:]
    assert client.agents.retrieve(agent_id=roller).pending_approval is None


def test_a_reset_is_answered_with_the_agent_and_an_idle_agent_has_nothing_to_cancel(client: Any, roller: str) -> None:
    client.agents.messages.create(agent_id=roller, messages=HELLO)
    assert len(client.agents.retrieve(agent_id=roller).message_ids) == 3
    assert len(client.agents.messages.reset(agent_id=roller).message_ids) == 1
    with refused(409):
        client.agents.messages.cancel(agent_id=roller)

"""Steps: each model call, its cost, and what people thought of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from letta_client import NotFoundError

from holdfast import ids

from ..served import ServedClient, served

HELLO = 'def greet() -> str:\n    """Say hello."""\n    return "hello"\n'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def test_every_model_call_is_a_step_with_its_own_usage(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=HELLO)
    agent = await client.agent(tool_ids=[tool.id])
    await client.say(agent.id, "Call greet [[usage:100,10,5,2]]")
    newest, oldest = [step async for step in client.steps.list(agent_id=agent.id)]
    for step in (newest, oldest):
        assert (step.status, step.prompt_tokens, step.completion_tokens) == ("success", 100, 10)
        assert (step.model, step.provider_name) == ("offline", "holdfast")
    assert (oldest.stop_reason, newest.stop_reason) == (None, "end_turn")
    assert (await client.steps.retrieve(newest.id)).run_id == newest.run_id
    assert [step.id async for step in client.steps.list(agent_id=agent.id, order="asc")] == [oldest.id, newest.id]


async def test_a_step_shows_its_messages_and_how_long_it_took(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=HELLO)
    agent = await client.agent(tool_ids=[tool.id])
    await client.say(agent.id, "Call greet [[no_reasoning]]")
    first, _ = [step async for step in client.steps.list(agent_id=agent.id, order="asc")]
    shown = [message.message_type async for message in client.steps.messages.list(first.id)]
    assert shown == ["tool_call_message", "tool_return_message"]
    metrics = await client.steps.metrics.retrieve(first.id)
    assert (metrics.llm_request_ns or 0) > 0
    assert (metrics.tool_execution_ns or 0) > 0
    assert (metrics.step_ns or 0) >= (metrics.llm_request_ns or 0)


async def test_feedback_is_kept_filtered_by_and_taken_back(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "one")
    await client.say(agent.id, "two")
    liked, other = [step async for step in client.steps.list(agent_id=agent.id)]
    given = await client.steps.feedback.create(liked.id, feedback="positive", tags=["kind"])
    assert (given.feedback, given.tags) == ("positive", ["kind"])
    assert [step.id async for step in client.steps.list(feedback="positive")] == [liked.id]
    assert [step.id async for step in client.steps.list(has_feedback=False)] == [other.id]
    taken_back = await client.steps.feedback.create(liked.id, feedback=None)
    assert (taken_back.feedback, taken_back.tags) == (None, ["kind"])
    await client.refusal(422, "PATCH", f"/v1/steps/{liked.id}/feedback", {"feedback": "meh"})


async def test_steps_are_filtered_by_model_and_time(client: ServedClient) -> None:
    agent = await client.agent()
    await client.say(agent.id, "one")
    (step,) = [step async for step in client.steps.list(model="offline")]
    assert [found.id async for found in client.steps.list(model="holdfast/offline")] == [step.id]
    assert [found async for found in client.steps.list(model="other")] == []
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert [found async for found in client.steps.list(start_date=soon)] == []
    assert [found.id async for found in client.steps.list(end_date=soon)] == [step.id]
    await client.refusal(422, "GET", "/v1/steps/", start_date="yesterday")


async def test_a_failed_step_tells_why(client: ServedClient) -> None:
    agent = await client.agent()
    answer = await client.http.post(
        f"/v1/agents/{agent.id}/messages", json={"input": "[[error:bad_request]] [[message:no such thing]]"}
    )
    assert answer.status_code == 400
    (step,) = await client.ask("GET", "/v1/steps/", agent_id=agent.id)
    assert (step["status"], step["stop_reason"], step["error_type"]) == ("failed", "llm_api_error", "Refused")
    assert "no such thing" in str(step["error_data"])


async def test_an_unknown_step_is_not_found_and_a_malformed_id_is_refused(client: ServedClient) -> None:
    with pytest.raises(NotFoundError):
        await client.steps.retrieve(ids.new("step"))
    for tail in ("/metrics", "/messages"):
        await client.refusal(404, "GET", f"/v1/steps/{ids.new('step')}{tail}")
    await client.refusal(404, "PATCH", f"/v1/steps/{ids.new('step')}/feedback", {"feedback": "positive"})
    await client.refusal(422, "GET", "/v1/steps/nonsense")
    await client.refusal(422, "GET", "/v1/steps/nonsense/trace")

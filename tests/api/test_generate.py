"""`POST /v1/agents/{agent_id}/generate`: one answer of the agent's model, of which nothing is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ..served import ServedClient, served

NOBODY = "agent-00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def test_the_agents_model_answers_and_nothing_is_stored(client: ServedClient) -> None:
    agent = await client.agent()
    before = [each.id async for each in client.agents.messages.list(agent.id)]
    answer = await client.ask("POST", f"/v1/agents/{agent.id}/generate", {"prompt": "[[say:four]]"})
    assert answer["content"] == "four"
    assert answer["model"] == agent.llm_config.model
    assert 0 < answer["usage"]["completion_tokens"] < answer["usage"]["total_tokens"]
    assert [each.id async for each in client.agents.messages.list(agent.id)] == before
    assert [each async for each in client.runs.list(agent_id=agent.id)] == []


async def test_a_schema_shapes_the_answer_and_what_it_names_is_required_unless_it_says_otherwise(
    client: ServedClient,
) -> None:
    agent = await client.agent()
    schema = {"properties": {"city": {"type": "string"}, "people": {"type": "integer"}}}
    body = {"prompt": 'Call structured_output with {"city": "Rome", "people": 3}', "response_schema": schema}
    answer = await client.ask("POST", f"/v1/agents/{agent.id}/generate", body)
    assert json.loads(answer["content"]) == {"city": "Rome", "people": 3}


async def test_what_cannot_be_answered_is_refused_in_words(client: ServedClient) -> None:
    agent = await client.agent()
    path = f"/v1/agents/{agent.id}/generate"
    for prompt in ("", " \n\t "):
        await client.refusal(422, "POST", path, {"prompt": prompt})
    await client.refusal(404, "POST", f"/v1/agents/{NOBODY}/generate", {"prompt": "Hello"})
    missing = {"prompt": "Hello", "override_model": "nobody/none"}
    assert "not found" in str(await client.refusal(404, "POST", path, missing))
    failed = await client.http.post(path, json={"prompt": "[[error:auth]]"})
    assert (failed.status_code, failed.json()["error"]["type"]) == (401, "llm_authentication")

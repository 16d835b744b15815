"""`POST /v1/chat/completions`: an agent for programs that know only OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ..served import ServedClient, served

PATH = "/v1/chat/completions"
ROLL = 'def roll() -> str:\n    """Roll."""\n    return "six"\n'
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


def asking(agent_id: str, *contents: Any, **fields: Any) -> dict[str, Any]:
    return {"model": agent_id, "messages": [{"role": "user", "content": each} for each in contents], **fields}


async def chunks(client: ServedClient, body: dict[str, Any]) -> list[Any]:
    *events, done = await client.events(PATH, body)
    assert done == "[DONE]"
    return events


def said(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


async def test_an_agent_answers_with_a_completion_that_holds_only_what_it_says(client: ServedClient) -> None:
    tool = await client.tools.upsert(source_code=ROLL)
    agent = await client.agent(tool_ids=[tool.id])
    answer = await client.ask("POST", PATH, asking(agent.id, "Call roll", temperature=0.3, n=1))
    (choice,) = answer["choices"]
    assert (choice["message"]["role"], choice["finish_reason"]) == ("assistant", "stop")
    assert choice["message"]["content"] == "roll returned six."
    assert (answer["object"], answer["model"]) == ("chat.completion", agent.id)
    assert answer["usage"]["total_tokens"] > answer["usage"]["completion_tokens"] > 0


async def test_the_path_may_come_twice_as_livekit_asks_for_it(client: ServedClient) -> None:
    agent = await client.agent()
    answer = await client.ask("POST", f"{PATH}/chat/completions", asking(agent.id, "[[say:one two three]]"))
    assert answer["choices"][0]["message"]["content"] == "one two three"


async def test_a_stream_is_chunks_of_what_is_said_and_one_stop(client: ServedClient) -> None:
    agent = await client.agent()
    events = await chunks(client, asking(agent.id, "[[say:one two three]]", stream=True))
    assert said(events) == "one two three"
    assert {(event["object"], event["model"], len(event["choices"])) for event in events} == {
        ("chat.completion.chunk", agent.id, 1)
    }
    assert [event["choices"][0]["finish_reason"] for event in events[-2:]] == [None, "stop"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    cut = await chunks(client, asking(agent.id, "[[say:half]] [[finish:length]]", stream=True))
    assert (said(cut), cut[-1]["choices"][0]["finish_reason"]) == ("half", "length")
    asked = asking(agent.id, "[[say:again]]", stream=True, stream_options={"include_usage": True})
    *_, last = await chunks(client, asked)
    assert (last["choices"], last["usage"]["prompt_tokens"] > 0) == ([], True)


async def test_the_agent_has_its_own_history_so_only_the_last_message_of_the_user_is_sent(client: ServedClient) -> None:
    agent = await client.agent()
    body = asking(agent.id, "first", "second")
    body["messages"] += [{"role": "assistant", "content": "of another program"}]
    await client.ask("POST", PATH, body)
    stored = [each async for each in client.agents.messages.list(agent.id, order="asc")]
    assert [each.content for each in stored if each.message_type == "user_message"][-1:] == ["second"]
    assert "first" not in [each.content for each in stored if each.message_type == "user_message"]


async def test_an_agent_that_speaks_through_send_message_is_understood(client: ServedClient) -> None:
    agent = await client.agent(agent_type="memgpt_v2_agent", tools=["send_message"])
    answer = await client.ask("POST", PATH, asking(agent.id, "[[say:by a tool]]"))
    assert answer["choices"][0]["message"]["content"] == "by a tool"
    assert said(await chunks(client, asking(agent.id, "[[say:in pieces]]", stream=True))) == "in pieces"


async def test_parts_are_texts_and_images(client: ServedClient) -> None:
    agent = await client.agent()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    answer = await client.ask("POST", PATH, asking(agent.id, [{"type": "text", "text": "[[say:seen]]"}, image]))
    assert answer["choices"][0]["message"]["content"] == "seen"
    wrong = asking(agent.id, [{"type": "input_audio", "input_audio": {}}])
    assert "input_audio" in await client.refusal(400, "POST", PATH, wrong)


async def test_what_is_wrong_is_told_in_words(client: ServedClient) -> None:
    agent = await client.agent()
    assert "id of an agent" in await client.refusal(400, "POST", PATH, asking("gpt-4o", "Hello"))
    nobody = {"model": agent.id, "messages": [{"role": "system", "content": "Be kind."}]}
    assert "No user message" in await client.refusal(400, "POST", PATH, nobody)
    await client.refusal(404, "POST", PATH, asking("agent-00000000-0000-4000-8000-000000000000", "Hello"))
    failed = await client.http.post(PATH, json=asking(agent.id, "[[error:auth]]"))
    assert (failed.status_code, failed.json()["error"]["type"]) == (401, "llm_authentication")
    (event,) = await chunks(client, asking(agent.id, "[[error:auth]]", stream=True))
    assert event["error"]["type"] == "llm_authentication"

"""One message by its id, and the messages of every agent; and what counts as the same message sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from letta_client import NotFoundError

from ..served import ServedClient, served

UNKNOWN = "message-123e4567-e89b-42d3-8456-426614174000"


@pytest.fixture
async def client(database_url: str, tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path, database_url=database_url) as client:
        yield client


async def test_a_message_is_shown_with_all_that_its_row_holds(client: ServedClient) -> None:
    agent = await client.agent(tools=["memory_insert"], memory_blocks=[{"label": "human", "value": ""}])
    text = "Call memory_insert with {'label': 'human', 'new_string': 'Ada'}"
    await client.say(agent.id, text)
    listed = [each async for each in client.agents.messages.list(agent.id, order="asc")]
    shown = [await client.messages.retrieve(each.id) for each in listed]
    assert shown == [[other for other in listed if other.id == each.id] for each in listed]
    assert max(map(len, shown)) > 1, "reasoning beside something else"


async def test_an_unknown_message_is_not_found_and_a_malformed_id_is_refused(client: ServedClient) -> None:
    with pytest.raises(NotFoundError, match=UNKNOWN):
        await client.messages.retrieve(UNKNOWN)
    assert "message-" in await client.refusal(422, "GET", "/v1/messages/nonsense")


async def test_the_messages_of_all_agents_are_listed_in_the_order_asked_for(client: ServedClient) -> None:
    one, two = await client.agent(), await client.agent()
    await client.say(one.id, "[[say:first]]")
    await client.say(two.id, "[[say:second]]")
    query: Any = {"include_return_message_types": ["assistant_message"]}
    newest = await client.messages.list(**query)
    assert [each.content for each in newest if each.message_type == "assistant_message"] == ["second", "first"]
    oldest = await client.messages.list(order="asc", **query)
    assert oldest == newest[::-1]
    [rest] = await client.messages.list(order="asc", after=oldest[0].id, **query)
    assert rest.id == oldest[1].id


async def test_a_list_of_one_conversation_holds_no_other(client: ServedClient) -> None:
    agent = await client.agent()
    conversation = await client.conversations.create(agent_id=agent.id)
    await client.say(agent.id, "[[say:in the agent's own history]]")
    await client.ask("POST", f"/v1/conversations/{conversation.id}/messages", {"input": "hello", "streaming": False})
    listed = await client.messages.list(conversation_id=conversation.id)
    assert "hello" in str(listed) and "own history" not in str(listed)
    with pytest.raises(NotFoundError):
        await client.messages.list(conversation_id="conv-123e4567-e89b-42d3-8456-426614174000")


async def test_an_otid_with_other_content_is_a_new_message_and_with_the_same_a_retry(client: ServedClient) -> None:
    agent = await client.agent()

    async def said(text: str) -> Any:
        message = {"role": "user", "content": text, "otid": "1"}
        return await client.ask("POST", f"/v1/agents/{agent.id}/messages", {"messages": [message]})

    first, other, again = await said("[[say:one]]"), await said("[[say:two]]"), await said("[[say:one]]")
    assert [answer["messages"][-1]["content"] for answer in (first, other, again)] == ["one", "two", "one"]
    runs = {answer["messages"][-1]["run_id"] for answer in (first, other, again)}
    assert len(runs) == 2
    assert len([run async for run in client.runs.list(agent_id=agent.id)]) == 2


async def test_health_names_the_version_of_the_api_and_our_own(client: ServedClient) -> None:
    health = await client.health()
    major, minor, _ = map(int, health.version.split("."))
    assert (major, minor) == (0, 16), "what programs written for the old server compare with"
    assert health.status == "ok"
    assert health.to_dict()["holdfast_version"]

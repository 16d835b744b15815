"""The tools of agents that listen and of those that speak: what is kept of a conversation, and how it is found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ..served import ServedClient, served

HUMAN = [{"label": "human", "value": "Name: Ada."}]
CALL = "user: I moved to Lisbon.\nassistant: How nice!\nuser: My cat is called Miso."


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[ServedClient]:
    async with served(tmp_path) as client:
        yield client


async def listener(client: ServedClient, **fields: Any) -> str:
    known: dict[str, Any] = {"agent_type": "voice_sleeptime_agent", "include_base_tools": True}
    return (await client.agent(**known | {"memory_blocks": HUMAN} | fields)).id


async def returned(client: ServedClient, agent_id: str, name: str, args: dict[str, Any], before: str = "") -> Any:
    """Of a call that the agent makes in its turn, after it was given what comes before."""
    answer = await client.say(agent_id, f"{before}\n[[call:{name} {json.dumps(args)}]]".strip())
    return next(each for each in answer.messages if each.message_type == "tool_return_message")


async def passages(client: ServedClient, agent_id: str) -> list[str]:
    return [each["text"] for each in await client.ask("GET", f"/v1/agents/{agent_id}/archival-memory")]


async def test_a_listening_agent_starts_with_its_tools_and_without_rules(client: ServedClient) -> None:
    agent = await client.ask("GET", f"/v1/agents/{await listener(client)}", include="agent.tools")
    names = {tool["name"] for tool in agent["tools"]}
    assert names == {"store_memories", "rethink_user_memory", "finish_rethinking_memory"}
    assert agent["tool_rules"] == []


async def test_pieces_of_the_conversation_become_passages(client: ServedClient) -> None:
    agent_id = await listener(client)
    chunks = [
        {"start_index": 0, "end_index": 1, "context": "Ada lives in Lisbon."},
        {"start_index": 2, "end_index": 2, "context": "Ada has a cat."},
    ]
    stored = await returned(client, agent_id, "store_memories", {"chunks": chunks}, CALL)
    assert (stored.status, stored.tool_return) == ("success", "None"), stored
    assert sorted(await passages(client, agent_id)) == [
        "Ada has a cat.\n\nuser: My cat is called Miso.",
        "Ada lives in Lisbon.\n\nuser: I moved to Lisbon.\nassistant: How nice!",
    ]


async def test_by_hand_the_last_message_is_the_conversation(client: ServedClient) -> None:
    given: Any = [{"role": "user", "content": "one\ntwo"}, {"role": "assistant", "content": "three"}]
    agent_id = await listener(client, initial_message_sequence=given)
    path = f"/v1/agents/{agent_id}/tools/store_memories/run"
    chunk = {"start_index": 1, "end_index": 1, "context": "c"}
    assert (await client.ask("POST", path, {"args": {"chunks": [chunk]}}))["status"] == "success"
    assert await passages(client, agent_id) == ["c\n\ntwo"]


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([], "chunks is empty"),
        ([{"start_index": 0, "end_index": 9, "context": "c"}], "There are no lines 0 to 9"),
        ([{"start_index": 2, "end_index": 1, "context": "c"}], "There are no lines 2 to 1"),
        ([{"start_index": -1, "end_index": 1, "context": "c"}], "There are no lines -1 to 1"),
        ([{"start_index": 0, "end_index": 0}], "do not fit"),
        ("x", "do not fit"),
    ],
)
async def test_what_is_no_piece_of_the_conversation_is_an_error_and_nothing_is_stored(
    client: ServedClient, chunks: Any, why: str
) -> None:
    agent_id = await listener(client)
    answer = await returned(client, agent_id, "store_memories", {"chunks": chunks}, CALL)
    assert (answer.status, why in answer.tool_return) == ("error", True), answer
    assert await passages(client, agent_id) == []


async def test_what_is_known_of_the_user_is_rewritten(client: ServedClient) -> None:
    agent_id = await listener(client)
    rewritten = await returned(client, agent_id, "rethink_user_memory", {"new_memory": "Ada, of Lisbon."})
    assert (rewritten.status, rewritten.tool_return) == ("success", "Ada, of Lisbon.")
    block = await client.ask("GET", f"/v1/agents/{agent_id}/core-memory/blocks/human")
    assert block["value"] == "Ada, of Lisbon."
    done = await returned(client, agent_id, "finish_rethinking_memory", {})
    assert (done.status, done.tool_return) == ("success", "None")
    without = await listener(client, memory_blocks=[])
    answer = await returned(client, without, "rethink_user_memory", {"new_memory": "x"})
    assert (answer.status, "Block field human does not exist" in answer.tool_return) == ("error", True)


async def speaker(client: ServedClient) -> str:
    said: Any = [
        {"role": "user", "content": "I grow marzipan trees"},
        {"role": "assistant", "content": "Lovely trees"},
        {"role": "user", "content": "and tulips"},
    ]
    agent = await client.agent(tools=["search_memory"], initial_message_sequence=said)
    for text in ("Ada once had tulips in Delft.", "Ada dislikes trains."):
        await client.ask("POST", f"/v1/agents/{agent.id}/archival-memory", {"text": text})
    return agent.id


async def found(client: ServedClient, agent_id: str, **args: Any) -> dict[str, list[str]]:
    ran = await client.ask("POST", f"/v1/agents/{agent_id}/tools/search_memory/run", {"args": args})
    assert ran["status"] == "success", ran
    told = json.loads(ran["func_return"])
    return {kind: [each["content"] for each in rows] for kind, rows in told.items()}


async def test_a_speaking_agent_finds_what_was_said_and_what_was_stored(client: ServedClient) -> None:
    agent_id = await speaker(client)
    told = await found(client, agent_id, convo_keyword_queries=["MARZIPAN", "lovely", "nothing like it"])
    assert sorted(told["conversation"]) == ["I grow marzipan trees", "Lovely trees"]
    assert told["archival_memory"][0] == "Ada once had tulips in Delft.", "the user's last words are searched for"
    assert (await found(client, agent_id, convo_keyword_queries=["trains"]))["archival_memory"] != []
    recent = await found(client, agent_id)
    assert recent["conversation"] == ["and tulips", "Lovely trees", "I grow marzipan trees"]


async def test_a_window_of_time_narrows_the_search(client: ServedClient) -> None:
    agent_id = await speaker(client)
    nothing: dict[str, list[str]] = {"conversation": [], "archival_memory": []}
    assert await found(client, agent_id, start_minutes_ago=1) == nothing, "all of it is newer"
    assert (await found(client, agent_id, end_minutes_ago=5))["conversation"] != []
    assert await found(client, agent_id, start_minutes_ago=1, end_minutes_ago=5) == nothing
    in_either_order = await found(client, agent_id, start_minutes_ago=5, end_minutes_ago=0)
    assert len(in_either_order["conversation"]) == 3


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"start_minutes_ago": -1}, "start_minutes_ago must be from 0"),
        ({"end_minutes_ago": 10**12}, "end_minutes_ago must be from 0"),
        ({"convo_keyword_queries": ["x"] * 3 + [str(n) for n in range(10)]}, "may hold 10 texts"),
        ({"convo_keyword_queries": ["x" * 1_001]}, "of 1000 characters"),
        ({"convo_keyword_queries": "x"}, "do not fit"),
    ],
)
async def test_a_search_that_makes_no_sense_is_an_error(client: ServedClient, args: dict[str, Any], why: str) -> None:
    agent = await client.agent(tools=["search_memory"])
    answer = await returned(client, agent.id, "search_memory", args)
    assert (answer.status, why in answer.tool_return) == ("error", True), answer

"""Messages found by their words, on both databases."""

from __future__ import annotations

from typing import Any

from holdfast import ids
from holdfast.core.messages import Message, Role, Text
from holdfast.core.records import Thread
from holdfast.store import messages, threads
from holdfast.store.transaction import Transaction

from .resources import Served

ALL = "/v1/messages/search"
STORED = "/v1/agents/messages/search"
FEBRUARY = 1_706_745_600_000_000  # 2024-02-01


async def tell(
    served: Served, agent_id: str, text: str, role: Role = "user", thread: str | None = None, at: int = 0
) -> str:
    message = Message(id=ids.new("message"), role=role, parts=(Text(text),), created_us=at)

    async def write(tx: Transaction) -> None:
        await messages.insert_many(tx, agent_id, [message])
        await threads.append(tx, thread or agent_id, [message.id])

    await served.deps.database.write(write)
    return message.id


async def found(served: Served, query: str, **options: Any) -> list[str]:
    return [item["content"] for item in await served.ok("POST", ALL, {"query": query, **options})]


async def test_what_was_said_is_found_newest_first(served: Served) -> None:
    ann, bob = await served.create(name="Ann"), await served.create(name="Bob")
    first = await tell(served, ann["id"], "I like green tea")
    await tell(served, bob["id"], "Tea? Green, please!", "assistant")
    await tell(served, ann["id"], "coffee")
    items = await served.client.messages.search(query="TEA green")
    assert [(item.agent_id, item.message_type) for item in items] == [
        (bob["id"], "assistant_message"),
        (ann["id"], "user_message"),
    ]
    assert items[1].message_id == first
    assert items[1].conversation_id is None
    assert await found(served, "tea", agent_id=ann["id"]) == ["I like green tea"]
    assert await found(served, "tea", limit=1) == ["Tea? Green, please!"]
    assert await found(served, "tea", search_mode="vector") == await found(served, "tea")
    assert await found(served, "nothing of the kind") == []


async def test_conversations_and_dates_narrow_it_down(served: Served) -> None:
    agent = await served.create()
    thread = Thread(id=ids.new("conv"), agent_id=agent["id"])
    await served.deps.database.write(lambda tx: threads.insert(tx, thread))
    await tell(served, agent["id"], "tea at home", at=FEBRUARY)
    await tell(served, agent["id"], "tea elsewhere", thread=thread.id, at=FEBRUARY + 86_400_000_000)
    [item] = await served.ok("POST", ALL, {"query": "tea", "conversation_id": thread.id})
    assert (item["content"], item["conversation_id"]) == ("tea elsewhere", thread.id)
    own = {"agent_id": agent["id"], "conversation_id": "default"}
    assert await found(served, "tea", **own) == ["tea at home"]
    assert await found(served, "tea", end_date="2024-02-01") == ["tea at home"]
    assert await found(served, "tea", start_date="2024-02-02T00:00:00Z") == ["tea elsewhere"]


async def test_stored_messages_come_with_their_ranks(served: Served) -> None:
    agent = await served.create()
    await tell(served, agent["id"], "tea one")
    await tell(served, agent["id"], "tea two", "assistant")
    hits = await served.ok("POST", STORED, {"query": "tea", "agent_id": agent["id"]})
    assert [(hit["embedded_text"].strip(), hit["fts_rank"], hit["vector_rank"]) for hit in hits] == [
        ("tea two", 1, None),
        ("tea one", 2, None),
    ]
    assert hits[0]["rrf_score"] > hits[1]["rrf_score"] > 0
    assert hits[0]["message"]["role"] == "assistant"
    [spoken] = await served.ok("POST", STORED, {"agent_id": agent["id"], "roles": ["user"]})
    assert spoken["embedded_text"].strip() == "tea one"


async def test_bad_requests_say_what_is_wrong(served: Served) -> None:
    await served.refused(422, "POST", ALL, {})
    await served.refused(422, "POST", ALL, {"query": "x", "limit": 101})
    await served.refused(422, "POST", ALL, {"query": "x", "search_mode": "psychic"})
    await served.refused(422, "POST", ALL, {"query": "x", "start_date": "bad"})
    await served.refused(422, "POST", ALL, {"query": "x", "conversation_id": "default"})
    await served.refused(404, "POST", ALL, {"query": "x", "conversation_id": ids.new("conv")})
    await served.refused(404, "POST", STORED, {"agent_id": ids.new("agent")})


async def test_a_query_of_a_thousand_words_is_answered(served: Served) -> None:
    agent = await served.create()
    await tell(served, agent["id"], "tea " * 3)
    assert await found(served, " ".join(f"w{number}" for number in range(900))) == []
    assert await found(served, "tea " * 1_000) == ["tea " * 3]

"""Calls of the client that other tests make by their paths."""

from __future__ import annotations

from .resources import Served


async def test_prompts_are_compiled_again_through_the_client(served: Served) -> None:
    made = await served.create(system="You are Ada.")
    assert "You are Ada." in await served.client.agents.recompile(made["id"])
    conversation = await served.client.conversations.create(agent_id=made["id"])
    assert "You are Ada." in await served.client.conversations.recompile(conversation.id)


async def test_passages_are_deleted_through_the_client(served: Served) -> None:
    made = await served.create()
    [passage] = await served.client.agents.passages.create(made["id"], text="Tea is hot.")
    assert passage.id
    await served.client.agents.passages.delete(passage.id, agent_id=made["id"])
    assert await served.client.agents.passages.list(made["id"]) == []
    archive = await served.client.archives.create(name="facts")
    kept, gone = [await served.client.archives.passages.create(archive.id, text=text) for text in ("one", "two")]
    assert gone.id
    await served.client.archives.passages.delete(gone.id, archive_id=archive.id)
    found = await served.client.passages.search(archive_id=archive.id)
    assert [each.passage.id for each in found] == [kept.id]


async def test_the_agents_of_a_folder_are_listed_through_the_client(served: Served) -> None:
    folder = await served.client.folders.create(name="docs", embedding="acme/vectors")
    made = [await served.create(folder_ids=[folder.id]) for _ in range(3)]
    assert await served.client.folders.agents.list(folder.id, order="asc") == [agent["id"] for agent in made]

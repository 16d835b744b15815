"""The tags of agents and blocks in one list."""

from __future__ import annotations

from .resources import Served

EVERY = ["Zeta", "agent1", "agent2", "development", "production", "test"]


async def fill(served: Served) -> None:
    await served.create(tags=["test", "agent1", "production"])
    await served.create(tags=["test", "agent2", "development"])
    await served.ok("POST", "/v1/blocks/", {"label": "human", "value": "", "tags": ["Zeta", "test"]})


async def test_tags_of_agents_and_blocks_are_listed_once_each(served: Served) -> None:
    assert await served.client.tags.list() == []
    await fill(served)
    assert sorted(await served.client.tags.list()) == EVERY


async def test_tags_are_their_own_cursors_in_both_orders(served: Served) -> None:
    await fill(served)
    listed = await served.client.tags.list()
    assert await served.client.tags.list(limit=2) == listed[:2]
    assert await served.client.tags.list(after=listed[1], limit=2) == listed[2:4]
    assert await served.client.tags.list(before=listed[4], limit=2) == listed[2:4]
    assert await served.client.tags.list(order="desc") == listed[::-1]
    assert await served.client.tags.list(order="desc", after=listed[4], limit=2) == [listed[3], listed[2]]
    assert await served.client.tags.list(order="desc", before=listed[1], limit=2) == [listed[3], listed[2]]
    assert await served.client.tags.list(after="dev") == listed[listed.index("development") :]


async def test_tags_are_found_by_a_part_of_them(served: Served) -> None:
    await fill(served)
    assert await served.client.tags.list(name="AGENT") == ["agent1", "agent2"]
    assert await served.client.tags.list(query_text="prod") == ["production"]
    assert await served.client.tags.list(name="%") == []


async def test_a_tag_goes_with_the_last_that_bears_it(served: Served) -> None:
    made = await served.create(tags=["only"])
    assert await served.client.tags.list() == ["only"]
    await served.client.agents.delete(made["id"])
    assert await served.client.tags.list() == []


async def test_bad_questions_about_tags_are_refused(served: Served) -> None:
    await served.refused(422, "GET", "/v1/tags/", limit=0)
    await served.refused(422, "GET", "/v1/tags/", order_by="created_at")

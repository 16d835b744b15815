"""Memory blocks over HTTP, by themselves and through their agents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from letta_client import ConflictError, NotFoundError, UnprocessableEntityError

from holdfast.store import blocks as block_rows

from .resources import Served

STRANGER = "block-123e4567-e89b-42d3-8456-426614174000"


async def version_of(served: Served, block_id: str) -> int:
    return (await served.deps.database.read(lambda tx: block_rows.get(tx, block_id))).version


async def test_the_client_writes_and_reads_a_block(served: Served) -> None:
    blocks = served.client.blocks
    made = await blocks.create(
        label="human", value="Ada", limit=10, description="d", tags=["b", "a"], metadata={"k": 1}
    )
    assert (made.label, made.value, made.limit, made.tags, made.metadata) == ("human", "Ada", 10, ["a", "b"], {"k": 1})
    assert (await blocks.retrieve(made.id)).model_dump() == made.model_dump()
    changed = await blocks.update(made.id, value="Eva", read_only=True, tags=["c"])
    assert (changed.value, changed.read_only, changed.tags, changed.description) == ("Eva", True, ["c"], "d")
    await blocks.delete(made.id)
    with pytest.raises(NotFoundError):
        await blocks.retrieve(made.id)


async def test_only_a_real_change_makes_a_new_version(served: Served) -> None:
    block = await served.create_block(value="v", description="d", tags=["t"])
    path = f"/v1/blocks/{block['id']}"
    for same in (
        {},
        {"value": "v"},
        {"label": "human", "limit": 100_000, "tags": ["t"]},
        {"value": None, "label": None},
    ):
        assert await served.ok("PATCH", path, same) == block
    assert await version_of(served, block["id"]) == 1
    cleared = await served.ok("PATCH", path, {"description": None, "tags": None, "metadata": None})
    assert (cleared["description"], cleared["tags"], cleared["metadata"]) == (None, [], {})
    assert await version_of(served, block["id"]) == 2


BAD: list[tuple[dict[str, Any], str]] = [
    ({"value": "12345"}, "limit"),
    ({"limit": 3}, "limit"),
    ({"value": "123456", "limit": 5}, "6"),
    ({"label": ""}, "label"),
    ({"limit": -1}, "limit"),
    ({"limit": 2**31}, "limit"),
    ({"value": 5}, "value"),
    ({"tags": "x"}, "tags"),
]


async def test_a_change_that_breaks_a_rule_is_refused(served: Served) -> None:
    block = await served.create_block(value="1234", limit=4)
    for change, fragment in BAD:
        assert fragment in await served.refused(422, "PATCH", f"/v1/blocks/{block['id']}", change), change
        assert await served.ok("GET", f"/v1/blocks/{block['id']}") == block


async def test_a_value_may_be_as_long_as_its_limit(served: Served) -> None:
    block = await served.create_block(value="1234", limit=4)
    longer = await served.ok("PATCH", f"/v1/blocks/{block['id']}", {"value": "12345", "limit": 5})
    assert (longer["value"], longer["limit"]) == ("12345", 5)
    await served.refused(422, "POST", "/v1/blocks/", {"label": "a", "value": "123", "limit": 2})
    await served.refused(422, "POST", "/v1/blocks/", {"value": "123"})
    with pytest.raises(UnprocessableEntityError):
        await served.client.blocks.update(block["id"], value="123456", limit=5)


async def test_unknown_and_malformed_ids(served: Served) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/agents")):
        assert STRANGER in await served.refused(404, method, f"/v1/blocks/{STRANGER}{path}")
    await served.refused(404, "PATCH", f"/v1/blocks/{STRANGER}", {"value": "x"})
    answer = await served.http.get("/v1/blocks/block-1")
    assert (answer.status_code, bool(answer.json()["examples"])) == (422, True)


async def test_lists_are_oldest_first_and_filtered(served: Served) -> None:
    for label, fields in (
        ("one", {"value": "tea", "tags": ["x", "y"], "project_id": "p"}),
        ("two", {"description": "coffee", "tags": ["x"]}),
        ("three", {"is_template": True, "template_name": "sam"}),
        ("four", {"hidden": True}),
    ):
        await served.create_block(label, **fields)
    await served.create(block_ids=[(await served.ok("GET", "/v1/blocks/", label="one"))[0]["id"]])

    async def labels(**query: Any) -> list[str]:
        return [block["label"] for block in await served.ok("GET", "/v1/blocks/", **query)]

    assert await labels() == ["one", "two", "three"]
    assert await labels(order="desc", limit=2) == ["three", "two"]
    assert await labels(label_search="HRE") == ["three"]
    assert await labels(value_search="te") == ["one"]
    assert await labels(description_search="coff") == ["two"]
    assert await labels(templates_only=True) == await labels(name="sam") == ["three"]
    assert await labels(tags=["x", "y"]) == ["one", "two"]
    assert await labels(tags=["x", "y"], match_all_tags=True) == await labels(project_id="p") == ["one"]
    assert await labels(connected_to_agents_count_gt=0) == await labels(connected_to_agents_count_eq=[1, 5]) == ["one"]
    assert await labels(connected_to_agents_count_lt=1) == ["two", "three"]
    assert await labels(identity_id="identity-1") == []
    assert await served.ok("GET", "/v1/blocks/count") == 3
    assert await served.ok("GET", "/v1/blocks/count", tags="x", label="two") == 1
    await served.refused(404, "GET", "/v1/blocks/", after=STRANGER)
    assert [block.label async for block in served.client.blocks.list(limit=1)] == ["one", "two", "three"]


async def test_an_agent_reaches_its_blocks_by_label(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "human", "value": "a"}, {"label": "with space", "value": "b"}])
    of_agent = served.client.agents.blocks
    assert (await of_agent.retrieve("with space", agent_id=agent["id"])).value == "b"
    assert (await of_agent.update("human", agent_id=agent["id"], value="c")).value == "c"
    assert [block.label async for block in of_agent.list(agent["id"])] == ["with space", "human"]
    with pytest.raises(NotFoundError):
        await of_agent.retrieve("none", agent_id=agent["id"])
    with pytest.raises(UnprocessableEntityError):
        await of_agent.update("human", agent_id=agent["id"], value="long", limit=2)
    await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/core-memory/blocks/none", {"value": "x"})


async def test_attaching_is_idempotent_and_one_label_is_one_block(served: Served) -> None:
    agent, block, rival = await served.create(), await served.create_block(), await served.create_block()
    of_agent = served.client.agents.blocks
    for _ in range(2):
        state = await of_agent.attach(block["id"], agent_id=agent["id"])
        assert [each.id for each in state.blocks] == [block["id"]]
        assert len(state.tools) == 3
    with pytest.raises(ConflictError):
        await of_agent.attach(rival["id"], agent_id=agent["id"])
    state = await of_agent.detach(block["id"], agent_id=agent["id"])
    assert state.blocks == []
    with pytest.raises(NotFoundError):
        await of_agent.detach(block["id"], agent_id=agent["id"])
    await served.refused(404, "PATCH", f"/v1/agents/{agent['id']}/core-memory/blocks/attach/{STRANGER}")


async def test_a_shared_block_is_one_block(served: Served) -> None:
    block = await served.create_block(value="before")
    one, two = [await served.create(block_ids=[block["id"]], name=name) for name in ("One", "Two")]
    await served.ok("PATCH", f"/v1/agents/{one['id']}/core-memory/blocks/human", {"value": "after"})
    assert (await served.ok("GET", f"/v1/agents/{two['id']}/core-memory"))["blocks"][0]["value"] == "after"
    users = [agent.name async for agent in served.client.blocks.agents.list(block["id"], limit=1)]
    assert users == ["Two", "One"]
    shown = await served.ok("GET", f"/v1/blocks/{block['id']}/agents", include="agent.tools")
    assert len(shown[0]["tools"]) == 3


async def test_a_label_is_renamed_everywhere_or_nowhere(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "a", "value": "1"}, {"label": "b", "value": "2"}])
    first = agent["blocks"][0]
    await served.ok("PATCH", f"/v1/blocks/{first['id']}", {"label": "c"})
    assert (await served.ok("GET", f"/v1/agents/{agent['id']}/core-memory/blocks/c"))["value"] == "1"
    detail = await served.refused(409, "PATCH", f"/v1/blocks/{first['id']}", {"label": "b", "value": "lost"})
    assert "'b'" in detail
    assert (await served.ok("GET", f"/v1/blocks/{first['id']}"))["value"] == "1"
    await served.refused(409, "PATCH", f"/v1/agents/{agent['id']}/core-memory/blocks/c", {"label": "b"})


async def test_a_deleted_block_leaves_its_agents(served: Served) -> None:
    agent = await served.create(memory_blocks=[{"label": "a", "value": "1"}])
    await served.ok("DELETE", f"/v1/blocks/{agent['blocks'][0]['id']}")
    assert (await served.ok("GET", f"/v1/agents/{agent['id']}/core-memory"))["blocks"] == []


async def test_of_many_edits_at_once_none_is_torn(served: Served) -> None:
    block = await served.create_block(value="0")
    path = f"/v1/blocks/{block['id']}"
    await asyncio.gather(*(served.ok("PATCH", path, {"value": str(number)}) for number in range(1, 11)))
    assert (await served.ok("GET", path))["value"] in {str(number) for number in range(1, 11)}
    assert await version_of(served, block["id"]) == 11

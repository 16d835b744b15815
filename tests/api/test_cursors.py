"""The client deletes what it lists, and an id that never was in a list is refused; on both databases."""

from __future__ import annotations

import pytest

from holdfast import ids

from .resources import ROLL, Served


@pytest.mark.parametrize("limit", [2, 50])
async def test_agents_tools_blocks_and_archives_can_be_deleted_while_the_client_walks_their_list(
    served: Served, limit: int
) -> None:
    client = served.client
    names = [f"roll_{number}" for number in range(5)]
    made = {(await served.create_tool(ROLL.replace("roll_dice", names[number])))["id"] for number in range(5)}
    for number in range(5):
        made.add((await served.create(name=f"n{number}", include_base_tools=False))["id"])
        made.add((await served.create_block())["id"])
        made.add((await client.archives.create(name="notes")).id)
    met = list[str]()
    async for agent in client.agents.list(limit=limit):
        met.append(agent.id)
        await client.agents.delete(agent.id)
    async for tool in client.tools.list(limit=limit, names=names):
        met.append(tool.id)
        await client.tools.delete(tool.id)
    async for block in client.blocks.list(limit=limit):
        met.append(str(block.id))
        await client.blocks.delete(str(block.id))
    async for archive in client.archives.list(limit=limit):
        met.append(archive.id)
        await client.archives.delete(archive.id)
    assert len(met) == 20 and set(met) == made


async def test_an_agents_passages_can_be_deleted_while_they_are_listed(served: Served) -> None:
    agent = await served.create(name="ada")
    memory = f"/v1/agents/{agent['id']}/archival-memory"
    made = [(await served.ok("POST", memory, {"text": f"tea {number}"}))[0]["id"] for number in range(5)]
    met = list[str]()
    cursor = dict[str, str]()
    while page := await served.ok("GET", memory, limit=2, ascending=True, **cursor):
        for passage in page:
            met.append(passage["id"])
            await served.ok("DELETE", f"{memory}/{passage['id']}")
        cursor = {"after": met[-1]}
    assert met == made
    assert await served.refused(404, "GET", memory, after=ids.new("passage"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("agents", "agent"),
        ("tools", "tool"),
        ("blocks", "block"),
        ("archives", "archive"),
        ("folders", "source"),
        ("conversations", "conv"),
        ("runs", "run"),
        ("providers", "provider"),
    ],
)
async def test_an_id_that_never_was_in_the_list_is_refused(served: Served, path: str, kind: str) -> None:
    stranger = ids.new(kind)
    assert stranger in await served.refused(404, "GET", f"/v1/{path}/", after=stranger)
    assert stranger in await served.refused(404, "GET", f"/v1/{path}/", before=stranger)

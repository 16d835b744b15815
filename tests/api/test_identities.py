"""Identities, and the agents and blocks that belong to them, on both databases."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from holdfast import ids

from .resources import Served

STRANGER = "identity-123e4567-e89b-42d3-8456-426614174000"
# Of the schema `Identity` of the old server, which allows no others.
FIELDS = {
    "id",
    "identifier_key",
    "name",
    "identity_type",
    "project_id",
    "agent_ids",
    "block_ids",
    "organization_id",
    "properties",
}


async def an_identity(served: Served, key: str = "ada", **fields: Any) -> dict[str, Any]:
    body = {"identifier_key": key, "name": key.title(), "identity_type": "user", **fields}
    return await served.ok("POST", "/v1/identities/", body)


def plan(name: str, value: Any, kind: str = "string") -> dict[str, Any]:
    return {"key": name, "value": value, "type": kind}


class TestRecords:
    async def test_an_identity_is_made_read_changed_and_deleted(self, served: Served) -> None:
        made = await an_identity(served, properties=[plan("plan", "free"), plan("seats", 3, "number")])
        assert set(made) == FIELDS
        assert (made["identifier_key"], made["identity_type"], made["project_id"]) == ("ada", "user", None)
        assert made["organization_id"] == ids.DEFAULT_ORG
        path = f"/v1/identities/{made['id']}"
        assert await served.ok("GET", path) == made
        changed = await served.ok("PATCH", path, {"name": "Ada L.", "identity_type": "other"})
        assert changed == made | {"name": "Ada L.", "identity_type": "other"}
        assert await served.ok("DELETE", path) is None
        assert "not found" in await served.refused(404, "GET", path)
        assert "not found" in await served.refused(404, "DELETE", path)
        assert "not found" in await served.refused(404, "PATCH", path, {"name": "x"})

    async def test_a_patch_adds_properties_agents_and_blocks_and_a_put_replaces_them(self, served: Served) -> None:
        agents = [(await served.create(include_base_tools=False))["id"] for _ in range(2)]
        blocks = [(await served.create_block())["id"] for _ in range(2)]
        made = await an_identity(
            served, agent_ids=agents[:1], block_ids=blocks[:1], properties=[plan("a", "1"), plan("b", True, "boolean")]
        )
        path = f"/v1/identities/{made['id']}"
        added = {"agent_ids": agents[1:], "block_ids": blocks[1:], "properties": [plan("a", {"x": 1}, "json")]}
        changed = await served.ok("PATCH", path, added)
        assert changed["agent_ids"] == sorted(agents) and changed["block_ids"] == sorted(blocks)
        assert changed["properties"] == [plan("a", {"x": 1}, "json"), plan("b", True, "boolean")]
        put = {"identifier_key": "ada", "name": "Ada", "identity_type": "user", "agent_ids": agents[1:]}
        upserted = await served.ok("PUT", "/v1/identities/", put | {"properties": [plan("c", 1.5, "number")]})
        assert upserted["id"] == made["id"]
        assert (upserted["agent_ids"], upserted["block_ids"]) == (agents[1:], sorted(blocks))
        assert upserted["properties"] == [plan("c", 1.5, "number")]
        replaced = await served.ok("PUT", f"{path}/properties", [plan("d", "4"), plan("d", "5")])
        assert replaced["properties"] == [plan("d", "5")]
        assert (await served.ok("GET", path))["properties"] == [plan("d", "5")]

    async def test_a_key_is_taken_once_in_a_project(self, served: Served) -> None:
        first = await an_identity(served)
        body = {"identifier_key": "ada", "name": "x", "identity_type": "user"}
        assert "identifier_key 'ada'" in await served.refused(409, "POST", "/v1/identities/", body)
        other = await an_identity(served, project_id="p")
        assert other["id"] != first["id"]
        await served.refused(409, "POST", "/v1/identities/", body | {"project_id": "p"})
        third = await an_identity(served, "bob")
        await served.refused(409, "PATCH", f"/v1/identities/{third['id']}", {"identifier_key": "ada"})
        assert (await served.ok("GET", f"/v1/identities/{third['id']}"))["identifier_key"] == "bob"
        assert (await served.ok("PUT", "/v1/identities/", body | {"project_id": "p"}))["id"] == other["id"]

    async def test_upserts_of_one_key_at_the_same_time_make_one_identity(self, served: Served) -> None:
        body = {"identifier_key": "ada", "name": "Ada", "identity_type": "user"}

        async def upsert() -> int:
            return (await served.http.put("/v1/identities/", json=body)).status_code

        statuses = await asyncio.gather(*(upsert() for _ in range(8)))
        assert set(statuses) <= {200, 409} and 200 in statuses
        assert await served.ok("GET", "/v1/identities/count") == 1

    async def test_bad_requests_say_what_is_wrong(self, served: Served) -> None:
        good = {"identifier_key": "ada", "name": "Ada", "identity_type": "user"}
        for bad, named in (
            ({"identity_type": "robot"}, "identity_type"),
            ({"identifier_key": ""}, "identifier_key"),
            ({"identifier_key": None}, "identifier_key"),
            ({"surprise": 1}, "surprise"),
            ({"properties": [{"key": "a", "value": None, "type": "string"}]}, "value"),
            ({"properties": [{"key": "a", "value": "b", "type": "date"}]}, "type"),
            ({"name": "x" * 513}, "name"),
        ):
            assert named in await served.refused(422, "POST", "/v1/identities/", good | bad)
        agent, block = ids.new("agent"), ids.new("block")
        assert agent in await served.refused(404, "POST", "/v1/identities/", good | {"agent_ids": [agent]})
        assert block in await served.refused(404, "POST", "/v1/identities/", good | {"block_ids": [block]})
        assert await served.ok("GET", "/v1/identities/") == []
        await served.refused(422, "GET", "/v1/identities/identity-1")
        await served.refused(404, "GET", f"/v1/identities/{STRANGER}")
        await served.refused(404, "GET", f"/v1/identities/{STRANGER}/agents")
        await served.refused(404, "GET", f"/v1/identities/{STRANGER}/blocks")
        await served.refused(404, "PUT", f"/v1/identities/{STRANGER}/properties", [])

    async def test_lists_go_by_name_key_type_and_project(self, served: Served) -> None:
        ada, bob = await an_identity(served), await an_identity(served, "bob", identity_type="org", project_id="p")

        async def listed(**query: Any) -> list[str]:
            return [each["id"] for each in await served.ok("GET", "/v1/identities/", **query)]

        assert await listed() == [bob["id"], ada["id"]]
        assert await listed(order="asc") == [ada["id"], bob["id"]]
        assert await listed(name="Bob") == await listed(identity_type="org") == await listed(project_id="p")
        assert await listed(identifier_key="bob") == [bob["id"]]
        assert await listed(identifier_key="bob", name="Ada") == []
        await served.refused(422, "GET", "/v1/identities/", identity_type="robot")


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_a_list_is_walked_once_while_identities_come_and_go(
    served: Served, limit: int, order: Literal["asc", "desc"]
) -> None:
    there = [(await an_identity(served, f"k{number}"))["id"] for number in range(8)]
    met: list[str] = []
    cursor: dict[str, str] = {}
    while page := await served.ok("GET", "/v1/identities/", limit=limit, order=order, **cursor):
        assert len(page) <= limit
        met += [each["id"] for each in page]
        cursor = {"after": met[-1]}
        await served.ok("DELETE", f"/v1/identities/{met[-1]}")
        if len(met) < 8:
            await an_identity(served, f"new {len(met)}")
    assert met[:8] == (there if order == "asc" else there[::-1])
    assert len(set(met)) == len(met)
    assert set(met) >= set(there)
    assert STRANGER in await served.refused(404, "GET", "/v1/identities/", after=STRANGER)


class TestAgentsAndBlocks:
    async def test_agents_are_made_with_identities_filtered_by_them_and_show_them(self, served: Served) -> None:
        ada, bob = await an_identity(served), await an_identity(served, "bob")
        agent = await served.create(name="hers", identity_ids=[ada["id"]], include_base_tools=False)
        assert agent["identity_ids"] == [ada["id"]]
        assert agent["identities"] == [ada | {"agent_ids": [agent["id"]]}]
        await served.create(name="nobodys", include_base_tools=False)

        async def names(**query: Any) -> list[str]:
            listed = [each["name"] for each in await served.ok("GET", "/v1/agents/", **query)]
            assert await served.ok("GET", "/v1/agents/count", **query) == len(listed)
            return listed

        assert await names(identity_id=ada["id"]) == await names(identifier_keys=["ada", "eve"]) == ["hers"]
        assert await names(identity_id=bob["id"]) == await names(identifier_keys="eve") == []
        assert await names(identity_id=ada["id"], identifier_keys="bob") == []
        path = f"/v1/agents/{agent['id']}"
        assert (await served.ok("GET", path))["identity_ids"] == []
        shown = await served.ok("GET", path, include="agent.identities")
        assert shown["identity_ids"] == [ada["id"]] and shown["identities"][0]["name"] == "Ada"
        changed = await served.ok("PATCH", path, {"identity_ids": [bob["id"]]})
        assert changed["identity_ids"] == [bob["id"]]
        assert (await served.ok("PATCH", path, {"identity_ids": []}))["identities"] == []
        assert STRANGER in await served.refused(404, "PATCH", path, {"identity_ids": [STRANGER]})

    async def test_the_client_attaches_and_detaches_identities(self, served: Served) -> None:
        ada = await an_identity(served)
        agent = await served.create(include_base_tools=False)
        attach = served.client.agents.identities.attach
        for _ in range(2):
            assert await attach(ada["id"], agent_id=agent["id"]) is None
        assert (await served.ok("GET", f"/v1/identities/{ada['id']}"))["agent_ids"] == [agent["id"]]
        [shown] = (await served.client.agents.list(include=["agent.identities"])).items
        assert [each.identifier_key for each in shown.identities or []] == ["ada"]
        for _ in range(2):
            assert await served.client.agents.identities.detach(ada["id"], agent_id=agent["id"]) is None
        assert (await served.ok("GET", f"/v1/identities/{ada['id']}"))["agent_ids"] == []
        path = f"/v1/agents/{agent['id']}/identities/attach"
        assert "not the id of an identity" in await served.refused(400, "PATCH", f"{path}/ada")
        assert STRANGER in await served.refused(404, "PATCH", f"{path}/{STRANGER}")
        nobody = ids.new("agent")
        await served.refused(404, "PATCH", f"/v1/agents/{nobody}/identities/attach/{ada['id']}")

    async def test_blocks_belong_to_identities(self, served: Served) -> None:
        ada = await an_identity(served)
        block, _ = await served.create_block("human"), await served.create_block("persona")
        attached = await served.ok("PATCH", f"/v1/blocks/{block['id']}/identities/attach/{ada['id']}")
        assert attached == block
        for query in ({"identity_id": ada["id"]}, {"identifier_keys": "ada"}):
            assert await served.ok("GET", "/v1/blocks/", **query) == [block]
        assert await served.ok("GET", f"/v1/identities/{ada['id']}/blocks") == [block]
        assert await served.ok("PATCH", f"/v1/blocks/{block['id']}/identities/detach/{ada['id']}") == block
        assert await served.ok("GET", "/v1/blocks/", identity_id=ada["id"]) == []
        await served.refused(404, "PATCH", f"/v1/blocks/{block['id']}/identities/attach/{STRANGER}")
        await served.refused(400, "PATCH", f"/v1/blocks/{block['id']}/identities/attach/ada")

    async def test_the_agents_of_an_identity_come_without_relations_unless_these_are_named(
        self, served: Served
    ) -> None:
        ada = await an_identity(served)
        agent = await served.create(identity_ids=[ada["id"]], hidden=True)
        path = f"/v1/identities/{ada['id']}/agents"
        [bare] = await served.ok("GET", path)
        assert bare["id"] == agent["id"] and bare["tools"] == bare["identity_ids"] == []
        [whole] = await served.ok("GET", path, include=["agent.identities", "agent.tools"])
        assert whole["identity_ids"] == [ada["id"]] and len(whole["tools"]) == 3

    async def test_what_is_deleted_belongs_to_nobody_and_what_belonged_stays(self, served: Served) -> None:
        ada = await an_identity(served)
        agent = await served.create(identity_ids=[ada["id"]], include_base_tools=False)
        other = await served.create(identity_ids=[ada["id"]], include_base_tools=False)
        await served.ok("DELETE", f"/v1/agents/{other['id']}")
        assert (await served.ok("GET", f"/v1/identities/{ada['id']}"))["agent_ids"] == [agent["id"]]
        await served.ok("DELETE", f"/v1/identities/{ada['id']}")
        shown = await served.ok("GET", f"/v1/agents/{agent['id']}", include="agent.identities")
        assert shown["identity_ids"] == []

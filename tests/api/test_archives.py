"""Archives and archival memory over HTTP, on both databases, with the unmodified client where it has a method."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from letta_client import APIStatusError

from tests.api.resources import Catalog, Served
from tests.served import served as served_at

UNKNOWN = "archive-123e4567-e89b-42d3-8456-426614174000"
UNKNOWN_PASSAGE = "passage-123e4567-e89b-42d3-8456-426614174000"


async def an_archive(served: Served, **fields: Any) -> dict[str, Any]:
    return await served.ok("POST", "/v1/archives/", {"name": "notes", **fields})


async def fill(served: Served, archive: dict[str, Any], *texts: str, **fields: Any) -> list[dict[str, Any]]:
    passages = [{"text": text, **fields} for text in texts]
    return await served.ok("POST", f"/v1/archives/{archive['id']}/passages/batch", {"passages": passages})


async def found(served: Served, agent: dict[str, Any], query: str, **options: Any) -> list[str]:
    path = f"/v1/agents/{agent['id']}/archival-memory/search"
    answer = await served.ok("GET", path, query=query, **options)
    assert answer["count"] == len(answer["results"])
    return [result["content"] for result in answer["results"]]


def texts(rows: list[dict[str, Any]]) -> list[str]:
    """Of passages, or of hits."""
    return [row.get("passage", row)["text"] for row in rows]


class TestArchives:
    async def test_an_archive_is_made_read_changed_and_deleted(self, served: Served) -> None:
        made = await served.client.archives.create(name="notes", description="of a journey")
        assert (made.name, made.description, made.vector_db_provider) == ("notes", "of a journey", "native")
        assert made.embedding_config is None
        assert await served.client.archives.retrieve(made.id) == made
        changed = await served.client.archives.update(made.id, name="diary")
        assert (changed.name, changed.description) == ("diary", "of a journey")
        assert await served.client.archives.delete(made.id) is None
        assert "not found" in await served.refused(404, "DELETE", f"/v1/archives/{made.id}")
        assert "not found" in await served.refused(404, "GET", f"/v1/archives/{made.id}")

    async def test_lists_go_by_name_agent_and_age(self, served: Served) -> None:
        first, second = await an_archive(served), await an_archive(served, name="other")
        agent = await served.create()
        await served.ok("PATCH", f"/v1/agents/{agent['id']}/archives/attach/{first['id']}")
        listed = await served.ok("GET", "/v1/archives/")
        assert [archive["id"] for archive in listed] == [second["id"], first["id"]]
        assert [one["id"] for one in await served.ok("GET", "/v1/archives/", name="other")] == [second["id"]]
        assert [one["id"] for one in await served.ok("GET", "/v1/archives/", agent_id=agent["id"])] == [first["id"]]
        assert [one["id"] for one in await served.ok("GET", "/v1/archives/", after=second["id"])] == [first["id"]]

    async def test_bad_requests_say_what_is_wrong(self, served: Served) -> None:
        await served.refused(422, "POST", "/v1/archives/", {})
        await served.refused(422, "GET", "/v1/archives/archive-1")
        await served.refused(404, "GET", f"/v1/archives/{UNKNOWN}")
        await served.refused(404, "POST", f"/v1/archives/{UNKNOWN}/passages", {"text": "x"})
        archive = await an_archive(served)
        path = f"/v1/archives/{archive['id']}/passages"
        await served.refused(422, "POST", path, {})
        detail = await served.refused(400, "POST", path, {"text": "x", "created_at": "nope"})
        assert detail == "Invalid isoformat string: 'nope'"
        assert "8192" in await served.refused(400, "POST", path, {"text": "word " * 8_192})
        unknown = {"name": "x", "embedding": "nobody/nothing"}
        assert "not available" in await served.refused(400, "POST", "/v1/archives/", unknown)

    async def test_an_archive_has_the_model_it_was_given(self, served: Served) -> None:
        made = await an_archive(served, embedding="acme/vectors")
        assert made["embedding_config"]["embedding_dim"] == 8
        described = made["embedding_config"]
        assert (await an_archive(served, embedding_config=described))["embedding_config"] == described


class TestAttaching:
    async def test_agents_share_an_archive(self, served: Served) -> None:
        archive = await served.client.archives.create(name="shared")
        agents = [await served.create(name=name) for name in ("Ann", "Bob")]
        for agent in agents:
            assert await served.client.agents.archives.attach(archive.id, agent_id=agent["id"]) is None
            await served.ok("PATCH", f"/v1/agents/{agent['id']}/archives/attach/{archive.id}")  # twice is once
        await served.ok("POST", f"/v1/agents/{agents[0]['id']}/archival-memory", {"text": "Ann likes tea"})
        assert await found(served, agents[1], "tea") == ["Ann likes tea"]
        users = await served.ok("GET", f"/v1/archives/{archive.id}/agents", order="asc")
        assert [user["name"] for user in users] == ["Ann", "Bob"]
        await served.client.agents.archives.detach(archive.id, agent_id=agents[1]["id"])
        await served.client.agents.archives.detach(archive.id, agent_id=agents[1]["id"])
        assert await served.ok("GET", f"/v1/agents/{agents[1]['id']}/archival-memory") == []
        assert await found(served, agents[0], "tea") == ["Ann likes tea"]

    async def test_a_second_archive_is_refused(self, served: Served) -> None:
        agent, first, second = await served.create(), await an_archive(served), await an_archive(served)
        path = f"/v1/agents/{agent['id']}/archives/attach"
        assert await served.ok("PATCH", f"{path}/{first['id']}") is None
        assert first["id"] in await served.refused(409, "PATCH", f"{path}/{second['id']}")
        await served.refused(404, "PATCH", f"{path}/{UNKNOWN}")
        await served.refused(400, "PATCH", f"{path}/nonsense")

    async def test_the_first_passage_makes_an_archive_for_the_agent(self, served: Served) -> None:
        agent = await served.create(name="Ann")
        added = await asyncio.gather(
            *(served.client.agents.passages.create(agent["id"], text=f"memory {n}") for n in range(5))
        )
        [archive] = await served.ok("GET", "/v1/archives/", agent_id=agent["id"])
        assert archive["name"] == "Ann's Archive"
        assert archive["description"] == "Default archive created automatically"
        assert {passage.archive_id for [passage] in added} == {archive["id"]}

    async def test_a_detached_archive_of_its_own_lives_on_and_another_is_made(self, served: Served) -> None:
        agent = await served.create(name="Ann")
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        [first] = await served.ok("POST", memory, {"text": "one"})
        await served.ok("PATCH", f"/v1/agents/{agent['id']}/archives/detach/{first['archive_id']}")
        [second] = await served.ok("POST", memory, {"text": "two"})
        assert second["archive_id"] != first["archive_id"]
        assert [passage["text"] for passage in await served.ok("GET", memory)] == ["two"]

    async def test_an_agent_takes_its_own_archive_along_and_leaves_others(self, served: Served) -> None:
        agents = [await served.create() for _ in range(3)]
        given = await an_archive(served)
        await served.ok("PATCH", f"/v1/agents/{agents[0]['id']}/archives/attach/{given['id']}")
        [own] = await served.ok("POST", f"/v1/agents/{agents[1]['id']}/archival-memory", {"text": "a secret"})
        [shared] = await served.ok("POST", f"/v1/agents/{agents[2]['id']}/archival-memory", {"text": "common"})
        await served.ok("PATCH", f"/v1/agents/{agents[0]['id']}/archives/detach/{given['id']}")
        await served.ok("PATCH", f"/v1/agents/{agents[0]['id']}/archives/attach/{shared['archive_id']}")
        for agent in agents[1:]:
            await served.ok("DELETE", f"/v1/agents/{agent['id']}")
        await served.refused(404, "GET", f"/v1/archives/{own['archive_id']}")
        assert await served.ok("POST", "/v1/passages/search", {"query": "secret"}) == []
        await served.ok("GET", f"/v1/archives/{given['id']}")
        assert await found(served, agents[0], "common") == ["common"]


class TestPassages:
    async def test_a_passage_comes_back_as_it_was_given(self, served: Served) -> None:
        archive = await served.client.archives.create(name="notes")
        passage = await served.client.archives.passages.create(
            archive.id, text="tea", tags=["b", "a", "b"], metadata={"k": [1]}, created_at="2024-03-01T10:00:00"
        )
        assert (passage.text, passage.tags, passage.metadata) == ("tea", ["b", "a"], {"k": [1]})
        assert passage.created_at is not None
        assert passage.created_at.isoformat() == "2024-03-01T10:00:00+00:00"
        assert (passage.archive_id, passage.embedding, passage.is_deleted) == (archive.id, None, False)
        plain = await served.client.archives.passages.create(archive.id, text="")
        assert (plain.text, plain.tags, plain.metadata) == ("", None, {})

    async def test_a_batch_is_stored_in_order_and_at_one_time(self, served: Served) -> None:
        archive = await an_archive(served)
        assert await fill(served, archive) == []
        added = await fill(served, archive, "one", "two", "three")
        assert [passage["text"] for passage in added] == ["one", "two", "three"]
        assert len({passage["created_at"] for passage in added}) == 1

    async def test_memory_is_listed_by_age_text_and_cursor(self, served: Served) -> None:
        agent = await served.create()
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        assert await served.ok("GET", memory) == []
        for day, text in ((3, "Third: 100% tea"), (1, "First"), (2, "Second TEA")):
            await served.ok("POST", memory, {"text": text, "created_at": f"2024-01-0{day}T00:00:00Z"})
        listed = await served.client.agents.passages.list(agent["id"])
        assert [passage.text for passage in listed] == ["First", "Second TEA", "Third: 100% tea"]
        assert texts(await served.ok("GET", memory, search="tea")) == ["Second TEA", "Third: 100% tea"]
        assert texts(await served.ok("GET", memory, search="0% t")) == ["Third: 100% tea"]
        assert texts(await served.ok("GET", memory, ascending=False, limit=1)) == ["Third: 100% tea"]
        assert texts(await served.ok("GET", memory, after=listed[0].id)) == ["Second TEA", "Third: 100% tea"]

    async def test_deleting_needs_the_right_owner(self, served: Served) -> None:
        agent, other = await served.create(), await served.create()
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        [passage] = await served.ok("POST", memory, {"text": "tea"})
        await served.ok("POST", f"/v1/agents/{other['id']}/archival-memory", {"text": "coffee"})
        await served.refused(404, "DELETE", f"/v1/agents/{other['id']}/archival-memory/{passage['id']}")
        answer = await served.ok("DELETE", f"{memory}/{passage['id']}")
        assert answer == {"message": f"Memory id={passage['id']} successfully deleted"}
        detail = await served.refused(404, "DELETE", f"{memory}/{passage['id']}")
        assert detail == f"Passage with id {passage['id']} not found in database."
        assert await found(served, agent, "tea") == []
        archive, foreign = await an_archive(served), await an_archive(served)
        [stored] = await fill(served, archive, "text")
        path = f"/v1/archives/{archive['id']}/passages"
        await served.refused(400, "DELETE", f"/v1/archives/{foreign['id']}/passages/{stored['id']}")
        assert (await served.http.delete(f"{path}/{stored['id']}")).status_code == 204
        detail = await served.refused(404, "DELETE", f"{path}/{stored['id']}")
        assert detail == f"Agent passage with id {stored['id']} not found in database."
        await served.refused(404, "DELETE", f"{path}/{UNKNOWN_PASSAGE}")

    async def test_every_character_survives(self, served: Served) -> None:
        agent = await served.create()
        odd = "quotes ' \" \\ % _ \n émoji 🫖"
        [passage] = await served.ok("POST", f"/v1/agents/{agent['id']}/archival-memory", {"text": odd})
        assert passage["text"] == odd
        assert await found(served, agent, "émoji") == [odd]


class TestSearch:
    async def a_keeper(self, served: Served, *texts: str, **fields: Any) -> dict[str, Any]:
        """An agent whose archive holds these, one day after the other."""
        agent = await served.create(timezone="Europe/Berlin")
        for day, text in enumerate(texts, start=1):
            body = {"text": text, "created_at": f"2024-03-{day:02d}T10:00:00+00:00", **fields}
            await served.ok("POST", f"/v1/agents/{agent['id']}/archival-memory", body)
        return agent

    async def test_words_are_found_without_any_model(self, served: Served) -> None:
        agent = await self.a_keeper(served, "Ann likes green tea", "Bob drives a train", "Tea grows in China; tea!")
        assert await found(served, agent, "what teas does she like?") == [
            "Ann likes green tea",
            "Tea grows in China; tea!",
        ]
        assert await found(served, agent, "ZÜRICH") == []
        assert await found(served, agent, "") == []
        assert await found(served, agent, "rive") == ["Bob drives a train"]  # part of a word
        assert await found(served, agent, "tea \"' OR NOT ( * : ^") != []

    async def test_results_look_as_they_always_did(self, served: Served) -> None:
        agent = await self.a_keeper(served, "tea", tags=["b", "a"])
        answer = await served.client.agents.passages.search(agent["id"], query="tea")
        [result] = answer.results
        assert (result.timestamp, result.content, result.tags) == ("2024-03-01T11:00:00+01:00", "tea", ["b", "a"])

    async def test_filters_come_before_the_limit(self, served: Served) -> None:
        agent = await self.a_keeper(served, *(f"tea number {n}" for n in range(8)))
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        late = {"created_at": "2024-05-01T10:00:00Z"}
        await served.ok("POST", memory, {"text": "tea, a long text that ranks last " * 5, "tags": ["x"], **late})
        await served.ok("POST", memory, {"text": "more about tea " * 5, "tags": ["x", "y"], **late})
        assert len(await found(served, agent, "tea")) == 5
        assert len(await found(served, agent, "tea", top_k=0)) == 5
        assert len(await found(served, agent, "tea", top_k=1, tags="x")) == 1
        assert len(await found(served, agent, "tea", top_k=2, tags=["x", "z"])) == 2
        [both] = await found(served, agent, "tea", tags=["x", "y"], tag_match_mode="all", top_k=1)
        assert both.startswith("more")
        assert len(await found(served, agent, "tea", start_datetime="2024-05-01", top_k=2)) == 2

    async def test_an_end_that_is_a_day_includes_it(self, served: Served) -> None:
        agent = await self.a_keeper(served, "tea one", "tea two", "tea three")
        assert set(await found(served, agent, "tea", end_datetime="2024-03-02")) == {"tea one", "tea two"}
        assert await found(served, agent, "tea", start_datetime="2024-03-02", end_datetime="2024-03-02T12:00") == [
            "tea two"
        ]
        assert await found(served, agent, "tea", end_datetime="2024-03-01T10:59:00") == []

    async def test_bad_options_are_refused(self, served: Served) -> None:
        agent = await served.create()
        path = f"/v1/agents/{agent['id']}/archival-memory/search"
        await served.refused(422, "GET", path)
        await served.refused(422, "GET", path, query="x", top_k=-1)
        await served.refused(422, "GET", path, query="x", tag_match_mode="xx")
        assert "ISO 8601" in await served.refused(422, "GET", path, query="x", start_datetime="bad")
        for body in ({"limit": 0}, {"limit": 101}, {"tag_match_mode": "xx"}, {"start_date": "bad"}):
            await served.refused(422, "POST", "/v1/passages/search", body)
        await served.refused(404, "POST", "/v1/passages/search", {"archive_id": UNKNOWN})

    async def test_everything_can_be_searched_at_once(self, served: Served) -> None:
        agent = await self.a_keeper(served, "tea one", "coffee")
        archive = await an_archive(served)
        await fill(served, archive, "tea two", tags=["x"])
        hits = await served.client.passages.search(query="tea")
        assert {hit.passage.text for hit in hits} == {"tea one", "tea two"}
        assert all(hit.score > 0 for hit in hits)
        search = "/v1/passages/search"
        assert texts(await served.ok("POST", search, {"query": "tea", "agent_id": agent["id"]})) == ["tea one"]
        assert texts(await served.ok("POST", search, {"query": "tea", "archive_id": archive["id"]})) == ["tea two"]
        assert texts(await served.ok("POST", search, {"query": "tea", "tags": ["x"]})) == ["tea two"]
        assert texts(await served.ok("POST", search, {})) == ["tea one", "coffee", "tea two"]
        assert texts(await served.ok("POST", search, {"end_date": "2024-03-01"})) == ["tea one"]


class TestVectors:
    async def test_what_is_meant_is_found_though_no_word_is_the_same(self, served: Served) -> None:
        agent = await served.create(embedding="acme/vectors")
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        for text in ("Ann has a dog", "Bob's favourite is tea", "A train came", "", "nothing of the kind"):
            [stored] = await served.ok("POST", memory, {"text": text})
            assert stored["embedding_config"]["handle"] == "acme/vectors"
        assert await found(served, agent, "beverage", top_k=1) == ["Bob's favourite is tea"]
        assert await found(served, agent, "a pet", top_k=1) == ["Ann has a dog"]
        everything = await found(served, agent, "vehicle", top_k=100)
        assert everything[0] == "A train came"
        assert "" not in everything  # it has no vector, and no words

    async def test_words_count_beside_meaning(self, served: Served) -> None:
        agent = await served.create(embedding="acme/vectors")
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        for text in ("coffee", "tea from Darjeeling", "another drink"):
            await served.ok("POST", memory, {"text": text})
        assert (await found(served, agent, "tea Darjeeling"))[0] == "tea from Darjeeling"

    async def test_tags_and_dates_come_before_the_limit(self, served: Served) -> None:
        archive = await an_archive(served, embedding="acme/vectors")
        await fill(served, archive, *["tea"] * 10)
        await fill(served, archive, "a car that carries coffee", tags=["x"])
        body = {"query": "beverage", "archive_id": archive["id"], "limit": 1, "tags": ["x"]}
        [hit] = await served.ok("POST", "/v1/passages/search", body)
        assert hit["passage"]["text"] == "a car that carries coffee"

    async def test_a_deleted_passage_is_not_found_again(self, served: Served) -> None:
        archive = await an_archive(served, embedding="acme/vectors")
        first, _ = await fill(served, archive, "tea", "coffee")
        search = {"query": "beverage", "archive_id": archive["id"]}
        assert len(await served.ok("POST", "/v1/passages/search", search)) == 2
        await served.http.delete(f"/v1/archives/{archive['id']}/passages/{first['id']}")
        await fill(served, archive, "a drink")
        texts = {hit["passage"]["text"] for hit in await served.ok("POST", "/v1/passages/search", search)}
        assert texts == {"coffee", "a drink"}


class TestChanges:
    async def test_a_passage_gets_another_text_and_keeps_its_place_and_age(self, served: Served) -> None:
        agent = await served.create()
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        first, second, third = [
            (await served.ok("POST", memory, {"text": text, "tags": ["t"]}))[0] for text in ("tea", "coffee", "water")
        ]
        [changed] = await served.ok("PATCH", f"{memory}/{second['id']}", {"text": "cocoa"})
        assert changed["updated_at"] > second["updated_at"]
        assert changed == {**second, "text": "cocoa", "updated_at": changed["updated_at"]}
        listed = await served.ok("GET", memory)
        assert listed == [first, changed, third]
        assert await served.ok("GET", memory, after=second["id"]) == [third]
        assert (await found(served, agent, "cocoa"), await found(served, agent, "coffee")) == (["cocoa"], [])
        assert await found(served, agent, "cocoa", tags=["t"]) == ["cocoa"]

    async def test_its_tags_and_metadata_change_alone(self, served: Served) -> None:
        agent = await served.create()
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        [made] = await served.ok("POST", memory, {"text": "tea", "tags": ["a", "b"]})
        path = f"{memory}/{made['id']}"
        [changed] = await served.ok("PATCH", path, {"tags": ["b", "c", "c"]})
        assert (changed["text"], changed["tags"]) == ("tea", ["b", "c"])
        assert (await found(served, agent, "tea", tags=["c"]), await found(served, agent, "tea", tags=["a"])) == (
            ["tea"],
            [],
        )
        [changed] = await served.ok("PATCH", path, {"metadata": {"from": "Ada"}, "tags": None})
        assert (changed["tags"], changed["metadata"]) == (["b", "c"], {"from": "Ada"})
        [changed] = await served.ok("PATCH", path, {"tags": []})
        assert changed["tags"] is None
        assert await served.ok("GET", memory) == [changed]
        [same] = await served.ok("PATCH", path)  # as the 0.x client asks, which sends nothing
        assert {**same, "updated_at": None} == {**changed, "updated_at": None}

    async def test_another_text_is_found_by_what_it_means_and_the_old_one_is_not(self, served: Served) -> None:
        agent = await served.create(embedding="acme/vectors")
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        [made] = await served.ok("POST", memory, {"text": "a dog"})
        await served.ok("POST", memory, {"text": "a train"})
        assert (await found(served, agent, "pet"))[0] == "a dog"
        await served.ok("PATCH", f"{memory}/{made['id']}", {"text": "tea"})
        assert (await found(served, agent, "beverage"))[0] == "tea"
        assert "a dog" not in await found(served, agent, "pet")

    async def test_a_passage_of_others_and_one_that_is_gone_are_not_found(self, served: Served) -> None:
        one, other = await served.create(), await served.create()
        [made] = await served.ok("POST", f"/v1/agents/{one['id']}/archival-memory", {"text": "tea"})
        for agent in (other["id"], one["id"][:-4] + "0000"):
            path = f"/v1/agents/{agent}/archival-memory/{made['id']}"
            assert "not found" in await served.refused(404, "PATCH", path, {"text": "mine"})
        path = f"/v1/agents/{one['id']}/archival-memory"
        assert "not found" in await served.refused(404, "PATCH", f"{path}/{UNKNOWN_PASSAGE}", {"text": "mine"})
        assert "tokens" in await served.refused(400, "PATCH", f"{path}/{made['id']}", {"text": "long " * 40_000})
        assert texts(await served.ok("GET", path)) == ["tea"]

    async def test_changes_at_once_are_all_made(self, served: Served) -> None:
        agent = await served.create(embedding="acme/vectors")
        memory = f"/v1/agents/{agent['id']}/archival-memory"
        [made] = await served.ok("POST", memory, {"text": "tea"})
        path = f"{memory}/{made['id']}"
        bodies = [{"text": "coffee"}, {"tags": ["a"]}, {"metadata": {"b": 1}}]
        await asyncio.gather(*(served.ok("PATCH", path, body) for body in bodies))
        [stored] = await served.ok("GET", memory)
        assert (stored["text"], stored["tags"], stored["metadata"]) == ("coffee", ["a"], {"b": 1})


async def test_the_size_of_all_vectors_is_told_in_the_unit_asked_for(served: Served) -> None:
    async def size(**headers: str) -> Any:
        answer = await served.http.get("/v1/embeddings/total_storage_size", headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert await size() == 0
    archive = await an_archive(served, embedding="acme/vectors")
    await fill(served, archive, "tea", "coffee", "")
    assert await size(storage_unit="B") == 2 * 8 * 4
    assert await size(storage_unit="KB") == 64 / 1024
    assert await size() == 64 / 1024**3
    refused = await served.http.get("/v1/embeddings/total_storage_size", headers={"storage_unit": "bits"})
    assert refused.status_code == 422


class TestFailingModels:
    def fail(self, served: Served, failing: bool) -> None:
        assert isinstance(served.deps.catalog, Catalog)
        served.deps.catalog.failing = failing

    async def test_no_passage_is_lost_and_vectors_are_made_up_for(self, served: Served) -> None:
        self.fail(served, True)
        archive = await an_archive(served, embedding="acme/vectors")
        await fill(served, archive, "Bob's favourite is tea", "Ann has a dog")
        search = {"archive_id": archive["id"], "limit": 1}
        [hit] = await served.ok("POST", "/v1/passages/search", {"query": "favourite", **search})
        assert hit["passage"]["text"] == "Bob's favourite is tea"
        assert await served.ok("POST", "/v1/passages/search", {"query": "beverage", **search}) == []
        self.fail(served, False)
        await fill(served, archive, "A train came")
        [hit] = await served.ok("POST", "/v1/passages/search", {"query": "beverage", **search})
        assert hit["passage"]["text"] == "Bob's favourite is tea"

    async def test_a_search_goes_by_words_when_the_model_is_gone(self, served: Served) -> None:
        archive = await an_archive(served, embedding="acme/vectors")
        await fill(served, archive, "tea", "coffee")
        self.fail(served, True)
        [hit] = await served.ok("POST", "/v1/passages/search", {"query": "tea", "archive_id": archive["id"]})
        assert hit["passage"]["text"] == "tea"


async def test_the_tools_store_and_find(served: Served) -> None:
    names = ["archival_memory_insert", "archival_memory_search", "conversation_search"]
    agent = await served.create(tools=names, timezone="Europe/Berlin")
    path = f"/v1/agents/{agent['id']}/tools"
    stored = await served.ok(
        "POST", f"{path}/archival_memory_insert/run", {"args": {"content": "likes tea", "tags": ["b", "a"]}}
    )
    assert (stored["status"], stored["func_return"]) == ("success", None)
    answer = await served.ok("POST", f"{path}/archival_memory_search/run", {"args": {"query": "tea"}})
    [memory] = answer["func_return"]
    assert (memory["content"], memory["tags"]) == ("likes tea", ["b", "a"])
    nothing = await served.ok("POST", f"{path}/archival_memory_search/run", {"args": {"query": "dog"}})
    assert nothing["func_return"] == []
    found = await served.ok("POST", f"{path}/conversation_search/run", {"args": {"query": "tea"}})
    assert found["func_return"] == {"message": "No results found.", "results": []}
    bad = {"args": {"query": "tea", "start_datetime": "bad"}}
    refused = await served.ok("POST", f"{path}/archival_memory_search/run", bad)
    assert refused["status"] == "error"
    assert "Invalid start_datetime format: bad. Use ISO 8601 format" in str(refused["stderr"])
    overview = await served.ok("GET", f"/v1/agents/{agent['id']}/context")
    assert overview["num_archival_memory"] == 1


async def test_the_client_is_told_of_conflicts(served: Served) -> None:
    agent = await served.create()
    one, two = await served.client.archives.create(name="1"), await served.client.archives.create(name="2")
    await served.client.agents.archives.attach(one.id, agent_id=agent["id"])
    with pytest.raises(APIStatusError) as refused:
        await served.client.agents.archives.attach(two.id, agent_id=agent["id"])
    assert refused.value.status_code == 409


async def test_moments_at_the_ends_of_time_are_refused_or_shown(served: Served) -> None:
    agent = await served.create(timezone="Pacific/Kiritimati")
    path = f"/v1/agents/{agent['id']}/archival-memory"
    for outside in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        assert "out of range" in await served.refused(400, "POST", path, {"text": "tea", "created_at": outside})
    for within in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        await served.ok("POST", path, {"text": "tea", "created_at": within})
    assert len(await served.ok("GET", path)) == 2
    for zone in ("Pacific/Kiritimati", "America/New_York"):
        await served.ok("PATCH", f"/v1/agents/{agent['id']}", {"timezone": zone})
        assert (await served.ok("GET", f"{path}/search", query="tea"))["count"] == 2
        last = await served.ok("GET", f"{path}/search", query="tea", end_datetime="9999-12-31")
        assert last["count"] >= 1
    hits = await served.ok("POST", "/v1/passages/search", {"query": "tea", "end_date": "9999-12-31"})
    assert len(hits) == 2


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("manner", ["silent", "dripping"])
async def test_a_vendor_that_never_ends_its_answer_holds_up_nobody(tmp_path: Path, manner: str) -> None:
    asked: list[str] = []
    answering: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if manner == "dripping":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"1\r\n \r\n")
                await asyncio.sleep(0.02)  # the manner itself
        else:
            while await reader.read(1_000):  # until the other side has gone
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    described = {"embedding_endpoint_type": "openai", "embedding_model": "m", "embedding_dim": 8, "handle": "slow/m"}
    async with server, served_at(tmp_path, embedding_timeout_s=2) as client:
        provider = {"name": "slow", "provider_type": "openai", "api_key": "k", "base_url": address}
        await client.ask("POST", "/v1/providers/", provider)
        archive = await client.ask("POST", "/v1/archives/", {"name": "x", "embedding_config": described})
        asked.clear()
        await client.ask("POST", f"/v1/archives/{archive['id']}/passages", {"text": "green tea"})
        assert len(asked) == 1
        hits = await client.ask("POST", "/v1/passages/search", {"query": "tea", "archive_id": archive["id"]})
        assert texts(hits) == ["green tea"]
        assert len(asked) == 2
    await asyncio.wait([task for task in answering if task])

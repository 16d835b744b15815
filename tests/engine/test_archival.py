"""Archival memory within runs, and what becomes of it when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast import ids
from holdfast.actions.tools.base_tools import sync_base_tools
from holdfast.core.messages import ToolReturn, text_of
from holdfast.core.records import Archive, Passage
from holdfast.engine.archival import ArchivalMemory, NewPassage, Search
from holdfast.errors import NotFound, Refused
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import agents, archives, passages, tools
from holdfast.store.paging import Page
from holdfast.store.transaction import Transaction
from tests.engine.test_inline import order
from tests.scenario import World, sqlite_at, world_at


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(sqlite_at(tmp_path)) as made:

        async def attach(tx: Transaction) -> None:
            shipped = await sync_base_tools(tx, 1)
            await tools.attach_many(tx, made.agent_id, [tool.id for tool in shipped])

        await made.database.write(attach)
        yield made


async def stored(world: World) -> list[Passage]:
    async def read(tx: Transaction) -> list[Passage]:
        archive = await archives.of_agent(tx, world.agent_id)
        return [] if archive is None else await passages.list_of_archive(tx, archive.id, Page(order="asc"), None)

    return await world.database.read(read)


async def returns_of(world: World) -> list[ToolReturn]:
    return [answer for row in await world.window() for answer in row.returns]


async def test_a_passage_is_stored_with_its_return_and_found_in_a_later_turn(world: World) -> None:
    await world.node().ask(order("archival_memory_insert", content="likes tea", tags=["b", "a"]))
    [answer] = await returns_of(world)
    assert (answer.status, answer.content) == ("success", "None")
    [passage] = await stored(world)
    assert (passage.text, passage.tags) == ("likes tea", ("b", "a"))
    await world.node().ask(order("archival_memory_search", query="tea"))
    found = str((await returns_of(world))[-1].content)
    assert found.startswith(f"[{{'id': '{passage.id}', 'timestamp': '")
    assert found.endswith("'content': 'likes tea', 'tags': ['b', 'a']}]")
    await world.node().ask(order("archival_memory_search", query="dogs"))
    assert (await returns_of(world))[-1].content == "[]"


async def test_two_passages_of_one_reply_go_into_one_archive(world: World) -> None:
    both = order("archival_memory_insert", content="one") + order("archival_memory_insert", content="two")
    await world.node().ask(both)
    assert [passage.text for passage in await stored(world)] == ["one", "two"]
    assert len({passage.archive_id for passage in await stored(world)}) == 1


async def test_an_archive_that_is_attached_meanwhile_gets_the_passage(world: World) -> None:
    given = Archive(id=ids.new("archive"), name="given", created_us=1, updated_us=1)

    async def give(tx: Transaction) -> None:
        await archives.insert(tx, given)
        await archives.attach(tx, world.agent_id, given.id)

    class Giving(ModelCatalog):
        """Somebody attaches an archive while the passage is made ready."""

        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            if not await world.database.read(lambda tx: archives.of_agent(tx, world.agent_id)):
                await world.database.write(give)
            return [[1.0] for _ in texts]

    memory = ArchivalMemory(world.database, Giving(), world.clock)

    async def choose(tx: Transaction) -> None:
        agent = await agents.get(tx, world.agent_id)
        await agents.update_agent(tx, msgspec.structs.replace(agent, embedding="acme/vectors"))

    await world.database.write(choose)
    archive, [passage] = await memory.add_for_agent(world.agent_id, [NewPassage(text="tea")])
    assert archive.id == passage.archive_id == given.id
    assert [one.id for one in await stored(world)] == [passage.id]


async def test_a_bad_argument_is_told_and_nothing_is_stored(world: World) -> None:
    for arguments in (
        {"query": "x", "start_datetime": "bad"},
        {"query": "x", "tag_match_mode": "xx"},
        {"query": "x", "top_k": -1},
        {"query": "x" * 5_001},
        {"limit": 1},
        {"query": "x", "tags": ["t" * 513]},
        {"query": "x", "tags": ["t"] * 1_001},
    ):
        await world.node().ask(order("archival_memory_search", **arguments))
        assert (await returns_of(world))[-1].status == "error"
    await world.node().ask(order("archival_memory_insert", content="word " * 8_192))
    refused = (await returns_of(world))[-1]
    assert refused.status == "error"
    assert "8192" in str(refused.content)
    for tags, why in ((["t" * 513], "513 characters"), (["t"] * 1_001, "at most 1000"), ([""], "is empty")):
        await world.node().ask(order("archival_memory_insert", content="x", tags=tags))
        refused = (await returns_of(world))[-1]
        assert refused.status == "error"
        assert why in str(refused.content)
    assert await stored(world) == []


async def test_the_system_prompt_tells_how_much_there_is(world: World) -> None:
    await world.node().ask(order("archival_memory_insert", content="one"))
    await world.node().ask(order("memory", command="create", path="tasks", description="to do"))
    assert "1 memories are stored in your archival memory" in text_of((await world.window())[0].parts)


async def test_a_text_that_the_model_refuses_holds_up_no_other(world: World) -> None:
    class Picky(ModelCatalog):
        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            if "bad" in texts:
                raise Refused("too long for the model")
            return [[1.0, float(len(text))] for text in texts]

    memory = ArchivalMemory(world.database, Picky(), world.clock)
    archive = Archive(id=ids.new("archive"), name="x", embedding="acme/vectors", created_us=1, updated_us=1)
    await world.database.write(lambda tx: archives.insert(tx, archive))
    await memory.add(archive.id, [NewPassage(text=text) for text in ("good", "bad", "also good")])
    assert await world.database.read(lambda tx: passages.awaiting_vectors(tx, archive.id, 9)) == []
    near = await memory.search(Search(query="unknown", archives=(archive,), mode="vector"))
    assert {hit.passage.text for hit in near} == {"good", "also good"}
    by_words = await memory.search(Search(query="bad", archives=(archive,), mode="text"))
    assert [hit.passage.text for hit in by_words] == ["bad"]


async def test_a_provider_that_refuses_everything_takes_no_vector_away(world: World) -> None:
    class Refusing(ModelCatalog):
        refuses = True
        asked = 0

        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            self.asked += 1
            if self.refuses or "bad" in texts:
                raise Refused("the model is not available to this account")
            return [[1.0, float(len(text))] for text in texts]

    catalog = Refusing()
    memory = ArchivalMemory(world.database, catalog, world.clock)
    archive = Archive(id=ids.new("archive"), name="x", embedding="acme/vectors", created_us=1, updated_us=1)
    await world.database.write(lambda tx: archives.insert(tx, archive))
    await memory.add(archive.id, [NewPassage(text="bad")])
    await memory.add(archive.id, [NewPassage(text=f"note {number}") for number in range(20)])
    assert catalog.asked <= 2 + 3
    assert len(await world.database.read(lambda tx: passages.awaiting_vectors(tx, archive.id, 99))) == 21
    catalog.refuses = False
    await memory.add(archive.id, [NewPassage(text="at last")])
    assert await world.database.read(lambda tx: passages.awaiting_vectors(tx, archive.id, 99)) == []
    near = await memory.search(Search(query="unknown", archives=(archive,), mode="vector", limit=50))
    assert len(near) == 21


async def test_large_vectors_are_asked_for_in_small_batches(world: World) -> None:
    sizes: list[int] = []

    class Counting(ModelCatalog):
        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            sizes.append(len(texts))
            return [[1.0] for _ in texts]

    memory = ArchivalMemory(world.database, Counting(), world.clock)
    config = {"embedding_dim": 16_000, "batch_size": 256}
    archive = Archive(
        id=ids.new("archive"), name="x", embedding="acme/v", embedding_config=config, created_us=1, updated_us=1
    )
    await world.database.write(lambda tx: archives.insert(tx, archive))
    await memory.add(archive.id, [NewPassage(text="x") for _ in range(50)])
    assert sizes == [20, 20, 10]


@pytest.mark.parametrize("change", ["deleted", "detached"])
async def test_an_archive_that_goes_while_a_vector_is_made_stays_gone(world: World, change: str) -> None:
    given = Archive(id=ids.new("archive"), name="given", embedding="acme/vectors", created_us=1, updated_us=1)

    async def give(tx: Transaction) -> None:
        await archives.insert(tx, given)
        await archives.attach(tx, world.agent_id, given.id)

    async def take(tx: Transaction) -> None:
        if change == "detached":
            await archives.detach(tx, world.agent_id, given.id)
        elif await archives.is_taken(tx, given.id):
            await archives.mark_deleted(tx, given.id, 1)
            await archives.clear(tx, given.id)

    class Taking(ModelCatalog):
        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            await world.database.write(take)
            return [[1.0] for _ in texts]

    await world.database.write(give)
    memory = ArchivalMemory(world.database, Taking(), world.clock)
    archive, [passage] = await memory.add_for_agent(world.agent_id, [NewPassage(text="tea")])
    assert archive.id != given.id
    assert await stored(world) == [passage]
    assert await world.database.read(lambda tx: archives.is_taken(tx, given.id)) is (change == "detached")


async def test_a_passage_for_an_archive_that_is_deleted_meanwhile_is_refused(world: World) -> None:
    given = Archive(id=ids.new("archive"), name="given", embedding="acme/vectors", created_us=1, updated_us=1)
    await world.database.write(lambda tx: archives.insert(tx, given))

    class Deleting(ModelCatalog):
        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            await world.database.write(lambda tx: archives.mark_deleted(tx, given.id, 1))
            return [[1.0] for _ in texts]

    memory = ArchivalMemory(world.database, Deleting(), world.clock)
    with pytest.raises(NotFound):
        await memory.add(given.id, [NewPassage(text="tea")])
    await memory.clear(given.id)
    assert not await world.database.read(lambda tx: archives.is_taken(tx, given.id))


@pytest.mark.slow
@pytest.mark.timeout(30)
async def test_models_that_do_not_answer_are_waited_for_together_and_not_for_long(world: World) -> None:
    """Both have to be asked at once, or the first would never answer."""
    asked: set[str] = set()
    both = asyncio.Event()

    class Silent(ModelCatalog):
        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            asked.add(handle)
            if len(asked) == 2:
                both.set()
            await both.wait()
            if handle == "acme/silent":
                await asyncio.Event().wait()
            return [[1.0] for _ in texts]

    made = [Archive(id=ids.new("archive"), name=name, embedding=f"acme/{name}") for name in ("silent", "good")]
    for archive in made:
        await world.database.write(lambda tx, archive=archive: archives.insert(tx, archive))
    quick = ArchivalMemory(world.database, ModelCatalog(), world.clock)
    for archive in made:
        await quick.add(archive.id, [NewPassage(text="green tea")])
    memory = ArchivalMemory(world.database, Silent(), world.clock, embedding_timeout_s=1)
    hits = await memory.search(Search(query="tea", archives=tuple(made)))
    assert {hit.passage.archive_id for hit in hits} == {archive.id for archive in made}
    assert asked == {"acme/silent", "acme/good"}


@pytest.mark.timeout(30)
async def test_a_passage_does_not_wait_for_a_model_that_hangs(world: World) -> None:
    class Hanging(ModelCatalog):
        """From the second request on, as when the first batch is taken."""

        asked = 0

        async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
            self.asked += 1
            if self.asked > 1:
                await asyncio.Event().wait()
            return [[1.0] for _ in texts]

    archive = Archive(
        id=ids.new("archive"), name="x", embedding="acme/x", embedding_config={"batch_size": 2, "embedding_dim": 1}
    )
    await world.database.write(lambda tx: archives.insert(tx, archive))
    memory = ArchivalMemory(world.database, Hanging(), world.clock, embedding_timeout_s=0.1)
    _, added = await memory.add(archive.id, [NewPassage(text=f"tea {n}") for n in range(6)])
    assert len(added) == 6
    waiting = await world.database.read(lambda tx: passages.awaiting_vectors(tx, archive.id, 10))
    assert [passage.text for passage in waiting] == ["tea 2", "tea 3", "tea 4", "tea 5"]

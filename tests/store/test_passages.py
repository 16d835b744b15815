"""Passages and how they are found, on both databases; PostgreSQL with pgvector and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast import ids
from holdfast.core.records import Archive, Passage
from holdfast.core.search_words import query_words
from holdfast.errors import Conflict, NotFound
from holdfast.store import archives, passage_search, passages
from holdfast.store.database import open_database
from holdfast.store.passage_search import PassageFilter
from holdfast.store.transaction import Database, Transaction
from holdfast.store.vector_distance import normalised
from holdfast.store.vector_index import VectorIndex

from .world import add_agent, call, look

_driver: Any = asyncpg


@pytest.fixture(params=["sqlite", "postgres", "postgres without pgvector"])
def database_url(request: pytest.FixtureRequest) -> str:
    named = {"postgres without pgvector": "new_postgres"}.get(request.param, request.param)
    return request.getfixturevalue(f"{named}_url")


@pytest.fixture
async def database(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Database]:
    if request.node.callspec.params["database_url"].endswith("without pgvector"):
        connection = await _driver.connect(database_url)
        await connection.execute("DROP EXTENSION vector")
        await connection.close()
    opened = await open_database(database_url)
    yield opened
    await opened.aclose()


async def an_archive(database: Database) -> Archive:
    archive = Archive(id=ids.new("archive"), name="notes", embedding="acme/vectors", created_us=1, updated_us=1)
    await call(database, archives.insert, archive)
    return archive


def a_vector(*numbers: float) -> bytes:
    made = normalised(numbers)
    assert made is not None
    return made


async def add(database: Database, archive: Archive, text: str, vector: bytes | None = None, **more: Any) -> Passage:
    passage = Passage(id=ids.new("passage"), archive_id=archive.id, text=text, **more)
    rows = passages.rows_of([passage], {} if vector is None else {passage.id: vector})
    await call(database, passages.insert_many, rows)
    return passage


async def nearest(
    database: Database, index: VectorIndex, vector: bytes, archive: Archive, limit: int = 3, **filters: Any
) -> list[str]:
    wanted = PassageFilter(archive_ids=(archive.id,), **filters)

    async def read(tx: Transaction) -> list[str]:
        found = await passage_search.by_vector(tx, index, vector, wanted, limit)
        return [passage.text for passage in await passage_search.records(tx, found)]

    return await database.read_long(read)


async def with_words(database: Database, words: list[str], limit: int = 10, **filters: Any) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        found = await passage_search.by_words(tx, words, PassageFilter(**filters), limit)
        return [passage.text for passage in await passage_search.records(tx, found)]

    return await database.read_long(read)


async def test_the_nearest_vectors_come_first_and_new_ones_are_seen(database: Database) -> None:
    archive, other, index = await an_archive(database), await an_archive(database), VectorIndex()
    await add(database, archive, "east", a_vector(1, 0, 0))
    await add(database, archive, "north", a_vector(0, 1, 0))
    await add(database, archive, "no vector")
    await add(database, archive, "of another model", a_vector(1, 0))
    await add(database, other, "elsewhere", a_vector(1, 0, 0))
    assert await nearest(database, index, a_vector(1, 0.1, 0), archive) == ["east", "north"]
    await add(database, archive, "nearly east", a_vector(1, 0.2, 0))
    assert await nearest(database, index, a_vector(1, 0.3, 0), archive, 2) == ["nearly east", "east"]


async def test_a_deleted_vector_is_not_found_and_its_place_is_not_confused(database: Database) -> None:
    archive, index = await an_archive(database), VectorIndex()
    kept = await add(database, archive, "east", a_vector(1, 0, 0))
    gone = await add(database, archive, "west", a_vector(-1, 0, 0))
    assert await nearest(database, index, a_vector(-1, 0, 0), archive, 1) == ["west"]
    await call(database, passages.delete_passage, gone.id)
    assert await nearest(database, index, a_vector(-1, 0, 0), archive, 1) == ["east"]
    await add(database, archive, "south", a_vector(0, -1, 0))
    assert await nearest(database, index, a_vector(0, -1, 0), archive, 1) == ["south"]
    assert (await look(database, passages.find, kept.id)) == kept


async def test_tags_and_dates_come_before_the_limit(database: Database) -> None:
    archive, index = await an_archive(database), VectorIndex()
    for number in range(300):
        await add(database, archive, f"tea {number}", a_vector(1, number / 1_000, 0), created_us=number)
    await add(database, archive, "tea with a tag", a_vector(0, 1, 0), tags=("x", "y"), created_us=1_000)
    await add(database, archive, "tea with one", a_vector(0, 1, 0.1), tags=("x",), created_us=2_000)
    asked = a_vector(1, 0, 0)
    assert await nearest(database, index, asked, archive, 1, tags=("y", "z")) == ["tea with a tag"]
    assert await nearest(database, index, asked, archive, 9, tags=("x", "y"), match_all_tags=True) == ["tea with a tag"]
    assert await nearest(database, index, asked, archive, 1, start_us=1_500) == ["tea with one"]
    assert await nearest(database, index, asked, archive, 9, tags=("nobody's",)) == []
    assert await with_words(database, ["tea"], 1, tags=("y",)) == ["tea with a tag"]
    assert await with_words(database, ["tea"], 1, start_us=1_500, end_us=2_500) == ["tea with one"]


async def test_words_are_found_in_their_archive_and_go_with_it(database: Database) -> None:
    first, second = await an_archive(database), await an_archive(database)
    await add(database, first, "Ann likes green tea")
    await add(database, second, "Tea grows in China")
    assert await with_words(database, ["tea"], archive_ids=(first.id,)) == ["Ann likes green tea"]
    assert set(await with_words(database, ["tea"])) == {"Ann likes green tea", "Tea grows in China"}
    assert (await with_words(database, ["green", "tea"]))[0] == "Ann likes green tea"
    assert await with_words(database, ["nothing"]) == []
    assert await with_words(database, []) == []
    await call(database, archives.mark_deleted, second.id, 1)
    assert await call(database, archives.clear, second.id)
    assert await with_words(database, ["tea"]) == ["Ann likes green tea"]


async def test_a_frequent_word_does_not_hide_a_rare_one(database: Database) -> None:
    archive = await an_archive(database)
    rows = [Passage(id=ids.new("passage"), archive_id=archive.id, text=f"tea {n}") for n in range(200)]
    await call(database, passages.insert_many, passages.rows_of(rows, {}))
    await add(database, archive, "tea from Darjeeling")
    assert (await with_words(database, ["tea", "darjeeling"], 3))[0] == "tea from Darjeeling"


async def test_a_word_that_others_use_often_is_found_in_an_archive_that_uses_it_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_search, "_MOST_RANKED", 5)
    opened = await open_database(sqlite_url)
    crowd, own = await an_archive(opened), await an_archive(opened)
    for number in range(10):
        await add(opened, crowd, f"tea {number}")
    await add(opened, crowd, "Darjeeling")
    await add(opened, own, "my tea")
    assert await with_words(opened, ["tea", "darjeeling"], archive_ids=(own.id,)) == ["my tea"]
    await opened.aclose()


async def test_vectors_that_come_late_are_added_once(database: Database) -> None:
    archive, index = await an_archive(database), VectorIndex()
    waiting = [Passage(id=ids.new("passage"), archive_id=archive.id, text=text) for text in ("east", "gone")]
    rows = passages.rows_of(waiting, {}, {passage.id for passage in waiting})
    await call(database, passages.insert_many, rows)
    assert await look(database, passages.awaiting_vectors, archive.id, 10) == waiting
    await call(database, passages.delete_passage, waiting[1].id)
    vectors = {passage.id: a_vector(1, 0) for passage in waiting}
    for _ in range(2):
        await call(database, passages.add_late_vectors, waiting, passages.vector_rows(waiting, vectors))
    assert await look(database, passages.awaiting_vectors, archive.id, 10) == []
    assert await nearest(database, index, a_vector(1, 0), archive) == ["east"]


async def test_a_text_that_was_changed_meanwhile_is_not_given_the_vector_of_the_old_one(database: Database) -> None:
    archive, index = await an_archive(database), VectorIndex()
    old = Passage(id=ids.new("passage"), archive_id=archive.id, text="east")
    await call(database, passages.insert_many, passages.rows_of([old], {}, {old.id}))
    changed = Passage(id=old.id, archive_id=archive.id, text="west")
    assert await call(database, passages.take_out, old.id) == old
    await call(database, passages.insert_many, passages.rows_of([changed], {}, {old.id}))
    await call(database, passages.add_late_vectors, [old], passages.vector_rows([old], {old.id: a_vector(1, 0)}))
    assert await look(database, passages.awaiting_vectors, archive.id, 10) == [changed]
    assert await nearest(database, index, a_vector(1, 0), archive) == []


async def test_an_agent_has_one_archive(database: Database) -> None:
    agent, first, second = await add_agent(database), await an_archive(database), await an_archive(database)
    await call(database, archives.attach, agent, first.id)
    await call(database, archives.attach, agent, first.id)
    with pytest.raises(Conflict):
        await call(database, archives.attach, agent, second.id)
    await add(database, first, "one")
    assert await look(database, passages.count_of_agent, agent) == 1
    await call(database, archives.detach, agent, first.id)
    assert await look(database, archives.of_agent, agent) is None
    assert await look(database, passages.count_of_agent, agent) == 0
    with pytest.raises(NotFound):
        await look(database, archives.get, "archive-nobody")


async def test_the_archives_used_last_are_kept_in_memory(sqlite_url: str) -> None:
    opened = await open_database(sqlite_url)
    index = VectorIndex(most_bytes=20)
    made = [await an_archive(opened) for _ in range(4)]
    for archive in made:
        await add(opened, archive, archive.id, a_vector(1, 0))
    for archive in (*made, *made):
        assert await nearest(opened, index, a_vector(1, 0), archive) == [archive.id]
    assert len(index._kept) == 2
    index.forget([made[3].id])
    assert len(index._kept) == 1
    await opened.aclose()


async def test_more_rows_than_one_statement_takes_are_all_stored(database: Database) -> None:
    count = 130
    archive = await an_archive(database)
    new = [Passage(id=ids.new("passage"), archive_id=archive.id, text=str(at), tags=("a", "b")) for at in range(count)]
    vectors = {passage.id: a_vector(1, at) for at, passage in enumerate(new)}
    await call(database, passages.insert_many, passages.rows_of(new, vectors))
    assert len(await nearest(database, VectorIndex(), a_vector(1, 0), archive, limit=count)) == count
    wanted = PassageFilter(tags=("a", "b"), match_all_tags=True)
    assert len(await look(database, passage_search.oldest, wanted, 1_000)) == count


async def test_of_many_archives_only_the_nearest_are_compared(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes at most 32,766 parameters, which the best of 200 archives would be more than."""
    monkeypatch.setattr(passage_search, "_FEWEST_COMPARED", 4)
    made = [await an_archive(database) for _ in range(4)]
    for archive in made[:3]:
        for _ in range(4):
            await add(database, archive, "far", a_vector(-1, -1))
    await add(database, made[3], "near", a_vector(1, 1))
    compared: list[int] = []
    similar = passage_search.similarities

    def counted(vectors: list[bytes], vector: bytes) -> list[float]:
        compared.append(len(vectors))
        return similar(vectors, vector)

    monkeypatch.setattr(passage_search, "similarities", counted)
    wanted = PassageFilter(archive_ids=tuple(archive.id for archive in made))

    async def read(tx: Transaction) -> list[str]:
        found = await passage_search.by_vector(tx, VectorIndex(), a_vector(1, 1), wanted, 1)
        return [passage.text for passage in await passage_search.records(tx, found)]

    assert await database.read_long(read) == ["near"]
    assert compared in ([], [4])  # pgvector compares all by itself


async def test_a_list_of_numbers_is_one_parameter(database: Database) -> None:
    archive = await an_archive(database)
    await add(database, archive, "tea", a_vector(1, 0))
    found = await look(database, passage_search._compared, range(1, 40_000), a_vector(1, 0), 1)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("the build 03e2d failed", "03e2d"),
        ("paid 1e5x in all", "1e5x"),
        ("Ο ουρανός είναι μπλε", "ΟΥΡΑΝΟΣ"),
        ("नदी का पानी मीठा है", "मीठा"),
        ("தமிழ் மொழி", "மொழி"),
    ],
)
async def test_a_word_is_found_whatever_the_database_would_make_of_it(
    database: Database, text: str, query: str
) -> None:
    archive = await an_archive(database)
    await add(database, archive, "nothing of the kind: 2d, 5x")
    await add(database, archive, text)
    assert await with_words(database, query_words(query)) == [text]


async def test_a_word_that_is_there_often_counts_more(database: Database) -> None:
    archive = await an_archive(database)
    await add(database, archive, "tea and coffee and water and juice")
    await add(database, archive, "tea and more tea and still more tea")
    assert (await with_words(database, ["tea"]))[0] == "tea and more tea and still more tea"


async def test_the_longest_list_of_words_can_be_stored(database: Database) -> None:
    archive = await an_archive(database)
    text = " ".join(f"{number:0>64}" for number in range(20_000))
    await add(database, archive, text)
    assert len(await with_words(database, [f"{7:0>64}"])) == 1
    short = " ".join(f"w{number}" for number in range(60_000))
    await add(database, archive, short)
    assert len(await with_words(database, ["w7"])) == 1

"""Deleting archives, on both databases: at once for whoever looks, in parts for the rows."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import ids
from holdfast.core.records import Archive, Passage
from holdfast.errors import NotFound
from holdfast.store import agents, archives, passage_search, passages
from holdfast.store.database import open_database
from holdfast.store.paging import Page
from holdfast.store.passage_search import PassageFilter
from holdfast.store.transaction import Database, Transaction

from .world import NOW, add_agent, call, look, until_somebody_waits


async def an_archive(database: Database, owner: str | None = None, texts: int = 0) -> Archive:
    archive = Archive(id=ids.new("archive"), name="notes", embedding="acme/vectors", created_us=1, updated_us=1)
    await call(database, archives.insert, archive)
    if owner is not None:
        await call(database, archives.attach, owner, archive.id, is_owner=True)
    new = [Passage(id=ids.new("passage"), archive_id=archive.id, text=f"tea {n}", tags=("t",)) for n in range(texts)]
    await call(database, passages.insert_many, passages.rows_of(new, {}))
    return archive


async def found_by(database: Database, tags: tuple[str, ...] = ()) -> list[int]:
    async def read(tx: Transaction) -> list[int]:
        wanted = PassageFilter(tags=tags)
        return [
            len(await passage_search.by_words(tx, ["tea"], wanted, 10)),
            len(await passage_search.by_text(tx, "tea", wanted, 10)),
            len(await passage_search.oldest(tx, wanted, 10)),
        ]

    return await database.read_long(read)


async def test_a_deleted_archive_is_gone_at_once_and_its_rows_go_in_parts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "PASSAGES_AT_ONCE", 2)
    agent_id = await add_agent(database)
    kept = await an_archive(database, texts=1)
    gone = await an_archive(database, agent_id, texts=5)
    assert await found_by(database) == [6, 6, 6]

    await call(database, archives.mark_deleted, gone.id, NOW)

    with pytest.raises(NotFound):
        await look(database, archives.get, gone.id)
    with pytest.raises(NotFound):
        await call(database, archives.mark_deleted, gone.id, NOW)
    assert await look(database, archives.of_agent, agent_id) is None
    assert [one.id for one in await look(database, archives.list_archives, Page(), None, None)] == [kept.id]
    assert await look(database, archives.find_many, [gone.id]) == []
    assert [one.id for one in await look(database, archives.with_model)] == [kept.id]
    assert await found_by(database) == [1, 1, 1]
    assert await found_by(database, ("t",)) == [1, 1, 1]
    assert await look(database, archives.is_taken, gone.id)

    assert await look(database, archives.marked_deleted) == [gone.id]
    assert [await call(database, archives.clear, gone.id) for _ in range(3)] == [False, False, True]
    assert not await look(database, archives.is_taken, gone.id)
    assert await look(database, archives.marked_deleted) == []
    assert await found_by(database) == [1, 1, 1]


async def test_clearing_leaves_an_archive_that_nobody_deleted(database: Database) -> None:
    archive = await an_archive(database)
    assert await call(database, archives.clear, archive.id)
    assert await look(database, archives.get, archive.id) == archive


async def test_an_agent_says_which_archive_goes_with_it(database: Database) -> None:
    ann, bob = await add_agent(database), await add_agent(database)
    own, shared = await an_archive(database, ann, texts=1), await an_archive(database, bob)
    cat = await add_agent(database)
    await call(database, archives.attach, cat, shared.id)
    assert await call(database, agents.delete_agent, ann, NOW) == own.id
    assert await call(database, agents.delete_agent, bob, NOW) is None
    assert await call(database, agents.delete_agent, cat, NOW) is None  # it did not own it
    assert await look(database, archives.get, shared.id) == shared
    with pytest.raises(NotFound):
        await call(database, agents.delete_agent, ann, NOW)


async def test_an_archive_that_is_attached_while_its_owner_is_deleted_stays(postgres_url: str) -> None:
    """SQLite has one writer. On PostgreSQL the deletion waits, and must then look again."""
    database = await open_database(postgres_url)
    ann, bob = await add_agent(database), await add_agent(database)
    archive = await an_archive(database, ann, texts=1)
    attached, waited = asyncio.Event(), asyncio.Event()

    async def attach(tx: Transaction) -> None:
        await archives.get(tx, archive.id, keep=True)
        await archives.attach(tx, bob, archive.id)
        attached.set()
        await waited.wait()

    attaching = asyncio.create_task(database.write(attach))
    await attached.wait()
    deleting = asyncio.create_task(call(database, agents.delete_agent, ann, NOW))
    await until_somebody_waits(postgres_url, deleting)
    waited.set()
    await attaching
    assert await deleting is None
    assert await look(database, archives.of_agent, bob) == archive
    assert await found_by(database) == [1, 1, 1]
    await database.aclose()


@pytest.mark.parametrize("by", ["its owner", "itself"])
async def test_an_archive_that_is_being_deleted_is_given_to_nobody(postgres_url: str, by: str) -> None:
    """The other way round: whoever attaches it waits for the deletion, and finds nothing."""
    database = await open_database(postgres_url)
    ann, bob = await add_agent(database), await add_agent(database)
    archive = await an_archive(database, ann, texts=1)
    marked, waited = asyncio.Event(), asyncio.Event()

    async def delete(tx: Transaction) -> None:
        if by == "its owner":
            await agents.delete_agent(tx, ann, NOW)
        else:
            await archives.mark_deleted(tx, archive.id, NOW)
        marked.set()
        await waited.wait()

    deleting = asyncio.create_task(database.write(delete))
    await marked.wait()
    attaching = asyncio.create_task(call(database, archives.get, archive.id, keep=True))
    await until_somebody_waits(postgres_url, attaching)
    waited.set()
    await deleting
    with pytest.raises(NotFound):
        await attaching
    assert await call(database, archives.clear, archive.id)
    assert await look(database, archives.of_agent, bob) is None
    await database.aclose()

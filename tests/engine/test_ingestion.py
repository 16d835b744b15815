"""Ingestion can end anywhere and goes on where it was; nothing is written for a file that is gone, or by two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest

from holdfast import ids
from holdfast.core.records import File, Folder, Passage
from holdfast.engine import ingestion
from holdfast.engine.archival import ArchivalMemory
from holdfast.engine.bus import Bus
from holdfast.engine.clock import SystemClock
from holdfast.engine.ingestion import KIND, Ingestion, IngestionLimits
from holdfast.engine.tasks import MOST_ATTEMPTS, TaskSettings, TaskWorker
from holdfast.errors import ModelUnavailable
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import files, folders, passages, tasks
from holdfast.store.database import open_database
from holdfast.store.paging import Page
from holdfast.store.transaction import Database, Transaction
from holdfast.tools.documents.child import ChildLimits

from ..scenario import FragileDatabase, eventually

TEXT = "".join(f"Line {number} of a long text. It says little.\n" for number in range(4_000))
LIMITS = IngestionLimits(parser=ChildLimits(timeout_s=100))


class Vectors(ModelCatalog):
    """An embedding model that can be made to stall or to fail."""

    failing = False
    asked = 0
    goes_on: asyncio.Event | None = None  # from the second time on it waits for that

    async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
        self.asked += 1
        if self.goes_on is not None and self.asked > 1:
            await self.goes_on.wait()
        if self.failing:
            raise ModelUnavailable("it cannot be reached")
        return [[1.0, float(len(text))] for text in texts]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await open_database(database_url)
    yield opened
    await opened.aclose()


@pytest.fixture(autouse=True)
def few_parts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file takes many transactions."""
    monkeypatch.setattr(ingestion, "_PART_CHARS", 16_384)
    monkeypatch.setattr(ingestion, "_PARTS_AT_ONCE", 2)


def a_worker(database: Database, catalog: ModelCatalog | None = None) -> TaskWorker:
    worker = TaskWorker(database, Bus(), TaskSettings(lease_ttl_s=600, drain_s=0.0))
    archival = ArchivalMemory(database, catalog or Vectors(), SystemClock())
    worker.kinds[KIND] = Ingestion(database, archival, SystemClock(), LIMITS)
    return worker


async def a_file(database: Database, content: str = TEXT, embedding: str | None = "acme/vectors") -> File:
    """Uploaded, with its task."""
    folder = Folder(
        id=ids.new("source"),
        name=ids.new("name"),
        organization_id=ids.DEFAULT_ORG,
        embedding=embedding,
        chunk_size=300,
        created_us=1,
        updated_us=1,
    )
    file = File(
        id=ids.new("file"),
        folder_id=folder.id,
        name="a.txt",
        original_name="a.txt",
        kind="text",
        media_type="text/plain",
        size=len(content),
        created_us=1,
        updated_us=1,
    )

    async def write(tx: Transaction) -> None:
        await folders.insert(tx, folder)
        await files.insert(tx, file)
        await files.add_bytes(tx, file.id, 0, content.encode(), 1)
        await tasks.add(tx, KIND, file.id)

    await database.write(write)
    return file


async def stored(database: Database, file: File) -> tuple[File | None, str, list[Passage]]:
    async def read(tx: Transaction) -> tuple[File | None, str, list[Passage]]:
        chunks = await passages.list_of_archive(tx, file.folder_id, Page(limit=None, order="asc"), None)
        return await files.find(tx, file.id), await files.whole_text(tx, file.id), chunks

    return await database.read_long(read)


async def check_complete(database: Database, file: File) -> None:
    found, text, chunks = await stored(database, file)
    assert found is not None
    assert (found.status, found.error, found.lines) == ("completed", None, TEXT.count("\n"))
    assert text == TEXT
    assert found.total_chunks == found.chunks_stored == found.chunks_embedded == len(chunks)
    places = [(TEXT.index(chunk.text), TEXT.index(chunk.text) + len(chunk.text)) for chunk in chunks]
    assert (places[0][0], places[-1][1]) == (0, len(TEXT.strip()))
    assert all(before[0] < after[0] <= before[1] for before, after in pairwise(places))  # prose overlaps
    assert await database.read(lambda tx: files.bytes_part(tx, file.id, 0)) is None
    assert not await database.read(lambda tx: tasks.any_free(tx, [KIND]))


async def performed(worker: TaskWorker) -> None:
    assert await worker.sweep() == 1
    await worker.settled()


async def crashed(database: Database, write: int) -> bool:
    """An attempt whose process dies at that write. False when it has fewer."""
    fragile = FragileDatabase(database)
    worker = a_worker(fragile)
    fragile.crash_at(write + 1, "after" if write % 2 else "before")  # the first write claims the task
    assert await worker.sweep() == 1
    await worker.settled()
    return fragile.dead


@pytest.mark.slow
async def test_a_crash_at_any_write_is_made_good_by_the_next_attempt(database: Database) -> None:
    file = await a_file(database)
    for write in range(1, 200):
        if not await crashed(database, write):
            break
        await a_worker(database).expire_other_leases()
        found, _, _ = await stored(database, file)
        if found is not None and found.status == "completed":
            break
        # Each attempt would be one of its few: only deaths count here.
        await database.write(lambda tx: _as_new(tx, file))
    else:
        raise AssertionError("it never came to an end")
    assert write > 5
    await check_complete(database, file)


async def _as_new(tx: Transaction, file: File) -> None:
    await tasks.withdraw(tx, KIND, [file.id])
    await tasks.add(tx, KIND, file.id)


async def test_an_ingestion_goes_on_with_the_chunks_that_are_missing(database: Database) -> None:
    file, catalog = await a_file(database), Vectors()
    catalog.goes_on = asyncio.Event()
    fragile = FragileDatabase(database)
    worker = a_worker(fragile, catalog)
    await worker.sweep()
    await eventually(lambda: catalog.asked > 1)
    fragile.dead = True
    catalog.goes_on.set()
    await worker.settled()
    before, _, chunks = await stored(database, file)
    assert before is not None
    assert (before.status, before.chunks_stored, len(chunks)) == ("embedding", 32, 32)
    again = Vectors()
    second = a_worker(database, again)
    await second.expire_other_leases()
    await performed(second)
    await check_complete(database, file)
    everything = len((await stored(database, file))[2])
    assert again.asked == -(-(everything - 32) // 32)


async def test_a_file_that_is_deleted_meanwhile_leaves_nothing(database: Database) -> None:
    file, catalog = await a_file(database), Vectors()
    catalog.goes_on = asyncio.Event()
    worker = a_worker(database, catalog)
    await worker.sweep()
    await eventually(lambda: catalog.asked > 1)

    async def delete(tx: Transaction) -> None:
        await tasks.withdraw(tx, KIND, [file.id])
        await files.mark_deleted(tx, file.folder_id, file.id, 2)

    await database.write(delete)
    catalog.goes_on.set()
    await worker.settled()
    while not await database.write(lambda tx: files.clear(tx, file.id)):
        pass
    assert await stored(database, file) == (None, "", [])


async def test_whoever_has_lost_the_task_writes_nothing_more(database: Database) -> None:
    file, slow = await a_file(database), Vectors()
    slow.goes_on = asyncio.Event()
    first, second = a_worker(database, slow), a_worker(database)
    await first.sweep()
    await eventually(lambda: slow.asked > 1)
    await second.expire_other_leases()
    await performed(second)
    slow.goes_on.set()
    await first.settled()
    await check_complete(database, file)


async def test_an_ingestion_that_keeps_failing_ends_with_the_reason(database: Database) -> None:
    file = await a_file(database)
    archival = ArchivalMemory(database, Vectors(), SystemClock(), token_limit=1)  # no chunk fits
    worker = a_worker(database)
    worker.kinds[KIND] = Ingestion(database, archival, SystemClock(), LIMITS)
    await performed(worker)
    found, text, _ = await stored(database, file)
    assert found is not None
    assert found.status == "error"
    assert "Ingestion failed: The text has about" in (found.error or "")
    assert text == TEXT  # it can be opened and searched all the same


async def test_a_file_that_ends_the_server_each_time_is_given_up(database: Database) -> None:
    file = await a_file(database, "short")
    for _ in range(MOST_ATTEMPTS):
        worker = a_worker(database)
        await database.write(lambda tx, owner=worker.owner: tasks.claim(tx, [KIND], owner, 600_000_000, 1))
        await a_worker(database).expire_other_leases()
    await performed(a_worker(database))
    found, _, _ = await stored(database, file)
    assert found is not None
    assert found.status == "error"
    assert "ended unexpectedly" in (found.error or "")


async def test_a_model_that_fails_is_not_asked_for_every_batch(database: Database) -> None:
    file, catalog = await a_file(database), Vectors()
    catalog.failing = True
    await performed(a_worker(database, catalog))
    found, _, chunks = await stored(database, file)
    assert found is not None
    assert (found.status, found.chunks_embedded, found.total_chunks) == ("completed", 0, len(chunks))
    assert f"{len(chunks)} of {len(chunks)} chunks" in (found.error or "")
    assert catalog.asked == 2  # for the first batch, and once at the end


async def test_a_file_of_which_parts_are_missing_is_not_read_as_if_it_were_shorter(database: Database) -> None:
    file = await a_file(database)
    await database.write(lambda tx: files.forget_bytes(tx, file.id))
    await performed(a_worker(database))
    found, text, chunks = await stored(database, file)
    assert found is not None
    assert (found.status, text, chunks) == ("error", "", [])
    assert "parts of it are missing" in (found.error or "")

"""Ingestion of plain text: from the upload to `completed`, in this process, on SQLite, without an embedding model.

Its floor is what it cannot be quicker than: the same chunks with the same words, written by plain sqlite3 into a table
with a full-text index, 200 to a transaction.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Final

from bench.sections import Row, at_least
from holdfast import wiring
from holdfast.actions.folders import records
from holdfast.actions.folders.upload import Upload
from holdfast.core.chunking import DEFAULT_TOKENS, Chunker
from holdfast.core.search_words import words_of
from holdfast.settings import Settings
from holdfast.wire.folders import FolderCreate

MEGABYTES: Final = 4
AT_ONCE: Final = 200
GOAL_SHARE: Final = 0.4  # of the floor's pace


async def ingestion(data_dir: Path) -> list[Row]:
    text = _text()
    floor = _floor(data_dir / "floor.db", text)
    pace = await _ingestion(data_dir / "holdfast", text)
    return [
        at_least(f"ingestion of {MEGABYTES} MB of text", pace, "MB/s", round(GOAL_SHARE * floor, 2)),
        at_least("its floor: plain SQLite in the same run", floor, "MB/s", 0),
    ]


def _text() -> str:
    chance = random.Random(1)
    words = [f"word{number}" for number in range(20_000)]
    lines: list[str] = []
    size = 0
    while size < MEGABYTES * 1_000_000:
        lines.append(" ".join(chance.choices(words, k=12)) + ".\n")
        size += len(lines[-1])
    return "".join(lines)


def _floor(path: Path, text: str) -> float:
    began = time.perf_counter()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE chunks (id INTEGER PRIMARY KEY, text TEXT, words TEXT)")
        database.execute("CREATE VIRTUAL TABLE found USING fts5(words, content='chunks', content_rowid='id')")
        chunker = Chunker("text", DEFAULT_TOKENS)
        chunks = [*chunker.feed(text), *chunker.finish()]
        for first in range(0, len(chunks), AT_ONCE):
            rows = [
                (first + at, one, " ".join(words_of(one))) for at, one in enumerate(chunks[first : first + AT_ONCE])
            ]
            database.executemany("INSERT INTO chunks VALUES (?, ?, ?)", rows)
            database.executemany(
                "INSERT INTO found (rowid, words) VALUES (?, ?)", [(at, words) for at, _, words in rows]
            )
            database.commit()
    return MEGABYTES / (time.perf_counter() - began)


async def _ingestion(data_dir: Path, text: str) -> float:
    async with wiring.build(Settings(data_dir=data_dir, default_model="holdfast/offline"), warm_tools=False) as deps:
        folder = await records.create_folder(deps.database, deps.catalog, None, FolderCreate(name="bench"), 1)
        began = time.perf_counter()
        upload = Upload(name="bench.txt", content_type="text/plain", content=_pieces(text.encode()))
        uploaded = await deps.upload(folder.id, upload, "suffix", None)
        while True:
            await deps.tasks.settled()
            file = await records.read_file(deps.database, folder.id, uploaded.view["id"], include_content=False)
            if file["processing_status"] in ("completed", "error"):
                break
            await deps.tasks.sweep()
        assert file["error_message"] is None
        return MEGABYTES / (time.perf_counter() - began)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 65_536):
        yield content[first : first + 65_536]

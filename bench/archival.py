"""Search in archival memory, over 100,000 passages of one archive on SQLite, in this process.

Texts have 40 words, of which few are frequent and most are rare, as in any language. Vectors have 1,536 numbers, as
those of OpenAI's small model: points around 2,000 centres, so that some are near to each other. Making the query's own
vector is the vendor's work and is not measured. Needs numpy, which the extra `embeddings` brings.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from bench.calibration import Gauge
from bench.sections import Row, at_least, at_most
from holdfast import ids
from holdfast.core.records import Archive, Passage
from holdfast.engine.archival import ArchivalMemory, Mode, Search
from holdfast.engine.clock import SystemClock
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.store import archives, passages
from holdfast.store.database import open_database
from holdfast.store.transaction import Database

PASSAGES: Final = 100_000
DIMENSION: Final = 1_536
VOCABULARY: Final = 30_000
QUERIES: Final = 60
ROUND: Final = 2_000
BEST: Final = 10
GOALS: Final[dict[Mode, float]] = {"text": 20, "vector": 20, "hybrid": 40}


class _Vectors(ModelCatalog):
    """Gives the vector that was put here."""

    next: Sequence[float] = ()

    async def embed(self, handle: str, texts: Sequence[str]) -> list[list[float]]:
        return [list(self.next)]


async def archival(data_dir: Path) -> list[Row]:
    database = await open_database(f"sqlite:///{data_dir}/holdfast.db")
    numpy: Any = import_module("numpy")
    rng, words = numpy.random.default_rng(1), _Words()
    centres = rng.standard_normal((2_000, DIMENSION), dtype=numpy.float32)
    archive = Archive(id=ids.new("archive"), name="bench", embedding="bench/vectors", created_us=1, updated_us=1)
    await database.write(lambda tx: archives.insert(tx, archive))
    stored = [
        await _fill(database, archive, first, _points(rng, centres), words) for first in range(0, PASSAGES, ROUND)
    ]
    catalog = _Vectors()
    memory = ArchivalMemory(database, catalog, SystemClock())
    queries = _points(rng, centres)[:QUERIES]
    gauge = Gauge()
    for mode in GOALS:
        for query in queries:
            await gauge.take_awaited(mode, partial(_time, memory, catalog, archive, query, words.query(), mode))
    recall = await _recall(memory, catalog, archive, queries, [vector for part in stored for vector in part])
    await database.aclose()
    return [
        *(
            at_most(f"{mode} search in {PASSAGES:,} passages, p50", gauge.median_ms(mode), "ms", goal)
            for mode, goal in GOALS.items()
        ),
        at_least(f"of the {BEST} nearest vectors are found", recall * 100, "%", 95),
    ]


class _Words:
    """A language: the n-th word is said once where the first is said n times."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._all = [f"w{number}" for number in range(VOCABULARY)]
        self._weights = list(accumulate(1 / (number + 1) for number in range(VOCABULARY)))

    def text(self, count: int) -> str:
        return " ".join(self._random.choices(self._all, cum_weights=self._weights, k=count))

    def query(self) -> str:
        """Two frequent words and two that tell."""
        middle = [self._all[self._random.randrange(50, 5_000)] for _ in range(2)]
        return " ".join([self.text(2), *middle])


def _points(rng: Any, centres: Any) -> Any:
    around = centres[rng.integers(0, len(centres), ROUND)]
    points = around + rng.standard_normal((ROUND, DIMENSION), dtype="float32")
    return points / ((points**2).sum(axis=1, keepdims=True) ** 0.5)


async def _fill(database: Database, archive: Archive, first: int, points: Any, words: _Words) -> list[tuple[str, Any]]:
    rows = [
        Passage(
            id=ids.new("passage"),
            archive_id=archive.id,
            text=words.text(40),
            tags=(f"tag {number % 100}",),
            created_us=number,
        )
        for number in range(first, first + ROUND)
    ]
    vectors = {row.id: point.tobytes() for row, point in zip(rows, points, strict=True)}
    ready = passages.rows_of(rows, vectors)
    await database.write(lambda tx: passages.insert_many(tx, ready))
    return [(row.id, point) for row, point in zip(rows, points, strict=True)]


async def _time(
    memory: ArchivalMemory, catalog: _Vectors, archive: Archive, query: Any, text: str, mode: Mode
) -> float:
    catalog.next = query.tolist()
    search = Search(query=text, archives=(archive,), limit=BEST, mode=mode)
    began = time.perf_counter()
    await memory.search(search)
    return time.perf_counter() - began


async def _recall(
    memory: ArchivalMemory, catalog: _Vectors, archive: Archive, queries: Any, stored: list[tuple[str, Any]]
) -> float:
    numpy: Any = import_module("numpy")
    everything: Any = numpy.stack([vector for _, vector in stored])
    right = 0
    for query in queries:
        nearest: list[int] = numpy.argsort(-(everything @ query))[:BEST].tolist()
        catalog.next = query.tolist()
        hits = await memory.search(Search(query="x", archives=(archive,), limit=BEST, mode="vector"))
        right += len({stored[at][0] for at in nearest} & {hit.passage.id for hit in hits})
    return right / (len(queries) * BEST)

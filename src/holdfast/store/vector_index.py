"""The codes of vectors in memory, for SQLite: reading them anew at each search would take longer than comparing them.

One process writes a SQLite file, and numbers of vectors only grow, so an archive's codes are completed by what has a
greater number than the last. A deletion drops the codes of its archive. A passage that is found by its code is
read from the database before it is returned, so a deleted one is never shown.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from sqlalchemy import bindparam, select

from holdfast.store.archive_tables import passage_vectors
from holdfast.store.transaction import Transaction
from holdfast.store.vector_distance import CodeTable

_MOST_BYTES: Final = 256 * 1024 * 1024  # of codes: a million passages with vectors of 1,536 numbers
_NEW = (
    select(passage_vectors.c.seq, passage_vectors.c.code)
    .where(
        passage_vectors.c.archive_id == bindparam("archive_id"),
        passage_vectors.c.dimension == bindparam("dimension"),
        passage_vectors.c.seq > bindparam("last"),
    )
    .order_by(passage_vectors.c.seq)
)


class Codes:
    """Of one archive. Replaced when there are more, never changed: searches in other threads may be reading it."""

    def __init__(self, seqs: array[int], table: CodeTable) -> None:
        self.seqs = seqs
        self.table = table

    def places(self, seqs: Iterable[int]) -> list[int]:
        """The indexes of these numbers; those that are not in this archive are left out."""
        found = ((bisect_left(self.seqs, seq), seq) for seq in seqs)
        return [at for at, seq in found if at < len(self.seqs) and self.seqs[at] == seq]


class VectorIndex:
    """Safe in several threads. The archives that were used last are kept."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, int], Codes] = OrderedDict()
        self._lock = threading.Lock()

    async def of_archive(self, tx: Transaction, archive_id: str, dimension: int) -> Codes | None:
        """None when it has no vectors of this length."""
        key = archive_id, dimension
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
        last = known.seqs[-1] if known else 0
        rows = await tx.fetch_all(_NEW, {"archive_id": archive_id, "dimension": dimension, "last": last})
        if not rows:
            return known
        current = _with(known, [row["seq"] for row in rows], [bytes(row["code"]) for row in rows])
        if tx.dialect == "sqlite":
            self._keep(key, current)
        return current

    def forget(self, archive_ids: Iterable[str]) -> None:
        """Something was deleted from them."""
        gone = set(archive_ids)
        with self._lock:
            for key in [key for key in self._kept if key[0] in gone]:
                del self._kept[key]

    def _keep(self, key: tuple[str, int], current: Codes) -> None:
        with self._lock:
            self._kept[key] = current
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and sum(one.table.size for one in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)


def _with(known: Codes | None, seqs: list[int], codes: list[bytes]) -> Codes:
    if known is None:
        return Codes(array("q", seqs), CodeTable(len(codes[0]), b"".join(codes)))
    return Codes(known.seqs + array("q", seqs), known.table.extended(b"".join(codes)))

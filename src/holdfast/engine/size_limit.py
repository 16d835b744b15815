"""How many bytes ended runs have left behind, added up as they end, so that nobody has to read it all again.

Runs are counted in the order in which they ended, each once. Neighbours are kept as one sum, so the memory does not
grow with the number of runs. When there is too much, the oldest go first, and their sum is subtracted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from holdfast.store.retention import Place

_PARTS: Final = 64  # the limit is kept to one in so many


class SizeLimit:
    """For one kind of remains."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.counted = Place()  # all runs up to here
        self.swept = Place()  # those up to here were removed
        self._sums: deque[tuple[Place, int]] = deque()  # each up to its place
        self._total = 0

    @property
    def total(self) -> int:
        """Too large rather than too small: what went in other ways, as with its agent, is still counted."""
        return self._total

    def add(self, runs: Iterable[tuple[Place, int]]) -> None:
        for place, size in runs:
            self.counted = place
            self._total += size
            if self._sums and self._sums[-1][1] + size <= self.most_bytes // _PARTS:
                self._sums[-1] = place, self._sums[-1][1] + size
            else:
                self._sums.append((place, size))

    def excess(self) -> Place | None:
        """Up to where runs have to be removed."""
        last: Place | None = None
        while self._total > self.most_bytes:
            last, size = self._sums.popleft()
            self._total -= size
        return last

    def recount(self) -> None:
        self.counted = self.swept
        self._sums.clear()
        self._total = 0

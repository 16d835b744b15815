"""Reciprocal rank fusion: one ranking out of several whose scores cannot be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_DAMPING: Final = 60  # the constant of the original paper: how little a first place counts more than a second


def fuse_rankings(rankings: Iterable[Sequence[str]]) -> list[tuple[str, float]]:
    """Ids with their scores, best first. Among equals, who came first in the first ranking that has it."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + 1 / (_DAMPING + rank)
    return sorted(scores.items(), key=lambda item: -item[1])

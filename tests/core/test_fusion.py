from __future__ import annotations

from holdfast.core.search_words import fuse_rankings


def test_what_is_high_in_both_rankings_comes_first() -> None:
    ranked = fuse_rankings([["a", "b", "c"], ["c", "b", "d"]])
    assert [found for found, _ in ranked] == ["c", "b", "a", "d"]
    assert ranked[0][1] == 1 / 63 + 1 / 61


def test_one_ranking_keeps_its_order() -> None:
    assert [found for found, _ in fuse_rankings([["x", "y", "z"]])] == ["x", "y", "z"]
    assert fuse_rankings([]) == []

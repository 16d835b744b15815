from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.search_words import MOST_ASKED, MOST_BYTES, MOST_WORDS, fuse_rankings, query_words, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ann likes TEA!", ["ann", "like", "tea"]),
        ("", []),
        ("--- !!", []),
        ("Zürich naïve İstanbul", ["zurich", "naive", "istanbul"]),
        ("cities boxes dishes glasses bus class", ["city", "box", "dish", "glass", "bus", "class"]),
        ("snake_case-and.dots", ["snake", "case", "and", "dot"]),
        ("東京都", ["東京", "京都"]),
        ("東京tower5", ["東京", "tower5"]),
        ("茶", ["茶"]),
        ("Ο ουρανός, ΟΥΡΑΝΟΣ", ["ο", "ουρανοσ", "ουρανοσ"]),
        ("हिन्दी भाषा", ["हनद", "भष"]),
        ("soft\u00adhyphen क्\u200dष می\u200cخواهم", ["softhyphen", "कष", "میخواهم"]),
    ],
)
def test_words_are_plain_lower_case_and_singular(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_a_question_leaves_out_what_nearly_every_text_has() -> None:
    assert query_words("What does the user like to drink, and what not?") == ["user", "like", "drink"]
    assert query_words("who are you") == ["who", "are", "you"]
    assert len(query_words(" ".join(f"w{n}" for n in range(1_000)))) == MOST_ASKED


@given(st.text())
def test_a_word_is_one_word_again_and_cannot_break_a_query(text: str) -> None:
    for word in words_of(text):
        assert word
        assert not set(word) & set(" '\"\\()|&!:*-")
    assert words_of(" ".join(words_of(text.lower()))) is not None


def test_only_the_beginning_of_a_very_long_text_is_indexed() -> None:
    assert len(words_of("word " * (MOST_WORDS + 10))) == MOST_WORDS
    assert sum(len(word.encode()) for word in words_of(f"{'ж' * 64} " * 20_000)) <= MOST_BYTES


def test_a_word_of_two_scripts_is_taken_apart() -> None:
    assert words_of("abc東京都xyz") == ["abc", "東京", "京都", "xyz"]
    assert words_of("東") == ["東"]


def test_what_is_high_in_both_rankings_comes_first() -> None:
    ranked = fuse_rankings([["a", "b", "c"], ["c", "b", "d"]])
    assert [found for found, _ in ranked] == ["c", "b", "a", "d"]
    assert ranked[0][1] == 1 / 63 + 1 / 61


def test_one_ranking_keeps_its_order() -> None:
    assert [found for found, _ in fuse_rankings([["x", "y", "z"]])] == ["x", "y", "z"]
    assert fuse_rankings([]) == []

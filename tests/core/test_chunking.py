from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.chunking import Chunker
from holdfast.core.file_types import Kind

KINDS: list[Kind] = ["text", "markdown", "html", "json", "code", "pdf", "docx"]


def chunks(text: str, kind: Kind = "text", size: int = 16, pieces: int = 1) -> list[str]:
    chunker = Chunker(kind, size)
    step = max(1, -(-len(text) // pieces))
    found = [chunk for first in range(0, len(text), step) for chunk in chunker.feed(text[first : first + step])]
    return [*found, *chunker.finish()]


@given(st.text(alphabet="ab .\n#,{}", max_size=500), st.sampled_from(KINDS), st.integers(1, 50))
def test_chunks_do_not_depend_on_how_the_text_comes_in(text: str, kind: Kind, pieces: int) -> None:
    assert chunks(text, kind, pieces=pieces) == chunks(text, kind)


@given(st.text(max_size=500), st.sampled_from(KINDS))
def test_every_word_is_in_a_chunk_and_no_chunk_is_blank_or_too_long(text: str, kind: Kind) -> None:
    found = chunks(text, kind)
    assert all(chunk.strip() for chunk in found)
    assert all(len(chunk) <= 16 * 4 for chunk in found)
    joined = "".join("".join(found).split())
    assert all(character in joined for character in set(text) if not character.isspace())


def test_prose_ends_with_sentences_and_overlaps() -> None:
    text = " ".join(f"Sentence {number} is here." for number in range(20))
    found = chunks(text, size=32)
    assert all(chunk.endswith(".") for chunk in found)
    assert all(after.split()[0] in before for before, after in pairwise(found))


def test_markdown_ends_before_a_heading() -> None:
    text = "# One\n" + "words and more words\n" * 4 + "# Two\n" + "words\n" * 30
    assert chunks(text, "markdown", size=32)[0].startswith("# One")
    assert "# Two" not in chunks(text, "markdown", size=32)[0]


def test_code_does_not_overlap() -> None:
    text = "".join(f"def f{number}():\n    return {number}\n\n" for number in range(20))
    found = chunks(text, "code", size=32)
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["", "   \n\n ", "\t"])
def test_blank_text_has_no_chunks(text: str) -> None:
    assert chunks(text) == []


@pytest.mark.parametrize("text", ["\n" * 200_000 + " x", " \n" * 100_000, "." * 200_000, "<" * 200_000])
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_text_is_cut_in_no_time(text: str, kind: Kind) -> None:
    began = time.process_time()
    chunks(text, kind, size=4_096)
    assert time.process_time() - began < 5

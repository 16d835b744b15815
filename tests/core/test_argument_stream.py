"""Arguments that are read while a model writes them, cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arguments import ArgumentStream, Piece

_TEXT = st.text(st.sampled_from('ab"\\\n\t\0é😀{}[],: /u'), max_size=12)
_VALUE = st.recursive(
    _TEXT | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


def read(text: str, *cuts: int) -> tuple[ArgumentStream, list[Piece]]:
    stream, start = ArgumentStream(), 0
    pieces: list[Piece] = []
    for end in (*sorted(cuts), len(text)):
        pieces += stream.feed(text[start:end])
        start = end
    return stream, pieces


def said(pieces: list[Piece], name: str) -> str:
    return "".join(piece.text or "" for piece in pieces if piece.name == name)


@pytest.mark.slow
@given(st.dictionaries(_TEXT, _VALUE, max_size=4), st.booleans(), st.sampled_from([None, 2]), st.data())
def test_every_argument_is_told_whole_and_decoded_wherever_it_is_cut(
    arguments: dict[str, Any], ascii_only: bool, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    stream, pieces = read(text, *cuts)
    assert stream.is_whole
    assert [piece.name for piece in pieces if piece.begins] == list(arguments)
    assert [piece.name for piece in pieces if piece.ends] == list(arguments)
    for name, value in arguments.items():
        assert json.loads("".join(piece.raw for piece in pieces if piece.name == name), strict=False) == value
        if isinstance(value, str):
            assert said(pieces, name) == value


def test_words_are_told_as_they_come() -> None:
    stream = ArgumentStream()
    assert [piece.text for piece in stream.feed('{"message": "Hel')] == ["Hel"]
    assert [piece.text for piece in stream.feed("lo")] == ["lo"]
    assert [(piece.text, piece.ends) for piece in stream.feed('!"}')] == [("!", True)]
    assert stream.is_whole
    assert stream.feed('{"message": "more"}') == []


@pytest.mark.parametrize(
    ("escaped", "meant"),
    [
        (r"\u00e9\/\q", "é/q"),
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d!", "\ufffd!"),
        (r"\ud83d\n", "\ufffd\n"),
        (r"\ude00", "\ufffd"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\uzzzz", "\ufffd"),
    ],
)
def test_escapes_are_decoded_wherever_they_are_cut(escaped: str, meant: str) -> None:
    text = f'{{"x": "{escaped}"}}'
    for cut in range(len(text)):
        assert said(read(text, cut)[1], "x") == meant


def test_what_does_not_belong_there_is_left_out() -> None:
    assert said(read(' {"x" "y" : "z",, "a\\q": 1}')[1], "x") == "z"
    _, pieces = read('{"a\\q": 1}')
    assert [piece.name for piece in pieces] == ["a\\q"], "a name that cannot be read is taken as it is written"


def test_a_value_that_is_no_string_is_told_as_written_wherever_it_is_cut() -> None:
    text = r'{"x": ["a\"]}", {"b\\": "\u00e9"}], "y": -1.5}'
    for first in range(len(text)):
        for second in range(first, len(text)):
            _, pieces = read(text, first, second)
            assert "".join(piece.raw for piece in pieces if piece.name == "x") == r'["a\"]}", {"b\\": "\u00e9"}]'
            assert "".join(piece.raw for piece in pieces if piece.name == "y") == "-1.5"


def test_a_long_name_in_many_pieces_is_read_once() -> None:
    """Were each piece to make it read what came before, this would take hours."""
    stream = ArgumentStream()
    stream.feed('{"')
    for _ in range(50_000):
        assert stream.feed('ab\\"c') == []
    [piece] = stream.feed('": 1}')
    assert (piece.name, stream.is_whole) == ('ab"c' * 50_000, True)


@pytest.mark.parametrize("text", ['"{\\"x\\": 1}"', "[1]", 'noise {"x": 1}'])
def test_what_is_no_object_is_not_told_in_pieces(text: str) -> None:
    stream, pieces = read(text, 3)
    assert (stream.is_no_object, stream.is_whole, pieces) == (True, False, [])

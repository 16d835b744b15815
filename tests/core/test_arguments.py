"""Arguments: read leniently, checked where rules prefill them, and read while a model writes them, cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arguments import ArgumentStream, Piece, arguments_of, converted, merge_prefilled
from holdfast.errors import ToolFailed


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("  \n", {}),
        ("null", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": 1}{"a": 2}', {"a": 1}),
        ('{"a": 1}\n {"b": 2}', {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('{"a": 1, "request_heartbeat": true, "thinking": "hm"}', {"a": 1}),
        ('{"a": {"thinking": "kept"}}', {"a": {"thinking": "kept"}}),
    ],
)
def test_arguments_are_read_leniently(text: str, arguments: dict[str, Any]) -> None:
    assert arguments_of(text) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "not json",
        '{"a": 1} and so on',
        '"{"',
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
        '{"a": ' + "[" * 100_000,
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": -1e999}',
        '{"a": [{"b": NaN}]}',
        '"{\\"a\\": Infinity}"',
        '{"a": "two\nlines", "b": 1e999}',
    ],
)
def test_arguments_that_cannot_be_read_are_an_error_and_not_an_empty_call(text: str) -> None:
    with pytest.raises(ToolFailed, match="not valid JSON"):
        arguments_of(text)


@pytest.mark.parametrize("text", ["[1]", "3", "true", '"\\"plain\\""'])
def test_arguments_must_be_an_object(text: str) -> None:
    with pytest.raises(ToolFailed, match="must be a JSON object"):
        arguments_of(text)


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_prefilled_arguments_beat_those_of_the_model() -> None:
    kinds = schema(city={"type": "string"}, days={"type": "integer"})
    assert merge_prefilled(kinds, {"city": "Oslo", "days": 2}, {"city": "Rome"}) == {"city": "Rome", "days": 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"deep": float("-inf")}]], ids=str)
def test_a_prefilled_value_that_is_not_a_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ToolFailed, match=r"^Invalid prefilled tool arguments from tool rules: 'it' .*finite"):
        merge_prefilled(schema(it={}), {}, {"it": value})


def test_nothing_prefilled_leaves_the_arguments_as_they_are() -> None:
    assert merge_prefilled({}, {"anything": 1}, {}) == {"anything": 1}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({}, object),
        ({"type": "string"}, "x"),
        ({"type": "number"}, 1),
        ({"type": "number"}, 1.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": ["string", "null"]}, None),
        ({"type": "odd"}, 3),
        ({"enum": ["a", "b"]}, "b"),
        ({"const": 4}, 4),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 3),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "x"),
        ({"type": "array", "items": {"type": "string"}}, ["a"]),
        ({"type": "array"}, [1, "a"]),
        ({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}, {"x": 1, "y": "free"}),
        ({"type": "object"}, {"x": 1}),
        ({"$ref": "#/$defs/Day"}, 3),
        ({"$ref": "#/$defs/Missing"}, 3),
        ({"$ref": "#/properties/it/type/deeper"}, 3),
    ],
)
def test_a_prefilled_value_that_fits_is_taken(kind: dict[str, Any], value: Any) -> None:
    whole = {**schema(it=kind), "$defs": {"Day": {"type": "integer"}}}
    value = None if value is object else value
    assert merge_prefilled(whole, {}, {"it": value}) == {"it": value}


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ({"type": "string"}, 1, "must be of type"),
        ({"type": "integer"}, True, "must be of type"),
        ({"type": "integer"}, 1.5, "must be of type"),
        ({"type": "boolean"}, 1, "must be of type"),
        ({"type": ["string", "null"]}, 3, "must be of type"),
        ({"enum": ["a", "b"]}, "c", "must be one of"),
        ({"enum": [1]}, True, "must be one of"),
        ({"const": 4}, 5, "must be 4"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "fits none"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 1], "must be of type"),
        ({"type": "object", "properties": {"x": {"type": "integer"}}}, {"x": "1"}, "must be of type"),
        ({"type": "object", "required": ["x"]}, {}, "lacks x"),
        ({"$ref": "#/$defs/Day"}, "3", "must be of type"),
    ],
)
def test_a_prefilled_value_that_does_not_fit_is_refused(kind: dict[str, Any], value: Any, why: str) -> None:
    whole = {**schema(it=kind), "$defs": {"Day": {"type": "integer"}}}
    with pytest.raises(ToolFailed, match=f"^Invalid prefilled tool arguments from tool rules: 'it' {why}"):
        merge_prefilled(whole, {"it": "whatever the model said"}, {"it": value})


def test_a_prefilled_argument_that_the_tool_does_not_have_is_refused() -> None:
    with pytest.raises(ToolFailed, match=r"^Invalid prefilled tool arguments from tool rules: .*'town'.*takes: city"):
        merge_prefilled(schema(city={"type": "string"}), {}, {"town": "Rome"})


def test_a_tool_that_takes_any_argument_takes_any_prefilled_one() -> None:
    assert merge_prefilled({"additionalProperties": True}, {}, {"town": "Rome"}) == {"town": "Rome"}


def test_ordinary_fractions_are_readable() -> None:
    assert arguments_of('{"m": 1.5, "note": "a\nb"}') == {"m": 1.5, "note": "a\nb"}


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    names: list[str]
    text: str = ""
    more: dict[str, str] = {}


def test_arguments_of_a_tool_of_the_server_are_converted_without_nul() -> None:
    given = {"names": ["a\0b"], "text": "c\0", "more": {"d": "\0e"}}
    assert converted(given, _Wanted) == _Wanted(["ab"], "c", {"d": "e"})


def test_arguments_that_do_not_fit_a_tool_of_the_server_are_an_error_for_the_model() -> None:
    unfit: list[dict[str, Any]] = [{"names": "abc"}, {}, {"names": [], "other": 1}, {"names": [{}]}]
    for wrong in unfit:
        with pytest.raises(ToolFailed, match="do not fit the tool"):
            converted(wrong, _Wanted)


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

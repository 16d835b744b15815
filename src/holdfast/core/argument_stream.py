"""Reads the arguments of a call while a model writes them: which argument each piece belongs to, and what it says."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

import msgspec

_SPECIAL: Final = re.compile(r'["\\]')
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNREADABLE: Final = "\ufffd"
_SPACE: Final = " \t\n\r"


class Piece(msgspec.Struct, frozen=True):
    name: str  # of the argument
    raw: str  # as it was written
    text: str | None  # what the raw piece of a string says; None for any other kind of value
    begins: bool = False
    ends: bool = False


class _At(Enum):
    START = "start"
    NAME = "name"
    COLON = "colon"
    VALUE = "value"
    STRING = "string"
    OTHER = "other"
    COMMA = "comma"
    END = "end"
    NOWHERE = "nowhere"  # what is written is no object


class ArgumentStream:
    """One object, in pieces of any size. What cannot be read is left out: the whole call is judged when it is there."""

    def __init__(self) -> None:
        self._at = _At.START
        self._rest = ""  # the beginning of an escape that is not whole yet
        self._name = ""
        self._name_pieces: list[str] = []  # as they were written, of a name that is not whole yet
        self._begins = False
        self._depth = 0
        self._in_string = False  # of a value that is not a string itself

    @property
    def is_whole(self) -> bool:
        return self._at is _At.END

    @property
    def is_no_object(self) -> bool:
        """It may be one as a whole all the same: one that is written as a string."""
        return self._at is _At.NOWHERE

    def feed(self, chunk: str) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._rest = self._rest + chunk, ""
        position = 0
        while position < len(text) and self._at not in (_At.END, _At.NOWHERE):
            match self._at:
                case _At.STRING:
                    position = self._string(text, position, pieces)
                case _At.OTHER:
                    position = self._other(text, position, pieces)
                case _At.NAME:
                    position = self._read_name(text, position)
                case _:
                    position = self._between(text, position)
            if self._rest:
                break
        return pieces

    def _between(self, text: str, position: int) -> int:
        character = text[position]
        if character in _SPACE:
            return position + 1
        match self._at, character:
            case _At.START, "{":
                self._at = _At.COMMA
            case _At.START, _:
                self._at = _At.NOWHERE
            case _At.COMMA, '"':
                self._at = _At.NAME
            case _At.COMMA, "}":
                self._at = _At.END
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, '"':
                self._at, self._begins = _At.STRING, True
            case _At.VALUE, _:
                self._at, self._begins = _At.OTHER, True
                return position
            case _:  # a comma, or what does not belong here
                pass
        return position + 1

    def _read_name(self, text: str, position: int) -> int:
        end = position
        while (found := _SPECIAL.search(text, end)) and text[found.start()] == "\\" and found.end() < len(text):
            end = found.end() + 1
        stop = found.start() if found else len(text)
        self._name_pieces.append(text[position:stop])
        if found is None:
            return stop
        if text[stop] == "\\":
            self._rest = text[stop:]
            return stop
        written, self._name_pieces = "".join(self._name_pieces), []
        try:
            self._name = msgspec.json.decode(f'"{written}"', type=str)
        except msgspec.DecodeError:
            self._name = written
        self._at = _At.COLON
        return stop + 1

    def _string(self, text: str, position: int, pieces: list[Piece]) -> int:
        decoded: list[str] = []
        start, ends = position, False
        while position < len(text) and not ends:
            found = _SPECIAL.search(text, position)
            stop = found.start() if found else len(text)
            decoded.append(text[position:stop])
            position = stop
            if found is None:
                break
            if text[stop] == '"':
                position, ends = stop + 1, True
                continue
            character, length = _escape(text, stop)
            if not length:  # the rest of it comes later
                break
            decoded.append(character)
            position = stop + length
        self._rest = "" if ends else text[position:]
        self._add(pieces, text[start:position], "".join(decoded), quoted=True, ends=ends)
        if ends:
            self._at = _At.COMMA
        return position

    def _other(self, text: str, position: int, pieces: list[Piece]) -> int:
        start = position
        while position < len(text):
            character = text[position]
            if self._in_string:
                if character == "\\":
                    if position + 1 == len(text):
                        break
                    position += 1
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "[{":
                self._depth += 1
            elif character in "]}" and self._depth:
                self._depth -= 1
            elif character in ",}" and not self._depth:
                self._add(pieces, text[start:position], None, quoted=False, ends=True)
                self._at = _At.COMMA
                return position
            position += 1
        self._rest = text[position:]
        self._add(pieces, text[start:position], None, quoted=False, ends=False)
        return position

    def _add(self, pieces: list[Piece], raw: str, text: str | None, *, quoted: bool, ends: bool) -> None:
        if quoted and self._begins:
            raw = f'"{raw}'
        if raw or ends:
            pieces.append(Piece(self._name, raw, text, self._begins, ends))
            self._begins = False


def _escape(text: str, at: int) -> tuple[str, int]:
    """The character that an escape stands for, and how long the escape is; 0 when its end is missing."""
    if at + 1 >= len(text):
        return "", 0
    kind = text[at + 1]
    if kind != "u":
        return _ESCAPES.get(kind, kind), 2
    if at + 6 > len(text):
        return "", 0
    first = _code(text, at)
    if not 0xD800 <= first < 0xE000:
        return chr(first), 6
    if at + 12 > len(text) and "\\u".startswith(text[at + 6 : at + 8]):
        return "", 0  # the other half of the pair may follow
    second = _code(text, at + 6) if text.startswith("\\u", at + 6) else 0
    if first < 0xDC00 <= second < 0xE000:
        return chr(0x10000 + (first - 0xD800 << 10) + second - 0xDC00), 12
    return _UNREADABLE, 6


def _code(text: str, at: int) -> int:
    try:
        return int(text[at + 2 : at + 6], 16)
    except ValueError:
        return ord(_UNREADABLE)

"""A model's arguments as data: read leniently, merged with what the tool rules prefill, never guessed.

`ArgumentStream` reads them while a model writes them: which argument each piece belongs to, and what it says.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar, cast

import msgspec

from holdfast.errors import ToolFailed

Schema = Mapping[str, Any]
T = TypeVar("T")

_NOT_FOR_THE_TOOL: Final = frozenset({"request_heartbeat", "thinking"})
_PREFILL_ERROR: Final = "Invalid prefilled tool arguments from tool rules"
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
# What a stream of them is looked through for.
_SPECIAL: Final = re.compile(r'["\\]')
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNREADABLE: Final = "\ufffd"
_SPACE: Final = " \t\n\r"


def _finite(text: str) -> float:
    """Python also reads NaN and Infinity, which JSON does not have; encoded again, they would be null."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


# Models put raw line breaks into JSON strings; what they meant is not in doubt.
_lenient = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)


def arguments_of(text: str) -> dict[str, Any]:
    """Those that are meant for the tool."""
    return {name: given for name, given in all_arguments_of(text).items() if name not in _NOT_FOR_THE_TOOL}


def all_arguments_of(text: str) -> dict[str, Any]:
    """Accepts an object encoded twice, and takes the first of several objects run together."""
    try:
        value = _read(text)
        if isinstance(value, str):
            value = _read(value)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ToolFailed(f"Error: the arguments are not valid JSON ({error}). Call the tool again.") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ToolFailed("Error: the arguments must be a JSON object. Call the tool again.")
    return cast("dict[str, Any]", value)


def converted(arguments: Mapping[str, Any], kind: type[T]) -> T:
    """The arguments of a tool that the server itself carries out."""
    try:
        return msgspec.convert({name: _storable(value) for name, value in arguments.items()}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"The arguments do not fit the tool: {error}") from error


def merge_prefilled(schema: Schema, arguments: Mapping[str, Any], prefilled: Mapping[str, Any]) -> dict[str, Any]:
    """What the rules prefill beats what the model said. A prefilled value the tool cannot take is the rule's fault."""
    properties: Schema = schema.get("properties") or {}
    for name, value in prefilled.items():
        if name not in properties and not schema.get("additionalProperties"):
            known = ", ".join(properties) or "none"
            raise ToolFailed(f"{_PREFILL_ERROR}: the tool has no argument {name!r} (it takes: {known})")
        if (wrong := _mismatch(value, properties.get(name, {}), schema)) is not None:
            raise ToolFailed(f"{_PREFILL_ERROR}: {name!r} {wrong}")
    return {**arguments, **prefilled}


def _storable(value: Any) -> Any:
    """Without NUL, which PostgreSQL does not accept in texts."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, list):
        return [_storable(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _storable(one) for name, one in cast("dict[str, Any]", value).items()}
    return value


def _read(text: str) -> Any:
    stripped = text.strip()
    if not stripped:
        return None
    try:
        return msgspec.json.decode(stripped)
    except msgspec.DecodeError:
        value, end = _lenient.raw_decode(stripped)
        rest = stripped[end:].lstrip()
        if rest and not rest.startswith("{"):
            raise ValueError(f"unexpected text after the arguments: {rest[:40]!r}") from None
        # Half a surrogate pair passes Python's reader but can be neither stored nor sent.
        return msgspec.json.decode(msgspec.json.encode(value))


def _mismatch(value: Any, schema: Schema, root: Schema) -> str | None:
    """Why the value does not fit the schema, or None. Knows what tool schemas use, and lets the rest pass."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    schema = _resolved(schema, root)
    alternatives: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or []
    if alternatives and all(_mismatch(value, one, root) for one in alternatives):
        return f"fits none of the kinds of value it may have: {_shown(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"must be {_shown(schema['const'])}, not {_shown(value)}"
    if "enum" in schema and not any(_same(value, choice) for choice in schema["enum"]):
        return f"must be one of {_shown(schema['enum'])}, not {_shown(value)}"
    if not _has_type(value, schema.get("type")):
        return f"must be of type {_shown(schema['type'])}, not {_shown(value)}"
    return _mismatch_inside(value, schema, root)


def _mismatch_inside(value: Any, schema: Schema, root: Schema) -> str | None:
    inner: list[tuple[Any, Schema]] = []
    if isinstance(value, list):
        items: Schema = schema.get("items") or {}
        inner = [(item, items) for item in cast("list[Any]", value)]
    elif isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        properties: Schema = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or () if name not in named]
        if missing:
            return f"lacks {', '.join(missing)}"
        inner = [(item, properties.get(name) or {}) for name, item in named.items()]
    return next((wrong for item, kind in inner if (wrong := _mismatch(item, kind, root)) is not None), None)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """A reference within the same schema, once: those that lead nowhere, or on, leave the value unchecked."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = cast("dict[str, Any]", found).get(step) if isinstance(found, dict) else None
    return cast("Schema", found) if isinstance(found, dict) else {}


def _has_type(value: Any, schema_type: Any) -> bool:
    names = cast("list[Any]", schema_type) if isinstance(schema_type, list) else [schema_type]
    return any(_is_of(value, name) for name in names)


def _is_of(value: Any, name: Any) -> bool:
    types = _TYPES.get(name)
    if types is None:
        return True
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types)


def _same(value: Any, other: Any) -> bool:
    """Python holds True equal to 1; JSON does not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:200]


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

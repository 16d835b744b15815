"""A model's arguments as data: read leniently, merged with what the tool rules prefill, never guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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

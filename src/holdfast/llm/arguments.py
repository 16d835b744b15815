"""Arguments for a tool, filled from its JSON schema and from what an instruction says in quotes, numbers and names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import msgspec

Schema = Mapping[str, Any]

FALLBACK_TEXT: Final = "offline"
QUOTED = re.compile(r"(?<!\w)'([^'\n]*(?:'\w[^'\n]*)*)'(?!\w)|\"([^\"]*)\"|`([^`]*)`|“([^”]*)”|‘([^’]*)’")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,300}(?:\.\d+)?(?!\d)")  # with more digits it would be infinite
_NAME_CHARS: Final = 200  # that a name, and what stands between it and its value, may have
# What the server itself adds to the schemas of older kinds of agent; no user speaks of them.
_ADDED: Final = frozenset({"request_heartbeat", "thinking"})


class Hints(msgspec.Struct, frozen=True):
    """What an instruction offers: quoted texts and numbers not tied to a name, and values that are."""

    quotes: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    named: dict[str, Any] = {}


def fill(tool_name: str, parameters: Schema, hints: Hints) -> dict[str, Any]:
    """Every required argument, and optional ones that the instruction gives a value for; in the schema's order."""
    properties = properties_of(parameters)
    required: list[str] = list(parameters.get("required") or ())
    values: dict[str, Any] = {name: value for name, value in hints.named.items() if name in properties}
    wanted = [name for name in required if name in properties] + [name for name in properties if name not in required]
    free = [name for name in wanted if name not in values and name not in _ADDED]
    _take_quotes(values, free, properties, parameters, iter(hints.quotes))
    _take_numbers(values, free, properties, parameters, iter(hints.numbers))
    for name in required:
        if name not in values:
            values[name] = _added(name, tool_name) if name in _ADDED else example(properties.get(name, {}), parameters)
    return {name: values[name] for name in (*properties, *values) if name in values}


def hints_in(text: str, parameters: Schema) -> Hints:
    """Reads one stretch of an instruction. A name right before a value ties the value to it."""
    properties = properties_of(parameters)
    masked = mask_quotes(text)
    named: dict[str, Any] = {}
    quotes: list[str] = []
    for match in QUOTED.finditer(text):
        owner = _owner(masked[: match.start()], properties, named)
        if owner is not None and kind_of(properties[owner], parameters) == "string":
            named[owner] = quoted_value(match)
        else:
            quotes.append(quoted_value(match))
    for match in re.finditer(r"\b(\w+)\s*=\s*(true|false)\b", masked, re.IGNORECASE):
        if match[1] in properties:
            named[match[1]] = match[2].lower() == "true"
    numbers: list[float] = []
    for match in _NUMBER.finditer(masked):
        owner = _owner(masked[: match.start()], properties, named)
        if owner is not None and kind_of(properties[owner], parameters) in ("integer", "number"):
            named[owner] = _number(match[0], kind_of(properties[owner], parameters))
        else:
            numbers.append(float(match[0]))
    return Hints(tuple(quotes), tuple(numbers), named)


def properties_of(parameters: Schema) -> dict[str, Schema]:
    return cast("dict[str, Schema]", parameters.get("properties") or {})


def spoken_properties(parameters: Schema) -> dict[str, Schema]:
    """Those an instruction may give a value for."""
    return {name: schema for name, schema in properties_of(parameters).items() if name not in _ADDED}


def kind_of(schema: Schema, root: Schema) -> str:
    """The JSON type that would be sent; of several, the first that is not null."""
    schema = _resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(one) for one in cast("list[object]", kind) if one != "null"), "null")
    return str(kind) if kind else ("object" if "properties" in schema else "string")


def example(schema: Schema, root: Schema) -> Any:
    """A value that the schema allows, always the same one."""
    schema = _resolved(schema, root)
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    match kind_of(schema, root):
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            least = int(schema.get("minItems", 0))
            return [example(schema.get("items") or {}, root) for _ in range(least)]
        case "object":
            inner = properties_of(schema)
            return {name: example(inner.get(name, {}), root) for name in schema.get("required") or ()}
        case "null":
            return None
        case _:
            return FALLBACK_TEXT


def mask_quotes(text: str) -> str:
    """The same text with quoted stretches blanked out, so that nothing inside them is read as an instruction."""
    return QUOTED.sub(lambda match: " " * len(match[0]), text)


def quoted_value(match: re.Match[str]) -> str:
    return next((group for group in match.groups() if group is not None), "")


def _take_quotes(
    values: dict[str, Any], free: list[str], properties: Mapping[str, Schema], root: Schema, quotes: Iterator[str]
) -> None:
    for name in free:
        schema = _resolved(properties[name], root)
        kind = kind_of(schema, root)
        if kind == "array" and (rest := list(quotes)):
            values[name] = rest
        elif kind == "string" and (quote := next(quotes, None)) is not None:
            allowed = schema.get("enum")
            values[name] = quote if not allowed or quote in allowed else allowed[0]


def _take_numbers(
    values: dict[str, Any], free: list[str], properties: Mapping[str, Schema], root: Schema, numbers: Iterator[float]
) -> None:
    for name in free:
        kind = kind_of(properties[name], root)
        if kind in ("integer", "number") and (number := next(numbers, None)) is not None:
            values[name] = int(number) if kind == "integer" or number.is_integer() else number


def _owner(before: str, properties: Mapping[str, Schema], taken: Mapping[str, Any]) -> str | None:
    """The argument whose name stands right before this place: `operation 'x'`, `num_sides=6`, `inputs: 'a'`."""
    match = re.search(r"(\w+)['\"`]?\s*(?:[=:]|\bis|\bas|\bto|\bof)?\s*$", before[-_NAME_CHARS:])
    if match is None:
        return None
    word = match[1]
    for name in (word, word.removesuffix("s")):
        if name in properties and name not in taken:
            return name
    return None


def _number(text: str, kind: str) -> float | int:
    value = float(text)
    return int(value) if kind == "integer" or value.is_integer() else value


def _resolved(schema: Schema, root: Schema) -> Schema:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for key in reference[2:].split("/"):
            target = target.get(key, {})
        return cast("Schema", target)
    choices = cast("list[Schema]", schema.get("anyOf") or schema.get("oneOf") or [])
    if choices:
        chosen = next((one for one in choices if one.get("type") != "null"), choices[0])
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        return {**_resolved(chosen, root), **outer}
    return schema


def _added(name: str, tool_name: str) -> Any:
    return tool_name != "send_message" if name == "request_heartbeat" else "Doing what was asked."

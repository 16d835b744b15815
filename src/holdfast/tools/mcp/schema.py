"""What a model is told of an MCP tool: its schema, made regular, and how much of it a strict vendor would take.

A server may describe its tools in any way. One whose description no model can be told is left out, with the reason;
the others are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, Final, Literal, cast

import msgspec

from holdfast.errors import Invalid
from holdfast.tools.mcp.values import MOST_DESCRIPTION, MOST_SCHEMA_BYTES, ListedTool
from holdfast.tools.schema import check_parameters

Health = Literal["STRICT_COMPLIANT", "NON_STRICT_ONLY", "INVALID"]
_MOST_DEPTH: Final = 30
_MOST_NAME: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_BY_NAME: Final = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_LITERAL: Final = frozenset({"default", "const", "enum", "examples"})  # values, not schemas
_UNSTRICT: Final = ("oneOf", "allOf", "not", "if", "patternProperties", "dependentSchemas", "prefixItems")


class Unusable(Exception):
    """The reason why a tool is left out, as a clause."""


def usable_name(name: str) -> str:
    """A name that vendors accept, as near to the server's as can be."""
    plain = _NOT_IN_NAMES.sub("_", name)
    return (f"_{plain}" if plain[:1].isdigit() or plain[:1] == "-" else plain)[:_MOST_NAME]


def free_name(name: str, server_name: str, taken: Collection[str]) -> str:
    """The tool's own name; after its server's, if another tool has that; with a number, if that is taken, too."""
    plain = usable_name(name)
    if plain not in taken:
        return plain
    room = _MOST_NAME - len(plain) - 2
    prefixed = f"{usable_name(server_name)[:room]}__{plain}" if room > 0 else plain
    number, chosen = 2, prefixed
    while chosen in taken:
        ending = f"_{number}"
        chosen, number = f"{prefixed[: _MOST_NAME - len(ending)]}{ending}", number + 1
    return chosen


def described(tool: ListedTool, name: str) -> dict[str, Any]:
    """The json_schema of the tool under this name. Raises Unusable if there can be none."""
    parameters = normalised(tool.input_schema)
    warnings = sorted(set(_strict_problems(parameters, "parameters")))
    schema: dict[str, Any] = {
        "name": name,
        "description": (tool.description or tool.title or "")[:MOST_DESCRIPTION],
        "parameters": parameters,
        "mcp:SCHEMA_STATUS": "NON_STRICT_ONLY" if warnings else "STRICT_COMPLIANT",
    }
    if warnings:
        schema["mcp:SCHEMA_WARNINGS"] = warnings
    return schema


def health(tool: ListedTool) -> tuple[Health, list[str]]:
    try:
        schema = described(tool, tool.name)
    except Unusable as error:
        return "INVALID", [str(error)]
    return schema["mcp:SCHEMA_STATUS"], schema.get("mcp:SCHEMA_WARNINGS", [])


def normalised(given: dict[str, Any]) -> dict[str, Any]:
    """A copy that is an object with `properties` and `required`, closed wherever it does not say that it is open."""
    if given.get("type", "object") != "object":
        raise Unusable(f"its input schema is of type {given['type']!r}, not object")
    try:
        size = len(msgspec.json.encode(given))
        copy = cast("dict[str, Any]", _regular({**given, "type": "object"}, given, 0))
    except (RecursionError, TypeError, msgspec.MsgspecError) as error:
        raise Unusable("its input schema is nested too deeply, or is no JSON") from error
    if size > MOST_SCHEMA_BYTES:
        raise Unusable(f"its input schema has {size} bytes; at most {MOST_SCHEMA_BYTES} are accepted")
    copy.setdefault("properties", {})
    copy.setdefault("required", [])
    copy.setdefault("additionalProperties", False)
    try:
        check_parameters("its input schema", copy)
    except Invalid as error:
        raise Unusable(error.message) from error
    return copy


def _regular(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        raise RecursionError
    if isinstance(schema, list):
        return [_regular(each, root, depth + 1) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    given = cast("dict[str, Any]", schema)
    copy: dict[str, Any] = {}
    for key, value in given.items():
        if key in _BY_NAME and isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            copy[key] = {name: _regular(each, root, depth + 1) for name, each in named.items()}
        else:
            copy[key] = value if key in _LITERAL else _regular(value, root, depth + 1)
    if "$ref" in copy and "type" not in copy and (kind := _referred_type(copy["$ref"], root)):
        copy["type"] = kind  # vendors want one beside each reference
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy


def _referred_type(reference: Any, root: dict[str, Any]) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for part in reference[2:].split("/"):
        found = cast("dict[str, Any]", found).get(part) if isinstance(found, dict) else None
    kind = cast("dict[str, Any]", found).get("type") if isinstance(found, dict) else None
    return kind if isinstance(kind, str) else None


def _strict_problems(schema: Any, where: str) -> Iterator[str]:
    """Why a vendor's strict mode would not take it."""
    if isinstance(schema, list):
        for number, each in enumerate(cast("list[Any]", schema)):
            yield from _strict_problems(each, f"{where}[{number}]")
    if not isinstance(schema, dict):
        return
    given = cast("dict[str, Any]", schema)
    properties = given.get("properties")
    if isinstance(properties, dict):
        names = cast("dict[str, Any]", properties)
        if given.get("additionalProperties") is not False:
            yield f"{where} allows additional properties"
        required = {name for name in given.get("required") or () if isinstance(name, str)}
        if optional := sorted(set(names) - required):
            yield f"{where} has optional properties: {', '.join(optional)}"
        if unknown := sorted(required - set(names)):
            yield f"{where} requires properties that it does not describe: {', '.join(unknown)}"
    yield from (f"{where} uses {word}" for word in _UNSTRICT if word in given)
    for key, value in given.items():
        if key in _BY_NAME and isinstance(value, dict):
            for name, each in cast("dict[str, Any]", value).items():
                yield from _strict_problems(each, f"{where}.{name}")
        elif key not in _LITERAL:
            yield from _strict_problems(value, f"{where}.{key}")

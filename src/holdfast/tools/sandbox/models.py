"""Pydantic models from a JSON schema, for tools whose source names models that it does not define.

The client library sends a function's source alone, and the schema of its arguments beside it. What the function is
written for are objects of those models. They are made here, in the child, when a tool needs them.
"""

from __future__ import annotations

import enum
import functools
import importlib
import keyword
from typing import Any, Final, Literal, cast

_SIMPLE: Final[dict[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_REFERENCE: Final = "#/$defs/"

Schema = dict[str, Any]


class ArgumentModels:
    """The types that a schema describes. What it leaves open, or says in a way that is not understood, is `Any`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._definitions = cast("dict[str, Schema]", root.get("$defs") or {})
        self._made: dict[str, Any] = {}

    def named(self) -> dict[str, Any]:
        """Models and enums by the names that a source knows them by."""
        return {name: self._defined(name) for name in self._definitions if _is_name(name)}

    def of_parameters(self) -> dict[str, Any]:
        """Types of the arguments that are more than plain JSON."""
        properties = cast("dict[str, Schema]", self._root.get("properties") or {})
        return {name: self._type(schema, name) for name, schema in properties.items() if _holds_model(schema)}

    def _defined(self, name: str) -> Any:
        if name not in self._made:
            # A model that holds itself finds this in its place.
            self._made[name] = Any
            self._made[name] = self._class(self._definitions[name], name)
        return self._made[name]

    def _class(self, schema: Schema, name: str) -> Any:
        if "enum" in schema:
            members = {str(value): value for value in schema["enum"]}
            mixed = {"string": str, "integer": int}.get(schema.get("type", ""))
            return enum.Enum(name, members, type=mixed) if mixed else enum.Enum(name, members)
        if "properties" not in schema:
            return self._type(schema, name)
        create: Any = importlib.import_module("pydantic").create_model
        required = cast("list[str]", schema.get("required") or [])
        fields = {
            field: (self._type(about, field), ... if field in required else about.get("default"))
            for field, about in cast("dict[str, Schema]", schema["properties"]).items()
        }
        return create(name, __module__="tool", **fields)

    def _type(self, schema: Schema, name: str) -> Any:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            known = reference.removeprefix(_REFERENCE)
            return self._defined(known) if known in self._definitions else Any
        if "enum" in schema:
            return Literal[tuple(schema["enum"])]
        if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return functools.reduce(_either, (self._type(each, name) for each in choices))
        match schema.get("type"):
            case "array":
                return list[self._type(schema.get("items") or {}, name)]
            case "object" if "properties" in schema:
                return self._class(schema, name)
            case "object":
                values = schema.get("additionalProperties")
                return dict[str, self._type(cast("Schema", values), name)] if isinstance(values, dict) else dict
            case kind:
                return _SIMPLE.get(kind, Any) if isinstance(kind, str) else Any


def _either(one: Any, other: Any) -> Any:
    return one | other


def _holds_model(schema: Any) -> bool:
    if isinstance(schema, dict):
        held = cast("Schema", schema)
        return "$ref" in held or "properties" in held or any(map(_holds_model, held.values()))
    return isinstance(schema, list) and any(map(_holds_model, cast("list[Any]", schema)))


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)

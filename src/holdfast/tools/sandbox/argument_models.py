"""Pydantic models from a JSON schema, for tools whose source names models that it does not define.

The client library sends a function's source alone, and the schema of its arguments beside it. What the function is
written for are objects of those models. They are made here, in the child, when a tool needs them.
"""

from __future__ import annotations

import enum
import functools
import importlib
import keyword
from collections.abc import Callable
from typing import Any, Final, Literal, cast

_SIMPLE: Final[dict[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
_REFERENCE: Final = "#/$defs/"
# What enum, typing and pydantic raise for names and values that they do not take.
_CANNOT_BE_MADE: Final = (AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)

Schema = dict[str, Any]


class ArgumentModels:
    """The types that a schema describes. What it leaves open, or says in a way that is not understood, is `Any`."""

    def __init__(self, root: Schema) -> None:
        self.is_empty = not root  # then nobody need ask, which would touch pages in every call
        self._root = root
        self._definitions = _object(root.get("$defs"))
        self._made: dict[str, Any] = {}

    def named(self) -> dict[str, Any]:
        """Models and enums by the names that a source knows them by."""
        return {name: self._defined(name) for name in self._definitions if _is_name(name)}

    def of_parameters(self) -> dict[str, Any]:
        """Types of the arguments that are more than plain JSON."""
        properties = _object(self._root.get("properties"))
        return {name: self._type(schema, name) for name, schema in properties.items() if _holds_model(schema)}

    def _defined(self, name: str) -> Any:
        if name not in self._made:
            # A model that holds itself finds this in its place.
            self._made[name] = Any
            self._made[name] = self._made_of(self._class, self._definitions[name], name)
        return self._made[name]

    def _type(self, schema: Any, name: str) -> Any:
        return self._made_of(self._described, schema, name)

    def _made_of(self, make: Callable[[Schema, str], Any], schema: Any, name: str) -> Any:
        """`Any` for a schema that is no object, such as `true`, and for one that Python has no type for."""
        if not isinstance(schema, dict):
            return Any
        try:
            return make(cast("Schema", schema), name)
        except _CANNOT_BE_MADE:
            return Any

    def _class(self, schema: Schema, name: str) -> Any:
        if "enum" in schema:
            members = {str(value): value for value in schema["enum"]}
            if not members:
                return Any
            kind = schema.get("type")
            mixed = {"string": str, "integer": int}.get(kind) if isinstance(kind, str) else None
            return enum.Enum(name, members, type=mixed) if mixed else enum.Enum(name, members)
        if "properties" not in schema:
            return self._described(schema, name)
        create: Any = importlib.import_module("pydantic").create_model
        required = cast("list[str]", schema.get("required") or [])
        fields = {
            field: (self._type(about, field), ... if field in required else _object(about).get("default"))
            for field, about in cast("Schema", schema["properties"]).items()
        }
        return create(name, __module__="tool", **fields)

    def _described(self, schema: Schema, name: str) -> Any:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            known = reference.removeprefix(_REFERENCE)
            return self._defined(known) if known in self._definitions else Any
        if "enum" in schema:
            return Literal[tuple(schema["enum"])] if schema["enum"] else Any
        if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return functools.reduce(_either, (self._type(each, name) for each in choices))
        match schema.get("type"):
            case "array":
                return list[self._type(schema.get("items"), name)]
            case "object" if "properties" in schema:
                return self._class(schema, name)
            case "object":
                values = schema.get("additionalProperties")
                return dict[str, self._type(cast("Schema", values), name)] if isinstance(values, dict) else dict
            case kind:
                return _SIMPLE.get(kind, Any) if isinstance(kind, str) else Any


def _object(value: Any) -> Schema:
    return cast("Schema", value) if isinstance(value, dict) else {}


def _either(one: Any, other: Any) -> Any:
    return one | other


def _holds_model(schema: Any) -> bool:
    if isinstance(schema, dict):
        held = cast("Schema", schema)
        return "$ref" in held or "properties" in held or any(map(_holds_model, held.values()))
    return isinstance(schema, list) and any(map(_holds_model, cast("list[Any]", schema)))


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)

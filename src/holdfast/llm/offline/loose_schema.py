"""Reads JSON schemas of tools. Whoever made a tool wrote its schema, so nothing in it need be what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard, cast

Schema = Mapping[str, Any]

FALLBACK_TEXT: Final = "offline"
_MOST_DEPTH: Final = 8  # of references that lead to references
_MOST_VALUES: Final = 100  # in one example: schemas may contain themselves, more than once


def properties_of(parameters: Schema) -> dict[str, Schema]:
    found = parameters.get("properties")
    if not is_object(found):
        return {}
    return {name: schema if is_object(schema) else {} for name, schema in found.items()}


def required_of(parameters: Schema) -> list[str]:
    return [name for name in list_of(parameters.get("required")) if isinstance(name, str)]


def kind_of(schema: Schema, root: Schema) -> str:
    """The JSON type that would be sent; of several, the first that is not null."""
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((str(one) for one in cast("list[object]", kind) if one != "null"), "null")
    return kind if kind and isinstance(kind, str) else ("object" if "properties" in schema else "string")


def example(schema: Schema, root: Schema) -> Any:
    """A value that the schema allows, always the same one."""
    return _Example(root).of(schema)


class _Example:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MOST_VALUES

    def of(self, schema: Schema) -> Any:
        self._left -= 1
        schema = resolved(schema, self._root)
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        for key in ("examples", "enum"):
            if known := list_of(schema.get(key)):
                return known[0]
        match kind_of(schema, self._root):
            case "integer" | "number":
                least = schema.get("minimum")
                return least if isinstance(least, int | float) and not isinstance(least, bool) else 1
            case "boolean":
                return True
            case "array":
                return self._list(schema)
            case "object":
                return self._object(schema)
            case "null":
                return None
            case _:
                return FALLBACK_TEXT

    def _list(self, schema: Schema) -> list[Any]:
        least, items = schema.get("minItems"), schema.get("items")
        made: list[Any] = []
        while isinstance(least, int) and len(made) < least and self._left > 0:
            made.append(self.of(items if is_object(items) else {}))
        return made

    def _object(self, schema: Schema) -> dict[str, Any]:
        inner = properties_of(schema)
        return {name: self.of(inner.get(name, {})) for name in required_of(schema) if self._left > 0}


def resolved(schema: Schema, root: Schema, depth: int = 0) -> Schema:
    if depth > _MOST_DEPTH:
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for key in reference[2:].split("/"):
            target = target.get(key) if is_object(target) else None
        return resolved(target, root, depth + 1) if is_object(target) else {}
    choices = [one for one in list_of(schema.get("anyOf") or schema.get("oneOf")) if is_object(one)]
    if choices:
        chosen = next((one for one in choices if one.get("type") != "null"), choices[0])
        outer = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        return {**resolved(chosen, root, depth + 1), **outer}
    return schema


def is_numeric(schema: object, root: Schema) -> bool:
    return is_object(schema) and kind_of(schema, root) in ("integer", "number")


def is_object(value: object) -> TypeGuard[Schema]:
    return isinstance(value, Mapping)


def list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []

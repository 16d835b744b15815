"""Tool schemas that a vendor may hold a model to, token by token.

A strict schema lists every property as required and allows no others. One that can say so without meaning anything
else is rewritten; any other is sent as it is, and not called strict: a property that may be left out would become one
that the model fills with null, and tools do not expect that.
"""

from __future__ import annotations

from typing import Any, Final, cast

_BOUNDS: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"}
_KEPT: Final = _BOUNDS | {"title", "description", "enum", "const", "pattern", "format", "type", "$ref"}
_UNDERSTOOD: Final = _KEPT | {"properties", "required", "additionalProperties", "items", "anyOf", "$defs"}
_MAX_DEPTH: Final = 10
# Those that a vendor can write token by token; it refuses the request for any other.
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"},
)


def strict_schema(schema: dict[str, Any]) -> dict[str, Any] | None:
    """None when it cannot be made strict."""
    return _strict(schema, 0) if schema.get("type") == "object" and "anyOf" not in schema else None


def _strict(schema: Any, depth: int) -> dict[str, Any] | None:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    known = cast("dict[str, Any]", schema)
    if not known.keys() <= _UNDERSTOOD or not ("type" in known or "anyOf" in known or "$ref" in known):
        return None
    if known.get("format") not in (None, *_FORMATS):
        return None
    if "$ref" in known:
        return _reference(known)
    made = {key: value for key, value in known.items() if key in _KEPT}
    if _is_of(known, "object"):
        objects = _strict_object(known, depth)
        if objects is None:
            return None
        made |= objects
    if "items" in known or _is_of(known, "array"):
        items = _strict(known.get("items"), depth + 1)
        if items is None:
            return None
        made["items"] = items
    return _with_variants(made, known, depth)


def _is_of(known: dict[str, Any], kind: str) -> bool:
    declared = known.get("type")
    return kind in cast("list[str]", declared) if isinstance(declared, list) else declared == kind


def _reference(known: dict[str, Any]) -> dict[str, Any] | None:
    """It must stand alone. What is said about it is said around it."""
    about = {key: value for key, value in known.items() if key != "$ref"}
    if not about.keys() <= {"title", "description"}:
        return None
    return {**about, "anyOf": [{"$ref": known["$ref"]}]} if about else known


def _strict_object(known: dict[str, Any], depth: int) -> dict[str, Any] | None:
    if depth and "properties" not in known and "additionalProperties" not in known:
        return None  # any object at all; closed, it could only be empty
    properties: dict[str, Any] = known.get("properties") or {}
    required: list[str] = known.get("required") or []
    if known.get("additionalProperties") or not set(required) <= properties.keys():
        return None
    if not all(name in required or _takes_null(value) for name, value in properties.items()):
        return None
    inner = {name: _strict(value, depth + 1) for name, value in properties.items()}
    if any(value is None for value in inner.values()):
        return None
    return {"properties": inner, "required": list(properties), "additionalProperties": False}


def _with_variants(made: dict[str, Any], known: dict[str, Any], depth: int) -> dict[str, Any] | None:
    if "anyOf" in known:
        variants = [_strict(variant, depth + 1) for variant in known["anyOf"]]
        if any(variant is None for variant in variants):
            return None
        made["anyOf"] = variants
    if "$defs" in known:
        named = {name: _strict(value, depth + 1) for name, value in known["$defs"].items()}
        if any(value is None for value in named.values()):
            return None
        made["$defs"] = named
    return made


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    known = cast("dict[str, Any]", schema)
    kinds = known.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    return any(_takes_null(variant) for variant in known.get("anyOf") or ())

"""JSON schemas in the narrow form that Anthropic can enforce while a model writes.

Every object must be closed, and constraints that a grammar cannot express are refused; they are left out, which lets
through a little more than was asked for. A schema that needs an open object cannot be put into this form at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import TypeIs

_REFUSED: Final = frozenset(
    {
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
    }
)
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_NAMED: Final = ("properties", "$defs", "definitions")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems")


def enforceable(schema: dict[str, Any]) -> bool:
    """Whether closing its objects would leave it the same schema."""
    if schema.get("additionalProperties") not in (None, False):
        return False
    if schema.get("type") == "object" and "properties" not in schema and schema.get("additionalProperties") is None:
        return False
    return all(enforceable(part) for part in _parts(schema))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in schema.items() if key not in _REFUSED}
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            shown[key] = {name: _closed(part) for name, part in schema[key].items()}
    for key in _LISTED:
        if isinstance(schema.get(key), list):
            shown[key] = [_closed(part) for part in schema[key]]
    if "items" in schema:
        shown["items"] = _closed(schema["items"])
    if "oneOf" in shown:
        shown["anyOf"] = shown.pop("oneOf")
    if shown.get("format") not in _FORMATS:
        shown.pop("format", None)
    if shown.get("minItems", 0) > 1:
        del shown["minItems"]
    if shown.get("type") == "object":
        shown["additionalProperties"] = False
    return shown


def _closed(part: Any) -> Any:
    return closed(part) if _is_schema(part) else part


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found: list[Any] = [schema.get("items")]
    for key in _NAMED:
        found += dict[str, Any](schema.get(key) or {}).values()
    for key in _LISTED:
        found += list[Any](schema.get(key) or ())
    return filter(_is_schema, found)


def _is_schema(part: Any) -> TypeIs[dict[str, Any]]:
    """`true` and `false` are schemas too; there is nothing to close in them."""
    return isinstance(part, dict)

from __future__ import annotations

from typing import Any

import pytest

from holdfast.llm.anthropic.payload import closed, enforceable


def test_objects_are_closed_at_every_depth() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {
            "one": inner,
            "many": {"type": "array", "items": inner},
            "either": {"oneOf": [inner, {"type": "null"}]},
        },
        "$defs": {"inner": inner},
    }
    shut = inner | {"additionalProperties": False}
    assert enforceable(schema)
    assert closed(schema) == {
        "type": "object",
        "properties": {
            "one": shut,
            "many": {"type": "array", "items": shut},
            "either": {"anyOf": [shut, {"type": "null"}]},
        },
        "$defs": {"inner": shut},
        "additionalProperties": False,
    }


def test_what_a_grammar_cannot_express_is_left_out_and_the_original_is_untouched() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "default": 3},
            "mail": {"type": "string", "format": "email", "maxLength": 5},
            "odd": {"type": "string", "format": "binary"},
            "list": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 3},
        },
    }
    assert closed(schema)["properties"] == {
        "n": {"type": "integer", "default": 3},
        "mail": {"type": "string", "format": "email"},
        "odd": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
    }
    assert schema["properties"]["list"]["minItems"] == 2  # pyright: ignore[reportArgumentType, reportIndexIssue]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "object", "additionalProperties": {"type": "string"}}}},
        {"type": "array", "items": {"type": "object"}},
    ],
)
def test_a_schema_with_an_open_object_cannot_be_enforced(schema: dict[str, Any]) -> None:
    assert not enforceable(schema)


def test_an_object_without_any_properties_can_be_meant() -> None:
    assert enforceable({"type": "object", "properties": {}})
    assert enforceable({"type": "object", "additionalProperties": False})
    assert enforceable({"type": "array", "items": True})

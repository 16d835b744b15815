from __future__ import annotations

from typing import Any

import pytest

from holdfast.llm.chat.payload import strict_schema


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


TEXT = {"type": "string", "description": "words"}


def test_a_schema_that_requires_everything_is_closed_and_otherwise_kept() -> None:
    assert strict_schema(object_of(["a"], a=TEXT)) == object_of(["a"], a=TEXT) | {"additionalProperties": False}
    assert strict_schema({"type": "object"}) == object_of([]) | {"additionalProperties": False}


def test_what_may_be_left_out_is_required_when_it_may_be_null() -> None:
    for optional in ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}):
        made = strict_schema(object_of(["a"], a=TEXT, b=optional))
        assert made is not None
        assert made["required"] == ["a", "b"]
        assert made["properties"]["b"] == optional


def test_schemas_inside_are_made_strict_too() -> None:
    inner = object_of(["x"], x=TEXT)
    closed = inner | {"additionalProperties": False}
    made = strict_schema(
        object_of(
            ["a", "b", "c"], a={"type": "array", "items": inner}, b={"anyOf": [inner, TEXT]}, c={"$ref": "#/$defs/I"}
        )
        | {"$defs": {"I": inner}}
    )
    assert made is not None
    assert made["properties"]["a"]["items"] == closed
    assert made["properties"]["b"]["anyOf"][0] == closed
    assert made["$defs"]["I"] == closed


def test_a_reference_stands_alone_and_what_is_said_about_it_around_it() -> None:
    """OpenAI: `$ref cannot have keywords {'description'}`, which is what pydantic writes for a described model."""
    named = {"$defs": {"I": object_of(["x"], x=TEXT)}}
    made = strict_schema(object_of(["a"], a={"$ref": "#/$defs/I", "description": "one"}) | named)
    assert made is not None
    assert made["properties"]["a"] == {"description": "one", "anyOf": [{"$ref": "#/$defs/I"}]}


def test_an_object_or_nothing_is_closed_like_any_other() -> None:
    inner = object_of(["x"], x=TEXT) | {"type": ["object", "null"]}
    made = strict_schema(object_of(["a"], a=inner))
    assert made is not None
    assert made["properties"]["a"] == inner | {"additionalProperties": False}


LEFT_ALONE: list[dict[str, Any]] = [
    object_of([], a=TEXT),
    object_of(["a"], a=TEXT) | {"additionalProperties": True},
    object_of(["a"], a=TEXT) | {"additionalProperties": TEXT},
    object_of(["a", "missing"], a=TEXT),
    object_of(["a"], a=TEXT | {"default": "x"}),
    object_of(["a"], a=TEXT | {"minLength": 3}),
    object_of(["a"], a={}),
    object_of(["a"], a={"type": "array"}),
    object_of(["a"], a={"type": "object", "additionalProperties": TEXT}),
    object_of(["a"], a={"allOf": [TEXT]}),
    object_of(["a"], a={"anyOf": [TEXT, {"not": TEXT}]}),
    object_of(["a"], a=TEXT) | {"$defs": {"I": {}}},
    object_of(["a"], a=True),
    {"type": "array", "items": TEXT},
    {"anyOf": [object_of([])]},
    object_of(["a"], a=TEXT) | {"anyOf": [object_of([])]},
    object_of(["a"], a={"type": "object"}),
    object_of(["a"], a={"type": "array", "items": {"type": "object"}}),
    object_of(["a"], a={"type": ["array", "null"]}),
    object_of(["a"], a=TEXT | {"format": "uri"}),
    object_of(["a"], a={"$ref": "#/$defs/I", "enum": ["x"]}) | {"$defs": {"I": TEXT}},
    {},
]


@pytest.mark.parametrize("schema", LEFT_ALONE)
def test_a_schema_that_would_mean_something_else_is_left_alone(schema: dict[str, Any]) -> None:
    assert strict_schema(schema) is None


def test_a_schema_nested_too_deeply_is_left_alone() -> None:
    schema = object_of(["a"], a=TEXT)
    for _ in range(12):
        schema = object_of(["a"], a=schema)
    assert strict_schema(schema) is None

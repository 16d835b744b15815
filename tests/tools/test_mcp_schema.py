from __future__ import annotations

from typing import Any

import pytest

from holdfast.tools.mcp.schema import Unusable, described, free_name, health, normalised, usable_name
from holdfast.tools.mcp.values import ListedTool


def tool(**schema: Any) -> ListedTool:
    return ListedTool(name="t", description="Does.", input_schema={"type": "object", **schema})


def test_a_schema_becomes_an_object_with_properties_and_requirements_that_is_closed() -> None:
    assert normalised({}) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    opened = normalised({"type": "object", "additionalProperties": True})
    assert opened["additionalProperties"] is True


def test_objects_within_are_closed_and_references_have_a_type() -> None:
    point = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    given = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/point"}, "all": {"type": "array", "items": point}},
        "$defs": {"point": point},
    }
    result = normalised(given)
    assert result["properties"]["at"] == {"$ref": "#/$defs/point", "type": "object"}
    assert result["properties"]["all"]["items"]["additionalProperties"] is False
    assert result["$defs"]["point"]["additionalProperties"] is False
    assert "additionalProperties" not in point


def test_what_is_given_is_left_as_it_is_where_it_is_a_value_or_a_name() -> None:
    given: dict[str, Any] = {
        "type": "object",
        "properties": {
            "default": {"type": "object", "properties": {}},
            "y": {"type": "object", "default": {"type": "object", "properties": {}}},
        },
    }
    result = normalised(given)["properties"]
    assert result["default"]["additionalProperties"] is False
    assert result["y"]["default"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"properties": [1]},
        {"properties": {"x": 5}},
        {"required": "x"},
        {"required": [5]},
        {"description": "x" * 300_000},
    ],
)
def test_what_no_model_can_be_told_is_refused_with_a_reason(schema: dict[str, Any]) -> None:
    with pytest.raises(Unusable):
        normalised({"type": "object", **schema})
    broken = ListedTool(name="t", input_schema={"type": "object", **schema})
    assert health(broken)[0] == "INVALID"


def test_a_reference_that_leads_nowhere_or_in_a_ring_does_no_harm() -> None:
    given = {"properties": {"x": {"$ref": "#/$defs/x"}, "y": {"$ref": 5}}, "$defs": {"x": {"$ref": "#/$defs/x"}}}
    assert normalised(given)["properties"]["x"] == {"$ref": "#/$defs/x"}


@pytest.mark.parametrize(
    ("schema", "warnings"),
    [
        ({"properties": {"x": {"type": "string"}}, "required": ["x"]}, []),
        ({"properties": {"x": {"type": "string"}}}, ["parameters has optional properties: x"]),
        ({"additionalProperties": True}, ["parameters allows additional properties"]),
        ({"oneOf": [{"type": "object"}]}, ["parameters uses oneOf"]),
        ({"required": ["z"]}, ["parameters requires properties that it does not describe: z"]),
    ],
)
def test_its_health_says_whether_a_strict_vendor_takes_it(schema: dict[str, Any], warnings: list[str]) -> None:
    result = described(tool(**schema), "name")
    assert (result["name"], result["description"]) == ("name", "Does.")
    assert result["mcp:SCHEMA_STATUS"] == ("NON_STRICT_ONLY" if warnings else "STRICT_COMPLIANT")
    assert result.get("mcp:SCHEMA_WARNINGS", []) == warnings
    assert health(tool(**schema)) == (result["mcp:SCHEMA_STATUS"], warnings)


def test_a_name_is_as_near_to_the_server_s_as_vendors_allow() -> None:
    assert usable_name("read.file/now") == "read_file_now"
    assert usable_name("2nd") == "_2nd"
    assert usable_name("-x") == "_-x"
    assert len(usable_name("x" * 100)) == 64


def test_a_name_that_is_taken_gets_its_server_s_before_it_and_then_a_number() -> None:
    assert free_name("add", "harbour", ()) == "add"
    assert free_name("add", "harbour", {"add"}) == "harbour__add"
    assert free_name("add", "harbour", {"add", "harbour__add"}) == "harbour__add_2"
    long = "x" * 64
    assert free_name(long, "harbour", {long}) == "x" * 62 + "_2"
    assert len(free_name("y" * 60, "harbour", {"y" * 60})) <= 64

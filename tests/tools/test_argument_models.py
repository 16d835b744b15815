"""Types that are made from the schema of a tool's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.tools.base import Job
from holdfast.tools.sandbox import invoke
from holdfast.tools.sandbox.argument_models import ArgumentModels


def held(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


UNUSUAL: dict[str, Any] = {
    "field model_config": held(model_config={"type": "string"}),
    "field __base__": held(__base__={"type": "string"}),
    "field model_dump": held(model_dump={"type": "string"}),
    "field with underscore": held(_x={"type": "string"}),
    "schema of a field is true": held(x=True),
    "items are true": held(x={"type": "array", "items": True}),
    "no choice": held(x={"enum": []}),
    "choices that are objects": held(x={"enum": [{"a": 1}]}),
    "choices are no list": held(x={"enum": 5}),
    "alternatives are no list": held(x={"anyOf": 5}),
    "alternatives are true": held(x={"anyOf": [True, {"type": "null"}]}),
    "type is a list": held(x={"type": ["string", "null"]}),
    "required is no list": {**held(x={"type": "string"}), "required": 5},
    "properties are no object": {"type": "object", "properties": [1]},
    "enum without members": {"enum": []},
    "enum with mro": {"enum": ["mro", "a"], "type": "string"},
    "enum with _y_": {"enum": ["_y_", "a"], "type": "string"},
    "enum whose members are not of its type": {"enum": ["a"], "type": "integer"},
    "enum whose type is a list": {"enum": ["a", None], "type": ["string", "null"]},
    "true": True,
}


@pytest.mark.parametrize("schema", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("where", ["named", "inline"])
def test_a_tool_with_an_unusual_schema_is_called(schema: Any, where: str) -> None:
    root = (
        held(thing={"$ref": "#/$defs/Thing"}) | {"$defs": {"Thing": schema}} if where == "named" else held(thing=schema)
    )
    job = Job(
        call_id="",
        tool_name="f",
        source_code="def f(thing):\n    return 'called'\n",
        arguments={"thing": {"x": "y"}},
        args_schema=root,
    )
    models = ArgumentModels(root)
    function = invoke.load(job, models)
    assert function(**invoke.fit(function, job, models)) == "called"


@pytest.mark.parametrize("root", [{"$defs": [1]}, {"$defs": 5}, {"properties": [1]}, {"properties": 5}])
def test_a_schema_without_the_objects_it_should_have_makes_no_types(root: dict[str, Any]) -> None:
    models = ArgumentModels(root)
    assert (models.named(), models.of_parameters()) == ({}, {})


def test_a_model_may_have_the_name_of_what_every_source_knows() -> None:
    root = {"$defs": {"client": held(x={"type": "string"})}}
    job = Job(call_id="", tool_name="f", source_code="def f():\n    return client(x='y').x\n", arguments={})
    assert invoke.load(job, ArgumentModels(root))() == "y"


def test_one_part_that_cannot_be_made_leaves_the_others() -> None:
    thing = held(good={"type": "integer"}, bad={"enum": []}) | {"required": ["good"]}
    models = ArgumentModels({"$defs": {"Thing": thing, "Wrong": {"enum": ["mro"]}}}).named()
    assert models["Wrong"] is Any
    made = models["Thing"](good="3", bad={"any": "thing"})
    assert (made.good, made.bad) == (3, {"any": "thing"})

"""Every list and every object of a request has a maximum, and so has every text that is not free text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

from pydantic import BaseModel

from holdfast.api.server import ROUTERS

# Free text, and ids that only vendors and this server give out. The largest accepted body bounds them.
FREE_TEXT = frozenset(
    {
        "approval_request_id",
        "code",
        "content",
        "data",
        "description",
        "encrypted_content",
        "env_vars",
        "file_id",
        "id",
        "input",
        "instructions",
        "location",
        "override_system",
        "system_prompt",
        "prompt",
        "prompt_template",
        "reason",
        "reasoning",
        "secrets",
        "signature",
        "source_code",
        "stderr",
        "stdout",
        "summary",
        "system",
        "text",
        "tool_call_id",
        "tool_exec_environment_variables",
        "tool_return",
        "url",
        "value",
    }
)
FREE_NAMES = frozenset({"ToolCallContent.name"})  # of a content type that is refused wherever it comes
SIZED = frozenset({"list", "dict", "set", "frozenset", "tuple"})
# Parts of a schema that validate nothing.
ASIDE = frozenset({"metadata", "serialization", "cls", "config", "function"})


def request_models() -> set[type[BaseModel]]:
    """The bodies, and queries that are read as a whole, of every route."""
    found: set[type[BaseModel]] = set()
    for router in ROUTERS:
        for route in router.routes:
            endpoint: Any = getattr(route, "endpoint", None)
            parameters = inspect.signature(endpoint, eval_str=True).parameters.values() if endpoint else ()
            for annotation in (parameter.annotation for parameter in parameters):
                parts = (annotation, *getattr(annotation, "__args__", ()))
                found |= {part for part in parts if inspect.isclass(part) and issubclass(part, BaseModel)}
    return found


def unbounded(model: type[BaseModel]) -> set[tuple[str, str]]:
    """The kind and the `Model.field` of everything in it that may be of any size."""
    schema: Any = model.__pydantic_core_schema__
    return set(_walk(schema, model.__name__, "", {}, frozenset()))


def _walk(
    node: Any, model: str, field: str, definitions: dict[str, Any], above: frozenset[str]
) -> Iterator[tuple[str, str]]:
    if isinstance(node, list | tuple):
        for part in cast("list[Any]", node):
            yield from _walk(part, model, field, definitions, above)
        return
    if not isinstance(node, dict):
        return
    node = cast("dict[str, Any]", node)
    kind: str | None = node.get("type")
    if kind == "definitions":
        definitions = definitions | {each["ref"]: each for each in node["definitions"]}
    elif kind == "definition-ref" and node["schema_ref"] not in above:
        ref = node["schema_ref"]
        yield from _walk(definitions[ref], model, field, definitions, above | {ref})
    elif kind == "model":
        model = node["cls"].__name__
    elif kind == "model-fields":
        for name, each in node["fields"].items():
            yield from _walk(each["schema"], model, name, definitions, above)
        return
    if kind is not None and kind in SIZED | {"str"} and "max_length" not in node:
        yield kind, f"{model}.{field}"
    for name, part in node.items():
        if name not in ASIDE:
            # The keys of a free object are bounded by their number.
            yield from _walk(part, model, field, definitions, above) if name != "keys_schema" else ()


def test_requests_are_found() -> None:
    assert {"CreateAgentRequest", "LettaMessageRequest", "ToolCreate"} <= {model.__name__ for model in request_models()}


def test_a_list_an_object_and_a_text_without_a_maximum_are_found() -> None:
    class Part(BaseModel):
        names: list[str]

    class Request(BaseModel):
        parts: list[Part] | None = None
        metadata: dict[str, Any] | None = None

    assert unbounded(Request) == {
        ("list", "Request.parts"),
        ("list", "Part.names"),
        ("str", "Part.names"),
        ("dict", "Request.metadata"),
    }


def test_every_list_and_every_object_of_a_request_has_a_maximum() -> None:
    found = {place for model in request_models() for kind, place in unbounded(model) if kind in SIZED}
    assert not found


def test_every_text_of_a_request_that_is_not_free_text_has_a_maximum() -> None:
    found = {place for model in request_models() for kind, place in unbounded(model) if kind == "str"}
    assert not {place for place in found - FREE_NAMES if place.partition(".")[2] not in FREE_TEXT}

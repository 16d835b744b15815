"""A tool's schema from its Python source: the signature says which arguments there are, the docstring what they mean.

The source is read, never run. What it leaves out is left open: a tool without docstring or annotations can be called,
if less well. Every complaint says what to write instead, because its reader is about to fix a tool.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final, cast

import docstring_parser

from holdfast.errors import Invalid
from holdfast.tools.annotations import Annotations, AnnotationSchema, Schema, described_parameters, read_docstring

_NAME_CHARS: Final = 64
_GIVEN_BY_THE_SERVER: Final = frozenset({"self", "agent_state"})
_KIND_OF_DEFAULT: Final[dict[type[object], str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def derive_schema(source: str, name: str | None = None, args_schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """`{name, description, parameters}` of the last top-level function, or of the one that is named.

    With `args_schema` the arguments are taken from there, and only name and description from the source.
    """
    module = _parsed(source)
    function = _function(module, name)
    docstring = read_docstring(function)
    try:
        if args_schema is not None:
            parameters = _given_parameters(args_schema)
        else:
            parameters = _parameters(function, Annotations(module), described_parameters(docstring))
    except RecursionError as error:
        raise Invalid("The types of the arguments are nested too deeply.") from error
    description = _description(docstring) or function.name.replace("_", " ").strip().capitalize()
    return {"name": function.name, "description": description, "parameters": parameters}


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        place = f" in line {error.lineno}: {(error.text or '').strip()!r}" if error.lineno else ""
        raise Invalid(f"The source is not valid Python: {error.msg}{place}.") from error
    except ValueError as error:  # what the first versions of Python 3.11 say of NUL
        raise Invalid(f"The source is not valid Python: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise Invalid("The source is too deeply nested to be read.") from error


def _function(module: ast.Module, name: str | None) -> Function:
    functions = [node for node in module.body if isinstance(node, Function)]
    if not functions:
        raise Invalid("The source defines no function: write one with `def` or `async def` at the top level.")
    candidates = [node for node in functions if name is None or node.name == name]
    if not candidates:
        known = ", ".join(node.name for node in functions)
        raise Invalid(f"The source defines no function named {name!r} at the top level, only: {known}.")
    function = candidates[-1]
    if len(function.name) > _NAME_CHARS:
        raise Invalid(f"The function name {function.name!r} is longer than {_NAME_CHARS} characters: shorten it.")
    return function


def _description(docstring: docstring_parser.Docstring) -> str:
    examples = [
        "\n".join(text for text in (example.description, example.snippet) if text) for example in docstring.examples
    ]
    shown = ["Examples:\n" + "\n".join(examples)] if examples else []
    return "\n\n".join([docstring.description or "", *shown]).strip()


def _parameters(function: Function, annotations: Annotations, described: dict[str, str]) -> Schema:
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for parameter, default in _signature(function):
        where = f"parameter {parameter.arg!r} of function {function.name!r}"
        annotation = parameter.annotation
        meaning = AnnotationSchema(_like(default)) if annotation is None else annotations.read(annotation, where)
        description = described.get(parameter.arg) or meaning.schema.get("description")
        properties[parameter.arg] = meaning.schema | ({"description": description} if description else {})
        if default is None and not meaning.optional:
            required.append(parameter.arg)
    return {"type": "object", "properties": properties, "required": required}


def _like(default: ast.expr | None) -> Schema:
    """The schema of a parameter without annotation: the type of its default, or any type."""
    kind = _KIND_OF_DEFAULT.get(type(default.value)) if isinstance(default, ast.Constant) else None
    return {"type": kind} if kind else {}


def _signature(function: Function) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Every parameter that can be passed by name, and its default."""
    arguments = function.args
    if arguments.posonlyargs:
        first = arguments.posonlyargs[0].arg
        raise Invalid(f"The parameter {first!r} of function {function.name!r} is positional-only: remove the `/`.")
    without = len(arguments.args) - len(arguments.defaults)
    pairs = zip(arguments.args, [*[None] * without, *arguments.defaults], strict=True)
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from (pair for pair in (*pairs, *by_name) if pair[0].arg not in _GIVEN_BY_THE_SERVER)


def check_parameters(where: str, given: dict[str, Any]) -> None:
    """Refuses what is no schema of arguments: it would fail later, in a turn of an agent."""
    properties = given.get("properties")
    if not isinstance(properties, dict | None):
        raise Invalid(f"{where}.properties must be an object, with a schema for each argument.")
    for name, about in cast("dict[str, Any]", properties or {}).items():
        if not isinstance(about, dict) and about is not True:
            raise Invalid(f"{where}.properties describes {name!r} by what is no schema: write an object.")
    required = cast("list[Any] | None", given.get("required"))
    if not isinstance(required, list | None) or not all(isinstance(name, str) for name in required or ()):
        raise Invalid(f"{where}.required must be a list of names of arguments.")


def _given_parameters(given: dict[str, Any]) -> Schema:
    check_parameters("args_json_schema", given)
    properties = cast("dict[str, Any]", given.get("properties") or {})
    described: Schema = {name: {} if about is True else about for name, about in properties.items()}
    expanded = _Expansion(given).expand({"properties": described})
    return {"type": "object", **expanded, "required": list(given.get("required") or ())}


class _Expansion:
    """Puts what `$ref` refers to in its place: vendors differ in what they make of references."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._open: list[str] = []

    def expand(self, value: dict[str, Any]) -> dict[str, Any]:
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return {key: self._inner(item) for key, item in value.items() if key != "$defs"}
        if reference in self._open:
            raise Invalid(
                f"args_json_schema refers to itself through {reference!r}: a tool's schema must end somewhere."
            )
        self._open.append(reference)
        target = self.expand(self._found(reference))
        self._open.pop()
        return target | {key: self._inner(item) for key, item in value.items() if key != "$ref"}

    def _inner(self, item: Any) -> Any:
        if isinstance(item, dict):
            return self.expand(cast("dict[str, Any]", item))
        if isinstance(item, list):
            return [self._inner(one) for one in cast("list[Any]", item)]
        return item

    def _found(self, reference: str) -> dict[str, Any]:
        found: Any = self._root if reference.startswith("#/") else None
        for step in reference.removeprefix("#/").split("/"):
            found = cast("dict[str, Any]", found).get(step) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise Invalid(f"args_json_schema refers to {reference!r}, which it does not contain.")
        return cast("dict[str, Any]", found)

"""A tool's JSON schema from its Python source: signature and docstring, read as text and never executed."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import docstring_parser

from holdfast.errors import Invalid
from holdfast.tools.annotations import Annotations, default_of

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Filled in by the server when the tool runs, so no model has to know of them.
_INJECTED: Final = frozenset({"self", "cls", "agent_state"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def derive_schema(source: str, name: str | None = None, args_schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """`{name, description, parameters}` of the named function, or of the last one at the top level of the source.

    `args_schema`, when given, describes the parameters instead of the signature.
    """
    module = _parsed(source)
    function = _function(module, name)
    documentation = _documentation(function)
    if args_schema is None:
        parameters = _parameters(function, documentation, Annotations(module))
    else:
        parameters = {
            "type": "object",
            "properties": args_schema.get("properties", {}),
            "required": args_schema.get("required", []),
        }
    return {"name": function.name, "description": _description(documentation), "parameters": parameters}


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise Invalid(
            f"The tool's source code is not valid Python: line {error.lineno}: {error.msg}: {line}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Invalid(f"The tool's source code cannot be read: {error}") from error


def _function(module: ast.Module, name: str | None) -> Function:
    functions = [node for node in module.body if isinstance(node, Function)]
    if not functions:
        raise Invalid("The tool's source code has no function: define one at the top level, with def or async def.")
    if name is None:
        chosen = functions[-1]
    else:
        named = [function for function in functions if function.name == name]
        if not named:
            known = ", ".join(function.name for function in functions)
            raise Invalid(f"The tool's source code has no function named {name} at its top level, only: {known}.")
        chosen = named[-1]
    if not _NAME.fullmatch(chosen.name):
        raise Invalid(
            f"The function name {chosen.name} cannot be a tool's name: use at most 64 ASCII letters, digits, _."
        )
    return chosen


def _documentation(function: Function) -> docstring_parser.Docstring:
    text = ast.get_docstring(function)
    if not text:
        raise Invalid(
            f"The function {function.name} is missing docstring: say in one what the tool does and describe each "
            "parameter under 'Args:'."
        )
    try:
        return docstring_parser.parse(text)
    except docstring_parser.ParseError as error:
        raise Invalid(f"The docstring of {function.name} cannot be read: {error}") from error


def _description(documentation: docstring_parser.Docstring) -> str:
    parts = [documentation.short_description, documentation.long_description]
    examples = [example.description for example in documentation.examples if example.description]
    if examples:
        parts.append("Examples:\n" + "\n".join(examples))
    return "\n\n".join(part for part in parts if part)


def _parameters(
    function: Function, documentation: docstring_parser.Docstring, annotations: Annotations
) -> dict[str, Any]:
    described = {_bare(each.arg_name): each.description for each in documentation.params if each.description}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument, default in _arguments(function):
        if argument.arg in _INJECTED:
            continue
        if argument.annotation is None:
            raise Invalid(
                f"The parameter {argument.arg} of {function.name} has no type: annotate it, as in {argument.arg}: str."
            )
        schema = annotations.schema(argument.annotation)
        description = described.get(argument.arg) or schema.get("description")
        if not description:
            raise Invalid(
                f"The parameter {argument.arg} of {function.name} has no description: add it to the docstring under "
                "'Args:'."
            )
        properties[argument.arg] = schema | default_of(default) | {"description": description}
        if default is None and not annotations.is_optional(argument.annotation):
            required.append(argument.arg)
    return {"type": "object", "properties": properties, "required": required}


def _arguments(function: Function) -> list[tuple[ast.arg, ast.expr | None]]:
    """Every parameter with its default. `*args` and `**kwargs` have no place in a JSON object."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    missing = len(positional) - len(given.defaults)
    defaults: list[ast.expr | None] = [*([None] * missing), *given.defaults]
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [(argument, default) for argument, default in pairs]


def _bare(name: str) -> str:
    """Google style may write the type into the name: `text (str)`."""
    return name.partition("(")[0].strip().lstrip("*")

"""Python annotations as JSON schema, read from the source text. Nothing is imported or executed.

Classes count when they are defined in the same source: enums, pydantic models, dataclasses and typed dicts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

import docstring_parser

from holdfast.errors import Invalid

Schema = dict[str, Any]

_PLAIN: Final[dict[str, Schema]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
    "Any": {},
    "object": {},
    "list": {"type": "array", "items": {"type": "string"}},
    "dict": {"type": "object"},
    "tuple": {"type": "array"},
    "set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "bytes": {"type": "string", "format": "binary"},
    "datetime": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "UUID": {"type": "string", "format": "uuid"},
    "Decimal": {"type": "number"},
    "Path": {"type": "string"},
}
_SAME_AS: Final = {
    "List": "list",
    "Sequence": "list",
    "Iterable": "list",
    "Dict": "dict",
    "Mapping": "dict",
    "Tuple": "tuple",
    "Set": "set",
    "frozenset": "set",
    "FrozenSet": "set",
}
_ENUM_BASES: Final = frozenset({"Enum", "StrEnum", "IntEnum"})
_MODEL_BASES: Final = frozenset({"BaseModel", "TypedDict"})


class Annotations:
    def __init__(self, module: ast.Module) -> None:
        self._classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self._aliases = _aliases_of(module)
        self._open: list[str] = []

    def schema(self, annotation: ast.expr) -> Schema:
        match annotation:
            case ast.Constant(value=None):
                return dict(_PLAIN["None"])
            case ast.Constant(value=str(text)):
                return self.schema(_parsed(text))
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._named(name, annotation)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._either([left, right])
            case ast.Subscript(value=value, slice=inner):
                return self._subscript(_last_name(value), inner, annotation)
            case _:
                raise _unsupported(annotation)

    def is_optional(self, annotation: ast.expr) -> bool:
        schema = self.schema(annotation)
        if schema == _PLAIN["None"] or any(choice == _PLAIN["None"] for choice in schema.get("anyOf", ())):
            return True
        return _mentions_none(annotation, self._aliases)

    def _named(self, name: str, annotation: ast.expr) -> Schema:
        name = _SAME_AS.get(name, name)
        if name in self._classes:
            return self._class(self._classes[name])
        if name in self._aliases:
            return self.schema(self._aliases[name])
        if name in _PLAIN:
            return dict(_PLAIN[name])
        raise _unsupported(annotation)

    def _subscript(self, name: str, inner: ast.expr, annotation: ast.expr) -> Schema:
        arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        match _SAME_AS.get(name, name):
            case "Optional":
                return self.schema(arguments[0])
            case "Union":
                return self._either(arguments)
            case "Annotated":
                return self._annotated(arguments)
            case "Literal":
                return _literal(arguments)
            case "list":
                return {"type": "array", "items": self.schema(arguments[0])}
            case "set":
                return {"type": "array", "items": self.schema(arguments[0]), "uniqueItems": True}
            case "dict" if len(arguments) == 2:
                return {"type": "object", "additionalProperties": self.schema(arguments[1])}
            case "tuple":
                return self._tuple(arguments)
            case _:
                raise _unsupported(annotation)

    def _either(self, choices: list[ast.expr]) -> Schema:
        schemas: list[Schema] = []
        for choice in choices:
            schema = self.schema(choice)
            flat = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
            schemas.extend(each for each in flat if each not in schemas and each != _PLAIN["None"])
        if len(schemas) == 1:
            return schemas[0]
        return {"anyOf": schemas} if schemas else dict(_PLAIN["None"])

    def _annotated(self, arguments: list[ast.expr]) -> Schema:
        schema = self.schema(arguments[0])
        for note in arguments[1:]:
            if isinstance(note, ast.Constant) and isinstance(note.value, str):
                schema["description"] = note.value
            elif isinstance(note, ast.Call):
                schema |= _field_notes(note)
        return schema

    def _tuple(self, arguments: list[ast.expr]) -> Schema:
        if len(arguments) == 2 and isinstance(arguments[1], ast.Constant) and arguments[1].value is Ellipsis:
            return {"type": "array", "items": self.schema(arguments[0])}
        items = [self.schema(each) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _class(self, node: ast.ClassDef) -> Schema:
        if node.name in self._open:
            raise Invalid(f"The class {node.name} contains itself, which a tool's schema cannot express.")
        bases = {_last_name(base) for base in node.bases}
        if bases & _ENUM_BASES or any(base in self._classes and self._is_enum(base) for base in bases):
            return _enum(node)
        if not (bases & _MODEL_BASES or _is_dataclass(node) or bases & set(self._classes)):
            raise Invalid(
                f"The class {node.name} cannot be a parameter's type: make it an Enum, a pydantic BaseModel, a "
                "dataclass or a TypedDict."
            )
        self._open.append(node.name)
        try:
            return self._fields(node, bases)
        finally:
            self._open.pop()

    def _is_enum(self, name: str) -> bool:
        return bool({_last_name(base) for base in self._classes[name].bases} & _ENUM_BASES)

    def _fields(self, node: ast.ClassDef, bases: set[str]) -> Schema:
        properties: Schema = {}
        required: list[str] = []
        for base in node.bases:
            if (parent := self._classes.get(_last_name(base))) is not None:
                inherited = self._class(parent)
                properties |= inherited["properties"]
                required += inherited["required"]
        notes = _described_fields(node)
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                name = field.target.id
                properties[name] = self._field(field, notes.get(name))
                if _has_no_default(field) and not self.is_optional(field.annotation):
                    required.append(name)
        shown: Schema = {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
        if text := ast.get_docstring(node):
            shown["description"] = docstring_parser.parse(text).short_description or ""
        return shown

    def _field(self, field: ast.AnnAssign, described: str | None) -> Schema:
        schema = self.schema(field.annotation)
        if described:
            schema["description"] = described
        if isinstance(field.value, ast.Call):
            schema |= _field_notes(field.value)
        return schema


def default_of(value: ast.expr | None) -> Schema:
    """`{"default": …}` when the default is a plain value that JSON can say."""
    if value is None:
        return {}
    try:
        default = ast.literal_eval(value)
    except ValueError:
        return {}
    return {"default": default} if isinstance(default, (str, int, float, bool)) else {}


def _literal(arguments: list[ast.expr]) -> Schema:
    values = [ast.literal_eval(each) for each in arguments]
    return _values([value for value in values if value is not None])


def _enum(node: ast.ClassDef) -> Schema:
    values: list[Any] = []
    for line in node.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            automatic = isinstance(line.value, ast.Call)
            values.append(line.targets[0].id.lower() if automatic else ast.literal_eval(line.value))
    return _values(values)


def _values(values: list[Any]) -> Schema:
    kinds: Mapping[str, str] = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}
    types = {kinds.get(type(value).__name__) for value in values}
    only = types.pop() if len(types) == 1 else None
    return {"type": only, "enum": values} if only else {"enum": values}


def _field_notes(call: ast.Call) -> Schema:
    """What `Field(…)` says of a field that a model can use."""
    known: dict[str, Callable[[Any], Schema]] = {
        "description": lambda value: {"description": value},
        "ge": lambda value: {"minimum": value},
        "le": lambda value: {"maximum": value},
        "gt": lambda value: {"exclusiveMinimum": value},
        "lt": lambda value: {"exclusiveMaximum": value},
        "min_length": lambda value: {"minLength": value},
        "max_length": lambda value: {"maxLength": value},
        "pattern": lambda value: {"pattern": value},
        "default": lambda value: {"default": value} if value is not None else {},
    }
    notes: Schema = default_of(call.args[0]) if call.args else {}
    for keyword in call.keywords:
        if keyword.arg in known:
            try:
                notes |= known[keyword.arg](ast.literal_eval(keyword.value))
            except ValueError:
                continue  # computed at run time: nothing the model could be told
    return notes


def _described_fields(node: ast.ClassDef) -> dict[str, str]:
    text = ast.get_docstring(node)
    if not text:
        return {}
    return {each.arg_name: each.description for each in docstring_parser.parse(text).params if each.description}


def _has_no_default(field: ast.AnnAssign) -> bool:
    if field.value is None:
        return True
    if not isinstance(field.value, ast.Call) or _last_name(field.value.func) != "Field":
        return False
    named = {keyword.arg for keyword in field.value.keywords}
    if named & {"default", "default_factory"}:
        return False
    positional = field.value.args
    return not positional or (isinstance(positional[0], ast.Constant) and positional[0].value is Ellipsis)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any(
        _last_name(each.func if isinstance(each, ast.Call) else each) == "dataclass" for each in node.decorator_list
    )


def _aliases_of(module: ast.Module) -> dict[str, ast.expr]:
    """`Names = list[str]` at the top of the source."""
    return {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, (ast.Subscript, ast.BinOp))
    }


def _mentions_none(annotation: ast.expr, aliases: Mapping[str, ast.expr]) -> bool:
    match annotation:
        case ast.Constant(value=None):
            return True
        case ast.Constant(value=str(text)):
            return _mentions_none(_parsed(text), aliases)
        case ast.BinOp(left=left, right=right):
            return _mentions_none(left, aliases) or _mentions_none(right, aliases)
        case ast.Subscript(value=value, slice=inner):
            arguments = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            match _last_name(value):
                case "Optional":
                    return True
                case "Union" | "Literal":
                    return any(_mentions_none(each, aliases) for each in arguments)
                case "Annotated":
                    return _mentions_none(arguments[0], aliases)
                case _:
                    return False
        case ast.Name(id=name) if name in aliases:
            return _mentions_none(aliases[name], aliases)
        case _:
            return False


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Invalid(f"The annotation '{text}' is not valid Python.") from error


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _unsupported(annotation: ast.expr) -> Invalid:
    return Invalid(
        f"The annotation '{ast.unparse(annotation)}' cannot be turned into a schema. Use str, int, float, bool, list, "
        "dict, Literal, Optional, a class defined in the same source, or send json_schema yourself."
    )

"""JSON schemas of Python annotations, read from the syntax tree. Nothing is imported, nothing is run.

What an annotation can name besides the built-in and typing forms: enums, pydantic models, TypedDicts, dataclasses and
aliases, as long as they are defined in the same source. They are expanded in place, so a schema has no references.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import docstring_parser
import msgspec

from holdfast.errors import Invalid

Schema = dict[str, Any]
Kind = Literal["enum", "model", "typed_dict", "dataclass"]

_SIMPLE: Final[dict[str, Schema]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "None": {"type": "null"},
    "NoneType": {"type": "null"},
    "Any": {},
    "Decimal": {"type": "number"},
    "datetime": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "UUID": {"type": "string", "format": "uuid"},
}
_LISTS: Final = frozenset("list List Sequence MutableSequence Iterable Collection tuple Tuple".split())  # noqa: SIM905
_SETS: Final = frozenset("set Set frozenset FrozenSet AbstractSet".split())  # noqa: SIM905
_DICTS: Final = frozenset("dict Dict Mapping MutableMapping".split())  # noqa: SIM905
_TRANSPARENT: Final = frozenset({"Final", "Required", "NotRequired", "ReadOnly"})
_KIND_OF_BASE: Final[dict[str, Kind]] = {
    "Enum": "enum",
    "IntEnum": "enum",
    "StrEnum": "enum",
    "BaseModel": "model",
    "TypedDict": "typed_dict",
}
_JSON_NAME: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
_CONSTRAINTS: Final = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_LENGTHS: Final = {"min_length": ("minLength", "minItems"), "max_length": ("maxLength", "maxItems")}


class AnnotationSchema(msgspec.Struct, frozen=True):
    """`optional`: None is allowed. The schema is then that of the other values alone."""

    schema: Schema
    optional: bool = False

    @property
    def whole(self) -> Schema:
        return {"anyOf": [self.schema, {"type": "null"}]} if self.optional and self.schema else self.schema


class Annotations:
    """The annotations of one source."""

    def __init__(self, module: ast.Module) -> None:
        self._classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self._aliases = dict(_aliases(module))
        self._imported = dict(_imported(module))
        self._open: list[str] = []  # classes and aliases being expanded, outermost first

    def read(self, node: ast.expr, where: str) -> AnnotationSchema:
        match node:
            case ast.Constant(value=None):
                return AnnotationSchema({}, optional=True)
            case ast.Constant(value=str(text)):
                return self.read(_parsed(text, where), where)
            case ast.BinOp(op=ast.BitOr()):
                return self._union(_alternatives(node), where)
            case ast.Subscript():
                return self._subscript(node, where)
            case ast.Name(id=name):
                return self._name(name, where)
            case ast.Attribute(attr=name):
                return self._standard(name, node, where)
            case _:
                raise _unsupported(node, where)

    def _name(self, name: str, where: str) -> AnnotationSchema:
        if name in self._open:
            raise Invalid(f"The type of {where} refers to itself through {name!r}: a tool's schema must end somewhere.")
        if name in self._classes or name in self._aliases:
            self._open.append(name)
            try:
                known = self._classes.get(name)
                return self.read(self._aliases[name], where) if known is None else self._class(known, where)
            finally:
                self._open.pop()
        return self._standard(self._imported.get(name, name), ast.Name(name), where)

    def _standard(self, name: str, node: ast.expr, where: str) -> AnnotationSchema:
        if name in ("None", "NoneType"):
            return AnnotationSchema({}, optional=True)
        if name in _SIMPLE:
            return AnnotationSchema(dict(_SIMPLE[name]))
        if name in _LISTS or name in _SETS:
            return AnnotationSchema({"type": "array", "items": {"type": "string"}})
        if name in _DICTS:
            return AnnotationSchema({"type": "object"})
        raise _unsupported(node, where)

    def _subscript(self, node: ast.Subscript, where: str) -> AnnotationSchema:
        name = self._imported.get(_last_name(node.value), _last_name(node.value))
        arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Optional":
            return self._union([*arguments, ast.Constant(None)], where)
        if name == "Union":
            return self._union(arguments, where)
        if name == "Literal":
            return _literal(arguments, where)
        if name == "Annotated":
            return self._annotated(arguments, where)
        if name in _TRANSPARENT:
            return self.read(arguments[0], where)
        if name in ("tuple", "Tuple"):
            return self._tuple(arguments, where)
        if name in _LISTS:
            return AnnotationSchema({"type": "array", "items": self.read(arguments[0], where).whole})
        if name in _SETS:
            return AnnotationSchema(
                {"type": "array", "items": self.read(arguments[0], where).whole, "uniqueItems": True}
            )
        if name in _DICTS and len(arguments) == 2:
            return self._dict(arguments[0], arguments[1], where)
        raise _unsupported(node, where)

    def _union(self, nodes: Sequence[ast.expr], where: str) -> AnnotationSchema:
        meanings = [self.read(node, where) for node in nodes]
        optional = any(meaning.optional for meaning in meanings)
        kinds: list[Schema] = []
        for meaning in meanings:
            says_none = meaning.optional and not meaning.schema
            if not says_none and meaning.schema not in kinds:
                kinds.append(meaning.schema)
        if not all(kinds) or not kinds:  # Any swallows the rest
            return AnnotationSchema({}, optional)
        return AnnotationSchema(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}, optional)

    def _annotated(self, arguments: Sequence[ast.expr], where: str) -> AnnotationSchema:
        meaning = self.read(arguments[0], where)
        extras: Schema = {}
        for node in arguments[1:]:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                extras["description"] = node.value
            elif isinstance(node, ast.Call):
                extras |= _field_notes(node, meaning.schema)
        return AnnotationSchema(meaning.schema | extras, meaning.optional)

    def _tuple(self, arguments: Sequence[ast.expr], where: str) -> AnnotationSchema:
        """Vendors know no positions in an array, so a tuple's items are described by all its kinds together."""
        fixed = [node for node in arguments if not (isinstance(node, ast.Constant) and node.value is ...)]
        schema: Schema = {"type": "array", "items": self._union(fixed, where).whole}
        if len(fixed) == len(arguments):
            schema |= {"minItems": len(fixed), "maxItems": len(fixed)}
        return AnnotationSchema(schema)

    def _dict(self, key: ast.expr, value: ast.expr, where: str) -> AnnotationSchema:
        if self.read(key, where).schema.get("type") != "string":
            raise Invalid(f"The type of {where} has keys of type {ast.unparse(key)!r}: keys must be str, as in JSON.")
        schema: Schema = {"type": "object"}
        values = self.read(value, where).whole
        return AnnotationSchema(schema | {"additionalProperties": values} if values else schema)

    def _class(self, node: ast.ClassDef, where: str) -> AnnotationSchema:
        match self._kind(node):
            case "enum":
                return AnnotationSchema(_choices([_member(name, value, node) for name, value in _members(node)], where))
            case None:
                raise Invalid(
                    f"The type of {where} is the class {node.name!r}, which is no pydantic model, dataclass, TypedDict "
                    f"or Enum: make it one of these."
                )
            case kind:
                return AnnotationSchema(self._object(node, kind))

    def _kind(self, node: ast.ClassDef) -> Kind | None:
        if any(_last_name(decorator) == "dataclass" for decorator in node.decorator_list):
            return "dataclass"
        for base in node.bases:
            name, known = _last_name(base), self._base(node, base)
            kind = _KIND_OF_BASE.get(self._imported.get(name, name)) if known is None else self._kind(known)
            if kind is not None:
                return kind
        return None

    def _base(self, node: ast.ClassDef, base: ast.expr) -> ast.ClassDef | None:
        """Only what comes earlier in the source can be a base, which also rules out circles."""
        known = self._classes.get(_last_name(base))
        return known if known is not None and known.lineno < node.lineno else None

    def _object(self, node: ast.ClassDef, kind: Kind) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for field, note in self._fields(node, kind):
            where = f"field {field.name!r} of class {node.name!r}"
            schema = self.read(field.annotation, where).whole | field.notes
            properties[field.name] = schema | ({"description": note} if note and "description" not in schema else {})
            if field.required:
                required.append(field.name)
        described = {"description": text} if (text := read_docstring(node).short_description) else {}
        return {"type": "object", **described, "properties": properties, "required": required}

    def _fields(self, node: ast.ClassDef, kind: Kind) -> Iterator[tuple[_Field, str | None]]:
        """Inherited ones first; a field declared again takes the place of the inherited one."""
        found: dict[str, tuple[_Field, str | None]] = {}
        for base in node.bases:
            known = self._base(node, base)
            if known is not None:
                found |= {field.name: (field, note) for field, note in self._fields(known, kind)}
        notes = described_parameters(read_docstring(node))
        for field in _own_fields(node, kind):
            found[field.name] = (field, notes.get(field.name))
        return iter(found.values())


class _Field(msgspec.Struct, frozen=True):
    name: str
    annotation: ast.expr
    required: bool
    notes: Schema


def _own_fields(node: ast.ClassDef, kind: Kind) -> Iterator[_Field]:
    total = not any(
        word.arg == "total" and isinstance(word.value, ast.Constant) and word.value.value is False
        for word in node.keywords
    )
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_") and name != "model_config":
                marker = (
                    _last_name(statement.annotation.value) if isinstance(statement.annotation, ast.Subscript) else ""
                )
                if marker == "ClassVar":
                    continue
                call = statement.value if isinstance(statement.value, ast.Call) else None
                notes = _field_notes(call, {}) if call is not None else {}
                required = marker == "Required" or (marker != "NotRequired" and total)
                if kind != "typed_dict":
                    required = _has_no_default(statement.value)
                yield _Field(name, statement.annotation, required, notes)
            case _:
                continue


def _has_no_default(value: ast.expr | None) -> bool:
    """`Field(...)` and `Field(description="…")` have none; `Field(None)`, `Field(default=1)` and plain values do."""
    if value is None or (isinstance(value, ast.Constant) and value.value is ...):
        return True
    if isinstance(value, ast.Call) and _last_name(value.func) in ("Field", "field"):
        given = [word for word in value.keywords if word.arg in ("default", "default_factory", "factory")]
        return not given and (not value.args or _has_no_default(value.args[0]))
    return False


def _field_notes(call: ast.Call, schema: Schema) -> Schema:
    """What `Field(…)` says about a value: its description and its bounds."""
    notes: Schema = {}
    if _last_name(call.func) not in ("Field", "field"):
        return notes
    for word in call.keywords:
        value = _constant(word.value)
        if value is None or word.arg is None:
            continue
        if word.arg == "description":
            notes["description"] = str(value)
        elif word.arg in _CONSTRAINTS:
            notes[_CONSTRAINTS[word.arg]] = value
        elif word.arg in _LENGTHS and schema.get("type") in ("string", "array"):
            notes[_LENGTHS[word.arg][schema["type"] == "array"]] = value
    return notes


def _literal(nodes: Sequence[ast.expr], where: str) -> AnnotationSchema:
    values: list[Any] = []
    for node in nodes:
        try:
            values.append(ast.literal_eval(node))
        except ValueError as error:
            raise Invalid(
                f"The Literal of {where} may contain only plain values, not {ast.unparse(node)!r}."
            ) from error
    return AnnotationSchema(_choices([value for value in values if value is not None], where), optional=None in values)


def _choices(values: Sequence[Any], where: str) -> Schema:
    if not values or any(type(value) not in _JSON_NAME for value in values):
        raise Invalid(f"The choices of {where} must be strings, numbers or booleans, and there must be at least one.")
    names = {_JSON_NAME[type(value)] for value in values}
    return ({"type": names.pop()} if len(names) == 1 else {}) | {"enum": list(values)}


def _members(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if not name.startswith("_"):
                yield name, value
            case _:
                continue


def _member(name: str, value: ast.expr, node: ast.ClassDef) -> Any:
    """`auto()` gives lower-case names in a StrEnum and counts from 1 elsewhere."""
    if isinstance(value, ast.Call) and _last_name(value.func) == "auto":
        names = [member for member, _ in _members(node)]
        words = any(_last_name(base) == "StrEnum" for base in node.bases)
        return name.lower() if words else names.index(name) + 1
    return _constant(value)


def _aliases(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """`Colour = Literal["red"]`, and the same with `: TypeAlias`."""
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case _:
                continue


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that an import gives to something else: `from typing import Optional as Maybe`."""
    for statement in ast.walk(module):
        if isinstance(statement, ast.ImportFrom):
            yield from ((name.asname, name.name) for name in statement.names if name.asname)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    """`A | B | C` is a tree that leans to the left."""
    found: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        found.append(node.right)
        node = node.left
    return [node, *reversed(found)]


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
        case ast.Subscript(value=value):
            return _last_name(value)
        case _:
            return ""


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _parsed(text: str, where: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise Invalid(f"The type of {where} is not valid Python: {text!r}.") from error


def read_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> docstring_parser.Docstring:
    text = ast.get_docstring(node) or ""
    try:
        read = docstring_parser.parse(text)
    except docstring_parser.ParseError as error:
        raise Invalid(f"The docstring of {node.name!r} cannot be read: {error}.") from error
    lines = [line.strip() for line in text.splitlines()]
    for param in read.params:
        param.description = _as_written(param.description or "", lines)
    return read


def _as_written(description: str, lines: Sequence[str]) -> str:
    """With the blank lines after its first line, which the parser drops."""
    first, _, rest = description.partition("\n")
    for place, line in enumerate(lines):
        following = next((later for later in range(place + 1, len(lines)) if lines[later]), None)
        if first and following is not None and line.endswith(first) and rest.startswith(lines[following]):
            return "\n".join([first, *[""] * (following - place - 1), rest])
    return description


def described_parameters(docstring: docstring_parser.Docstring) -> dict[str, str]:
    return {param.arg_name: param.description for param in docstring.params if param.description}


def _unsupported(node: ast.expr, where: str) -> Invalid:
    return Invalid(
        f"The type {ast.unparse(node)!r} of {where} cannot be described to a model. Use str, int, float, bool, list, "
        f"dict, tuple, Optional, Union, Literal, datetime, or an Enum, pydantic model, dataclass or TypedDict that is "
        f"defined in the same source."
    )

"""SQLAlchemy Core statements, compiled once per dialect to SQL text and the order of its parameters.

A statement object kept as a module constant is looked up by identity. One that is built per call is found by its
shape (SQLAlchemy's own cache key), so that only the first of a shape pays for compiling; its literal values are
taken out of the statement, not out of the compiled text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, cast
from weakref import ref

import msgspec
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Insert,
    Integer,
    Table,
    Text,
    bindparam,
    insert,
)
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from holdfast.errors import BugError


class PerDialect(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """One statement that is built with each dialect's own `insert`. The dialect that is not used is not loaded."""

    build: Callable[[Callable[[Table], Any]], Executable]
    built: dict[str, Executable] = {}

    def for_dialect(self, dialect: str, insert: Callable[[Table], Any]) -> Executable:
        known = self.built.get(dialect)
        if known is None:
            known = self.built[dialect] = self.build(insert)
        return known


Statement = Executable | PerDialect


class in_array(FunctionElement[bool]):
    """`column` is one of a list given as a single parameter, so that the SQL text does not depend on its length."""

    type = Boolean()
    inherit_cache = True

    def __init__(self, column: ColumnElement[Any], values: str | Iterable[str] | Iterable[int]) -> None:
        """`values` is the name of the parameter that will carry the list, or the list."""
        kind = ARRAY(BigInteger() if isinstance(column.type, Integer) else Text())
        listed = bindparam(values, type_=kind) if isinstance(values, str) else bindparam(None, list(values), type_=kind)
        super().__init__(column, listed)

    def self_group(self, against: Any = None) -> Any:
        # Otherwise SQLAlchemy writes `… = 1` for SQLite, and SQLite then finds no index for it.
        return self


@compiles(in_array, "sqlite")
def _in_array_sqlite(element: in_array, compiler: SQLCompiler, **options: Any) -> str:
    column, listed = element.clauses
    return (
        f"{compiler.process(column, **options)} IN (SELECT value FROM json_each({compiler.process(listed, **options)}))"
    )


@compiles(in_array, "postgresql")
def _in_array_postgresql(element: in_array, compiler: SQLCompiler, **options: Any) -> str:
    column, listed = element.clauses
    return f"{compiler.process(column, **options)} = ANY({compiler.process(listed, **options)})"


class database_now_us(FunctionElement[int]):
    """Microseconds since the epoch by the database's clock, which is the only one that leases go by."""

    type = BigInteger()
    inherit_cache = True


@compiles(database_now_us, "sqlite")
def _now_sqlite(element: database_now_us, compiler: SQLCompiler, **options: Any) -> str:
    # To the millisecond, which is near enough for leases. A function of ours would be exact, but its call would make
    # the writer's thread wait for the interpreter in the middle of a statement.
    return "(CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER) * 1000)"


@compiles(database_now_us, "postgresql")
def _now_postgresql(element: database_now_us, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"


class byte_length(FunctionElement[int]):
    """How many bytes a text or a blob has."""

    type = BigInteger()
    inherit_cache = True


@compiles(byte_length, "sqlite")
def _byte_length_sqlite(element: byte_length, compiler: SQLCompiler, **options: Any) -> str:
    # `length` alone counts the characters of a text; `octet_length` is newer than the SQLite of some Pythons.
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


@compiles(byte_length, "postgresql")
def _byte_length_postgresql(element: byte_length, compiler: SQLCompiler, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


def insert_into(table: Table) -> Insert:
    """Insert the columns that the parameters name; `inline` because nobody reads a generated key back."""
    return insert(table).inline()


def insert_or_ignore(table: Table) -> PerDialect:
    """Insert the columns that the parameters name, unless any unique constraint objects: `execute` then returns 0."""
    return PerDialect(lambda insert: insert(table).inline().on_conflict_do_nothing())


def insert_or_update(
    table: Table, keys: Sequence[str], changed: Sequence[str], *, if_greater: str | None = None
) -> PerDialect:
    """Insert, or where `keys` are taken already, overwrite the `changed` columns; with `if_greater`, only if the new
    row has more in that column."""

    def build(insert: Callable[[Table], Any]) -> Executable:
        new = insert(table).inline()
        overwritten = {name: new.excluded[name] for name in changed}
        condition = None if if_greater is None else new.excluded[if_greater] > table.c[if_greater]
        return new.on_conflict_do_update(index_elements=keys, set_=overwritten, where=condition)

    return PerDialect(build)


class _Shape(msgspec.Struct, frozen=True, eq=False):
    compiled: SQLCompiler
    sql: str
    names: tuple[str, ...]
    required: frozenset[str]
    pick: Callable[[Mapping[str, Any]], Sequence[Any]] | None  # of a statement whose values all come with the call
    has_arrays: bool  # one of its parameters carries a list


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """One statement object, ready: the text, the order of its parameters and the values written into it."""

    shape: _Shape
    literals: Mapping[str, Any]

    def bind(self, parameters: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        shape = self.shape
        if shape.pick is not None:
            try:
                return shape.sql, shape.pick(parameters)
            except KeyError:
                pass  # told below which ones
        if not shape.required <= parameters.keys():
            missing = ", ".join(sorted(shape.required - parameters.keys()))
            raise BugError(f"A statement was run without its parameters {missing}: {shape.sql}")
        if shape.compiled.post_compile_params:
            return self._expanded(parameters)
        literals = self.literals
        return shape.sql, [parameters[name] if name in parameters else literals[name] for name in shape.names]

    def _expanded(self, parameters: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        # `column.in_([…])`: the text depends on how many values there are, so it is written out at every call.
        state = self.shape.compiled.construct_expanded_state({**self.literals, **parameters}, escape_names=False)
        return state.statement, [state.parameters[name] for name in state.positiontup or ()]


class _Known(msgspec.Struct, frozen=True, eq=False):
    alive: ref[Statement]  # held, so that it can tell when the statement is gone
    is_insert: bool  # the columns of an insert are those that the parameters name
    prepared: dict[tuple[str, ...], Prepared] = {}  # by these columns


class Compiler:
    """Compiles for one dialect and remembers. Safe in several threads: at worst a shape is compiled twice."""

    MAX_SHAPES: Final = 2_000

    def __init__(self, dialect: Dialect, insert: Callable[[Table], Any]) -> None:
        """`insert` is the dialect's own, which knows about conflicts."""
        self.dialect = dialect
        self._insert = insert
        self._known: dict[int, _Known] = {}  # by the identity of the statement
        self._by_shape: dict[Any, _Shape] = {}

    def prepare(self, statement: Statement, parameters: Mapping[str, Any]) -> Prepared:
        known = self._known.get(id(statement))
        if known is None:
            known = self._remember(statement)
        columns = tuple(parameters) if known.is_insert else ()
        found = known.prepared.get(columns)
        if found is None:
            found = known.prepared[columns] = self._prepare(self._for_dialect(statement), columns)
        return found

    def _remember(self, statement: Statement) -> _Known:
        """While the statement lives: afterwards another may have its number."""
        number, all_known = id(statement), self._known

        def forget(_: object) -> None:
            all_known.pop(number, None)

        known = all_known[number] = _Known(ref(statement, forget), isinstance(self._for_dialect(statement), Insert))
        return known

    def _for_dialect(self, statement: Statement) -> Executable:
        if isinstance(statement, PerDialect):
            return statement.for_dialect(self.dialect.name, self._insert)
        return statement

    def _prepare(self, statement: Executable, columns: tuple[str, ...]) -> Prepared:
        key = cast("Any", statement)._generate_cache_key()
        if key is None:
            shape = self._compile(statement, None, columns)
            return Prepared(shape, shape.compiled.construct_params(_check=False))
        shape = self._by_shape.get((key.key, columns))
        if shape is None:
            if len(self._by_shape) >= self.MAX_SHAPES:
                self._by_shape.clear()
            shape = self._by_shape[(key.key, columns)] = self._compile(statement, key, columns)
        literals = shape.compiled.construct_params(extracted_parameters=key.bindparams, _check=False)
        return Prepared(shape, literals)

    def _compile(self, statement: Any, key: Any, columns: tuple[str, ...]) -> _Shape:
        options: dict[str, Any] = {}
        if isinstance(statement, Insert) and columns:
            options["column_keys"] = [name for name in columns if name in statement.table.columns]
        compiled: SQLCompiler = statement.compile(dialect=self.dialect, cache_key=key, **options)
        required = frozenset(name for bind, name in compiled.bind_names.items() if bind.required)
        names = tuple(compiled.positiontup or ())
        all_given = required.issuperset(names) and not compiled.post_compile_params
        pick = _picker(names) if all_given else None
        has_arrays = any(isinstance(bind.type, ARRAY) for bind in compiled.bind_names)
        return _Shape(compiled, compiled.string, names, required, pick, has_arrays)


def _picker(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """The values of these names, in this order."""
    if len(names) > 1:
        return itemgetter(*names)  # which gives a tuple only of two or more
    return lambda parameters: [parameters[name] for name in names]

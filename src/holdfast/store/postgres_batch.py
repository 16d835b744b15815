"""Writes that nobody reads the outcome of, joined into one statement: `WITH` all but the last. One round trip for all.

PostgreSQL runs the parts of such a statement in no particular order and on one view of the data. So no part may read
what another one writes, nor change the same row: a table occurs twice only if both parts plainly insert. Foreign keys
are checked at its end, when all rows are there.

Of a part that must affect one row, the joined statement tells how many it has affected.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

_PLACEHOLDER: Final = re.compile(r"\$(\d+)")
_INSERT: Final = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )(\([$\w:, ]+\))( ON CONFLICT DO NOTHING)?")
_TABLE: Final = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)")
_MOST_ROWS: Final = 8  # of one statement; many rows are sent more cheaply by the driver, which streams them
_MOST_VALUES: Final = 1_000  # of all; PostgreSQL takes 65,535


class Part(NamedTuple):
    sql: str  # for one row
    rows: int = 1
    counted: bool = False


class Batch:
    """The text of each write with its rows, in the order in which they came."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._values: list[Any] = []
        self._plain: dict[str, bool] = {}  # of each table, whether it is only inserted into

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, sql: str, rows: list[list[Any]], *, counted: bool = False) -> bool:
        """False when it is to be sent by itself: many rows, several that are not plainly inserted, or rows that another
        part may change too."""
        plain, table = _INSERT.fullmatch(sql) is not None, _table_of(sql)
        if len(rows) > 1 and (len(rows) > _MOST_ROWS or not plain):
            return False
        if len(self._values) + len(rows) * len(rows[0]) > _MOST_VALUES:
            return False
        if table is None or (table in self._plain and not (plain and self._plain[table])):
            return False
        self._plain[table] = plain
        self._parts.append(Part(sql, len(rows), counted))
        for row in rows:
            self._values += row
        return True

    def take(self) -> tuple[str, list[Any]]:
        """The joined statement, and its values. It returns a row of counts if there is anything to count. The batch is
        empty then."""
        sql, values = joined(tuple(self._parts)), self._values
        self._parts, self._values, self._plain = [], [], {}
        return sql, values


@lru_cache(maxsize=1_000)
def _table_of(sql: str) -> str | None:
    found = _TABLE.match(sql)
    return None if found is None else found[1]


@lru_cache(maxsize=1_000)
def joined(parts: tuple[Part, ...]) -> str:
    texts: list[str] = []
    used = 0
    for sql, rows, counted in parts:
        insert = _INSERT.fullmatch(sql) if rows > 1 else None
        before, row, after = insert.groups("") if insert else ("", sql, "")
        width = len(set(_PLACEHOLDER.findall(row)))
        text = before + ", ".join(_shifted(row, used + number * width) for number in range(rows)) + after
        texts.append(f"{text} RETURNING 1" if counted else text)
        used += rows * width
    counts = [f"(SELECT count(*) FROM part_{number})" for number, part in enumerate(parts) if part.counted]
    last = f"SELECT {', '.join(counts)}" if counts else texts.pop()
    named = ", ".join(f"part_{number} AS ({text})" for number, text in enumerate(texts))
    return f"WITH {named} {last}" if named else last


def _shifted(text: str, by: int) -> str:
    return _PLACEHOLDER.sub(lambda found: f"${int(found[1]) + by}", text)

"""How much a request may hold. Each list and each object of a request has a maximum, which tests/architecture checks.

The numbers are far above what agents need, and low enough that no request keeps the server busy for long. Free text has
no maximum of its own: the largest body that the server accepts bounds it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from holdfast.core.records import LONGEST_NAME, MOST_TAGS

T = TypeVar("T")

MAX_ITEMS: Final = MOST_TAGS
MAX_KEYS: Final = 10_000
MAX_PARTS: Final = 10_000  # of content, in all the messages of a request
MAX_SOURCE: Final = 200_000  # characters of a tool's source code, which is parsed
MAX_LINES: Final = 100_000
MAX_NAME: Final = LONGEST_NAME
MAX_NAME_BYTES: Final = 4 * MAX_NAME  # of a name that a column with an index holds; PostgreSQL takes 2,704
MAX_QUERY: Final = 5_000  # of a text to search for: SQLite takes patterns of 50,000 bytes, and escapes count

# `fail_fast`: a list of a thousand mistakes is refused for the first, and costs no thousand explanations.
Many = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
Lines = Annotated[list[str], Field(max_length=MAX_LINES, fail_fast=True)]
JsonObject = Annotated[dict[str, Any], Field(max_length=MAX_KEYS)]
Id = Annotated[str, Field(max_length=256)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Handle = Annotated[str, Field(max_length=1_024)]
Source = Annotated[str, Field(max_length=MAX_SOURCE)]
SearchText = Annotated[str, Field(max_length=MAX_QUERY)]

"""`store_memories` and `search_memory`: an agent stores parts of a transcript, and another one searches them.

Their companions, `rethink_user_memory` and `finish_rethinking_memory`, are memory tools: see `core.memory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.core.arguments import converted
from holdfast.errors import ToolFailed

STORE: Final = "store_memories"
SEARCH: Final = "search_memory"
RESULTS: Final = 5  # of each keyword, and of archival memory
_MOST_KEYWORDS: Final = 10
_LONGEST_KEYWORD: Final = 1_000
_MINUTE_US: Final = 60_000_000
_LONGEST_MINUTES: Final = 60 * 24 * 366 * 1_000


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    start_index: int
    end_index: int
    context: str


class StoreArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    chunks: list[Chunk]


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    convo_keyword_queries: list[str] | None = None
    start_minutes_ago: int | None = None
    end_minutes_ago: int | None = None


class MemoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`keywords`: any of them is to be found."""

    keywords: tuple[str, ...]
    start_us: int | None
    end_us: int | None


def parse_memories(arguments: Mapping[str, Any], transcript: str) -> list[str]:
    """The lines of each chunk, under what the agent says of them."""
    chunks = converted(arguments, StoreArguments).chunks
    if not chunks:
        raise ToolFailed("chunks is empty: name at least one piece of the conversation.")
    lines = transcript.splitlines()
    for chunk in chunks:
        if not 0 <= chunk.start_index <= chunk.end_index < len(lines):
            raise ToolFailed(
                f"There are no lines {chunk.start_index} to {chunk.end_index}: the message that you were given last "
                f"has {len(lines)} lines, the first of which is line 0."
            )
    return ["\n".join((chunk.context, "", *lines[chunk.start_index : chunk.end_index + 1])) for chunk in chunks]


def parse_search(arguments: Mapping[str, Any], now_us: int) -> MemoryQuery:
    given = converted(arguments, SearchArguments)
    keywords = tuple(dict.fromkeys(word.strip() for word in given.convo_keyword_queries or () if word.strip()))
    if len(keywords) > _MOST_KEYWORDS or any(len(word) > _LONGEST_KEYWORD for word in keywords):
        raise ToolFailed(
            f"convo_keyword_queries may hold {_MOST_KEYWORDS} texts of {_LONGEST_KEYWORD} characters at most."
        )
    newer, older = given.start_minutes_ago, given.end_minutes_ago
    for name, minutes in (("start_minutes_ago", newer), ("end_minutes_ago", older)):
        if minutes is not None and not 0 <= minutes <= _LONGEST_MINUTES:
            raise ToolFailed(f"{name} must be from 0 to {_LONGEST_MINUTES}, not {minutes}.")
    if newer is not None and older is not None and newer > older:
        newer, older = older, newer  # which of them is the start is easily mistaken, and the window is the same
    return MemoryQuery(
        keywords=keywords,
        start_us=None if older is None else now_us - older * _MINUTE_US,
        end_us=None if newer is None else now_us - newer * _MINUTE_US,
    )

"""`archival_memory_insert` and `archival_memory_search`: what models may ask, and what they are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec

from holdfast.core.arguments import converted
from holdfast.core.dates import EPOCH, zone
from holdfast.core.records import LONGEST_NAME, MOST_TAGS, Passage
from holdfast.errors import ToolFailed
from holdfast.tools.history import moment_us

INSERT: Final = "archival_memory_insert"
SEARCH: Final = "archival_memory_search"
DEFAULT_RESULTS: Final = 5
MOST_RESULTS: Final = 100
LONGEST_QUERY: Final = 5_000


class Insertion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    tags: list[str] | None = None


class _SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    tags: list[str] | None = None
    tag_match_mode: Literal["any", "all"] | None = None
    top_k: int | None = None
    start_datetime: str | None = None
    end_datetime: str | None = None


class PassageQuery(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    tags: tuple[str, ...]
    match_all_tags: bool
    limit: int
    start_us: int | None
    end_us: int | None


class FoundPassage(msgspec.Struct, frozen=True):
    id: str
    timestamp: str
    content: str
    tags: list[str]


def parse_insertion(arguments: Mapping[str, Any]) -> Insertion:
    given = converted(arguments, Insertion)
    _check_tags(given.tags)
    return given


def parse_search(arguments: Mapping[str, Any], timezone: str) -> PassageQuery:
    given = converted(arguments, _SearchArguments)
    if len(given.query) > LONGEST_QUERY:
        raise ToolFailed(f"query has {len(given.query)} characters; search for at most {LONGEST_QUERY}.")
    _check_tags(given.tags)
    if given.top_k is not None and given.top_k < 0:
        raise ToolFailed(f"top_k must be at least 1, not {given.top_k}.")
    return PassageQuery(
        query=given.query,
        tags=tuple(given.tags or ()),
        match_all_tags=given.tag_match_mode == "all",
        limit=min(given.top_k or DEFAULT_RESULTS, MOST_RESULTS),
        start_us=moment_us("start_datetime", given.start_datetime, timezone, "first"),
        end_us=moment_us("end_datetime", given.end_datetime, timezone, "last"),
    )


def search_results(passages: Sequence[Passage], timezone: str) -> list[FoundPassage]:
    return [
        FoundPassage(passage.id, _timestamp(passage.created_us, timezone), passage.text, list(passage.tags))
        for passage in passages
    ]


def results_text(passages: Sequence[Passage], timezone: str) -> str:
    """As Python writes a list: what models have always been shown."""
    return repr([msgspec.structs.asdict(one) for one in search_results(passages, timezone)])


def _check_tags(tags: Sequence[str] | None) -> None:
    """As requests are held to: a longer tag has no room in PostgreSQL's index."""
    if tags is None:
        return
    if len(tags) > MOST_TAGS:
        raise ToolFailed(f"tags holds {len(tags)} tags; give at most {MOST_TAGS}.")
    longest = max(map(len, tags), default=0)
    if longest > LONGEST_NAME:
        raise ToolFailed(f"A tag has {longest} characters; a tag may have {LONGEST_NAME}.")
    if "" in tags:
        raise ToolFailed("A tag is empty: give each tag at least one character.")


def _timestamp(at_us: int, timezone: str) -> str:
    moment = EPOCH + timedelta(microseconds=at_us)
    try:
        return moment.astimezone(zone(timezone)).isoformat()
    except OverflowError:  # in that zone it is not within the years 1 to 9999
        return moment.isoformat()

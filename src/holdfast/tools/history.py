"""`conversation_search`: what an agent may look up of its own past, in every thread it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from holdfast.core.dates import moments, zone
from holdfast.core.messages import Message, Thoughts, content_text, text_of
from holdfast.core.spec import Speaking, only_confirms_speech, spoken_text
from holdfast.errors import ToolFailed
from holdfast.tools import voice

_SPEAKING: Final = Speaking()
NAME: Final = "conversation_search"
# A reply that waited for an approval is the assistant's all the same.
_STORED: Final = {"assistant": ("assistant", "approval"), "user": ("user",), "tool": ("tool",)}
SPOKEN: Final = (*_STORED["assistant"], *_STORED["user"])
_SEARCHES: Final = frozenset({NAME, voice.SEARCH})  # their rows are not searched
_MOST: Final = 100
_DAY_OR_MOMENT: Final = "Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)"
_LONGEST: Final = 5_000  # of a text to search for: SQLite takes patterns of 50,000 bytes, and escapes count


class Query(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None
    roles: tuple[str, ...]  # of stored rows
    start_us: int | None
    end_us: int | None


class Search(Protocol):
    async def __call__(self, query: Query, limit: int, /) -> Sequence[Message]:
        """Newest first."""
        ...


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str | None = None
    roles: tuple[Literal["assistant", "user", "tool"], ...] | None = None
    limit: int | None = None
    start_date: str | None = None
    end_date: str | None = None


async def conversation_search(arguments: Mapping[str, Any], search: Search, *, timezone: str, now_us: int) -> str:
    """Earlier searches and their results are left out before `limit` is applied: they hold every text that was ever
    searched for, and would crowd out what is looked for."""
    try:
        given = msgspec.convert(dict(arguments), SearchArguments, strict=False)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"The arguments do not fit the tool: {error}") from error
    limit = 5 if given.limit is None else given.limit
    if limit < 1:
        raise ToolFailed(f"limit must be at least 1, not {limit}.")
    if len(given.query or "") > _LONGEST:
        raise ToolFailed(f"query has {len(given.query or '')} characters; search for at most {_LONGEST}.")
    query = _query(given, timezone)
    results = search_results(await newest_visible(min(limit, _MOST), query, search), timezone, now_us)
    heading = f"Showing {len(results)} results:" if results else "No results found."
    return repr({"message": heading, "results": results})  # what models have always been shown


def search_results(found: Sequence[tuple[Message, str]], timezone: str, now_us: int) -> list[dict[str, Any]]:
    return [_result(row, content, timezone, now_us) for row, content in found]


async def newest_visible(limit: int, query: Query, search: Search) -> list[tuple[Message, str]]:
    """The newest that may be shown, and what is shown of them."""
    fetched = limit
    while True:
        rows = await search(query, fetched)
        visible = [(row, content) for row in rows if (content := _content(row, query.text or ""))]
        if len(visible) >= limit or len(rows) < fetched:
            return visible[:limit]
        fetched *= 4


def _query(given: SearchArguments, timezone: str) -> Query:
    roles = set(given.roles or ("assistant", "user"))
    return Query(
        text=given.query or None,
        roles=tuple(role for name, rows in _STORED.items() if name in roles for role in rows),
        start_us=moment_us("start_date", given.start_date, timezone, "first"),
        end_us=moment_us("end_date", given.end_date, timezone, "last"),
    )


def _content(row: Message, text: str) -> str | None:
    """What to show of a row, or None when it is not to be shown."""
    if any(call.name in _SEARCHES for call in row.calls) or _spread(row).get("type") == "heartbeat":
        return None
    words = [spoken_text(call, _SPEAKING) or "" for call in row.calls]
    returns = [
        answer for answer in row.returns if answer.name not in _SEARCHES and not only_confirms_speech(answer, _SPEAKING)
    ]
    texts = (text_of(row.parts), *words, *(content_text(a.content) for a in returns))
    content = "\n".join(part for part in texts if part) or _thoughts(row)
    return content if content and text.lower() in content.lower() else None


def _result(row: Message, content: str, timezone: str, now_us: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "timestamp": _timestamp(row.created_us, timezone),
        "time_ago": _time_ago(now_us - row.created_us),
        "role": _speaker(row),
        "relevance": {"search_mode": "sql"},
    }
    if spread := _spread(row):
        return {**found, **{name: value for name, value in spread.items() if name not in found}}
    if (thoughts := _thoughts(row)) and thoughts != content:
        found["thinking"] = thoughts
    return {**found, "content": content}


def _spread(row: Message) -> dict[str, Any]:
    """Messages that the server writes for the model, such as a login notice, are JSON objects. Their members are shown
    in place of the content."""
    text = text_of(row.parts)
    if row.role != "user" or not text.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _thoughts(row: Message) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, Thoughts))


def _speaker(row: Message) -> str:
    return "assistant" if row.role == "approval" else row.role


def _timestamp(at_us: int, timezone: str) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, zone(timezone)).isoformat()


def _time_ago(elapsed_us: int) -> str:
    seconds = max(0, elapsed_us // 1_000_000)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def moment_us(name: str, text: str | None, timezone: str, end: Literal["first", "last"]) -> int | None:
    """The first or the last moment that an argument means: a day has both. None when nothing was said."""
    if not text:
        return None
    try:
        first, last = moments(text, timezone)
    except ValueError as error:
        raise ToolFailed(f"Invalid {name} format: {text}. {_DAY_OR_MOMENT}") from error
    return first if end == "first" else last

"""`open_files`, `grep_files` and `semantic_search_files`: what models may ask of files, and what they are told.

Where the files come from, how they are searched and which of them an agent sees is for `Files` to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from holdfast.core.arguments import converted
from holdfast.errors import ToolFailed

OPEN: Final = "open_files"
GREP: Final = "grep_files"
SEARCH: Final = "semantic_search_files"
NAMES: Final = (OPEN, GREP, SEARCH)
NO_FILES: Final = "No files are currently attached to search"
_RULE: Final = "=" * 80
_PAGE: Final = 20  # matches that are shown at once
_LONGEST_PATTERN: Final = 1_000
_MOST_CONTEXT: Final = 50
_RESULTS, _MOST_RESULTS = 5, 50


class File(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # <folder>/<file>
    lines: int
    shown: tuple[int, int] | None = None  # the first and the last line that the agent sees, from 1; None: all or none


class View(msgspec.Struct, frozen=True):
    """What an agent is to see of a file: so many lines from this one on, counted from 0."""

    name: str
    offset: int
    length: int


class Match(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    line: int  # from 1
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class FilePassage(msgspec.Struct, frozen=True):
    name: str
    text: str


class Files(Protocol):
    """The files of an agent."""

    async def attached(self, agent_id: str, /) -> Sequence[File]: ...

    async def show(self, agent_id: str, views: Sequence[View], /, *, only: bool) -> Sequence[str]:
        """Opens them, or more or less of them. `only`: all others are closed. The names of those that were closed.
        ToolFailed if so many cannot be open at once."""
        ...

    async def grep(self, agent_id: str, pattern: str, include: str | None, context: int, /) -> Sequence[Match]:
        """In the order of files and lines. ToolFailed for what is no regular expression."""
        ...

    async def nearest(self, agent_id: str, query: str, limit: int, /) -> Sequence[FilePassage]:
        """Best first."""
        ...


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_name: str
    offset: int | None = None
    length: int | None = None


class OpenArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file_requests: list[Request]
    close_all_others: bool | None = None


class GrepArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    include: str | None = None
    context_lines: int | None = None
    offset: int | None = None


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    limit: int | None = None


async def run_file_tool(name: str, arguments: Mapping[str, Any], files: Files, agent_id: str) -> str:
    if name == OPEN:
        return await _open(converted(arguments, OpenArguments), files, agent_id)
    if name == GREP:
        return await _grep(converted(arguments, GrepArguments), files, agent_id)
    return await _search(converted(arguments, SearchArguments), files, agent_id)


async def _open(given: OpenArguments, files: Files, agent_id: str) -> str:
    if not given.file_requests:
        raise ToolFailed("No file requests provided")
    known = {file.name: file for file in await files.attached(agent_id)}
    views = [_view(request, known) for request in given.file_requests]
    closed = await files.show(agent_id, views, only=bool(given.close_all_others))
    lines = [_opened(view, known[view.name]) for view in views]
    if closed:
        why = "as asked" if given.close_all_others else "to make room: too many files were open"
        lines.append(f"* Closed {', '.join(closed)} ({why})")
    return "\n".join(lines)


def _view(request: Request, known: Mapping[str, File]) -> View:
    file = known.get(request.file_name)
    if file is None:
        raise ToolFailed(
            f"{request.file_name} not attached - did you get the filename correct? Currently you have the following "
            f"files attached: {list(known)}"
        )
    offset = request.offset or 0
    if offset < 0 or (offset and offset >= file.lines):
        raise ToolFailed(
            f"File {file.name} has only {file.lines} lines, but requested offset {offset + 1} is out of range"
        )
    if request.length is not None and request.length < 1:
        raise ToolFailed(f"length must be at least 1, not {request.length}.")
    left = file.lines - offset
    return View(file.name, offset, left if request.length is None else min(request.length, left))


def _opened(view: View, file: File) -> str:
    is_whole = view.length >= file.lines
    notes = [] if is_whole else [f"lines {view.offset + 1}-{view.offset + view.length}"]
    notes += [f"previously lines {file.shown[0]}-{file.shown[1]}"] if file.shown else []
    return f"* Opened {file.name}" + (f" ({', '.join(notes)})" if notes else "")


async def _grep(given: GrepArguments, files: Files, agent_id: str) -> str:
    offset, context = given.offset or 0, 1 if given.context_lines is None else given.context_lines
    if not given.pattern or len(given.pattern) > _LONGEST_PATTERN:
        raise ToolFailed(f"pattern must have from 1 to {_LONGEST_PATTERN} characters, not {len(given.pattern)}.")
    if offset < 0:
        raise ToolFailed(f"offset must be at least 0, not {offset}.")
    if not 0 <= context <= _MOST_CONTEXT:
        raise ToolFailed(f"context_lines must be from 0 to {_MOST_CONTEXT}, not {context}.")
    if not await files.attached(agent_id):
        return NO_FILES
    found = await files.grep(agent_id, given.pattern, given.include, context)
    return _matches(given.pattern, found, offset)


def _matches(pattern: str, found: Sequence[Match], offset: int) -> str:
    if not found:
        return f"No matches found for pattern: '{pattern}'"
    page = found[offset : offset + _PAGE]
    if not page:
        raise ToolFailed(f"offset {offset} is out of range: there are {len(found)} matches.")
    counts: dict[str, int] = {}
    for match in found:
        counts[match.name] = counts.get(match.name, 0) + 1
    end = offset + len(page)
    lines = [
        f"Found {len(found)} total matches across {len(counts)} files "
        f"(showing matches {offset + 1}-{end} of {len(found)})",
        _RULE,
        "Files with matches:",
        *(f"  - {name} ({count} matches)" for name, count in counts.items()),
        "",
    ]
    for match in page:
        lines += [*_match(match), ""]
    more = f"To see more matches, call {GREP} again with offset={end}."
    return "\n".join([*lines, "No more matches to show." if end == len(found) else more])


def _match(match: Match) -> list[str]:
    first = match.line - len(match.before)
    around = [(first + at, text) for at, text in enumerate((*match.before, match.text, *match.after))]
    marked = [f"{'>' if number == match.line else ' '} {number}: {text}" for number, text in around]
    return [f"=== {match.name}:{match.line} ===", *marked]


async def _search(given: SearchArguments, files: Files, agent_id: str) -> str:
    limit = _RESULTS if given.limit is None else given.limit
    if limit < 1:
        raise ToolFailed(f"limit must be at least 1, not {limit}.")
    found = await files.nearest(agent_id, given.query, min(limit, _MOST_RESULTS))
    if not found:
        return f"No semantic matches found for query: '{given.query}'"
    by_name: dict[str, list[str]] = {}
    for piece in found:
        by_name.setdefault(piece.name, []).append(piece.text)
    where = f"{len(by_name)} file" + ("" if len(by_name) == 1 else "s")
    lines = [f"Found {len(found)} semantic matches in {where} for query: '{given.query}'", _RULE]
    for name, texts in by_name.items():
        for number, text in enumerate(texts, start=1):
            indented = ["  " + line for line in text.splitlines()]
            lines += ["", f"=== {name} (passage #{number}) ===", *indented]
    return "\n".join(lines)

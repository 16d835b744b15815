"""What models are told of files, where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import ToolFailed
from holdfast.tools import files
from holdfast.tools.files import File, FilePassage, Match, View


class Folder:
    """Files as they are given, and what was asked of them."""

    def __init__(self, *attached: File, matches: Sequence[Match] = (), pieces: Sequence[FilePassage] = ()) -> None:
        self._attached = attached
        self._matches = matches
        self._pieces = pieces
        self.shown: list[tuple[list[View], bool]] = []
        self.asked: list[Any] = []
        self.closed: list[str] = []

    async def attached(self, agent_id: str, /) -> Sequence[File]:
        return self._attached

    async def show(self, agent_id: str, views: Sequence[View], /, *, only: bool) -> Sequence[str]:
        self.shown.append((list(views), only))
        return self.closed

    async def grep(self, agent_id: str, pattern: str, include: str | None, context: int, /) -> Sequence[Match]:
        self.asked.append((pattern, include, context))
        return self._matches

    async def nearest(self, agent_id: str, query: str, limit: int, /) -> Sequence[FilePassage]:
        self.asked.append((query, limit))
        return self._pieces


ZOO = File(name="docs/zoo.txt", lines=11)


async def call(name: str, folder: Folder, **arguments: Any) -> str:
    return await files.run_file_tool(name, arguments, folder, "agent-1")


async def opened(folder: Folder, *requests: dict[str, Any], **more: Any) -> str:
    return await call("open_files", folder, file_requests=list(requests), **more)


async def test_a_file_is_opened_whole_or_in_part() -> None:
    folder = Folder(ZOO, File(name="docs/b.txt", lines=3, shown=(2, 4)))
    part = {"file_name": "docs/zoo.txt", "offset": 1, "length": 3}
    assert await opened(folder, part) == "* Opened docs/zoo.txt (lines 2-4)"
    assert await opened(folder, {"file_name": "docs/b.txt"}) == "* Opened docs/b.txt (previously lines 2-4)"
    both = await opened(folder, part | {"length": 99}, {"file_name": "docs/b.txt"}, close_all_others=True)
    assert both == "* Opened docs/zoo.txt (lines 2-11)\n* Opened docs/b.txt (previously lines 2-4)"
    assert folder.shown == [
        ([View("docs/zoo.txt", 1, 3)], False),
        ([View("docs/b.txt", 0, 3)], False),
        ([View("docs/zoo.txt", 1, 10), View("docs/b.txt", 0, 3)], True),
    ]


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"file_name": "zoo.txt"}, r"zoo.txt not attached .* attached: \['docs/zoo.txt'\]"),
        ({"offset": 100}, "File docs/zoo.txt has only 11 lines, but requested offset 101 is out of range"),
        ({"offset": -1}, "out of range"),
        ({"length": 0}, "length must be at least 1"),
    ],
)
async def test_what_cannot_be_opened_is_said_and_nothing_is_opened(request_: dict[str, Any], why: str) -> None:
    folder = Folder(ZOO)
    with pytest.raises(ToolFailed, match=why):
        await opened(folder, {"file_name": "docs/zoo.txt"}, {"file_name": "docs/zoo.txt"} | request_)
    assert folder.shown == []


async def test_matches_are_shown_with_what_is_around_them() -> None:
    match = Match(name="docs/zoo.txt", line=3, text="lion", before=("cat",), after=("tiger",))
    folder = Folder(ZOO, matches=[match])
    assert (await call("grep_files", folder, pattern="li", include="docs")).splitlines() == [
        "Found 1 total matches across 1 files (showing matches 1-1 of 1)",
        "=" * 80,
        "Files with matches:",
        "  - docs/zoo.txt (1 matches)",
        "",
        "=== docs/zoo.txt:3 ===",
        "  2: cat",
        "> 3: lion",
        "  4: tiger",
        "",
        "No more matches to show.",
    ]
    assert folder.asked == [("li", "docs", 1)]


async def test_matches_come_in_pages() -> None:
    folder = Folder(ZOO, matches=[Match(name="a", line=line, text="x") for line in range(1, 26)])
    first = await call("grep_files", folder, pattern="x", context_lines=0)
    assert "(showing matches 1-20 of 25)" in first
    assert "offset=20" in first
    second = await call("grep_files", folder, pattern="x", offset=20)
    assert "(showing matches 21-25 of 25)" in second
    assert second.endswith("No more matches to show.")
    with pytest.raises(ToolFailed, match="offset 25 is out of range"):
        await call("grep_files", folder, pattern="x", offset=25)
    with pytest.raises(ToolFailed, match="context_lines must be from 0 to 50"):
        await call("grep_files", folder, pattern="x", context_lines=51)
    assert await call("grep_files", Folder(ZOO), pattern="x") == "No matches found for pattern: 'x'"


async def test_passages_are_shown_by_file() -> None:
    folder = Folder(ZOO, pieces=[FilePassage("a", "one\ntwo"), FilePassage("b", "three"), FilePassage("a", "four")])
    assert (await call("semantic_search_files", folder, query="q", limit=99)).splitlines() == [
        "Found 3 semantic matches in 2 files for query: 'q'",
        "=" * 80,
        "",
        "=== a (passage #1) ===",
        "  one",
        "  two",
        "",
        "=== a (passage #2) ===",
        "  four",
        "",
        "=== b (passage #1) ===",
        "  three",
    ]
    assert folder.asked == [("q", 50)]
    single = await call("semantic_search_files", Folder(pieces=[FilePassage("a", "one")]), query="q")
    assert single.startswith("Found 1 semantic matches in 1 file for query: 'q'")


async def test_files_that_were_closed_are_named() -> None:
    folder = Folder(ZOO)
    folder.closed = ["docs/a.txt", "docs/b.txt"]
    told = await opened(folder, {"file_name": "docs/zoo.txt"})
    assert told.splitlines()[1] == "* Closed docs/a.txt, docs/b.txt (to make room: too many files were open)"
    told = await opened(folder, {"file_name": "docs/zoo.txt"}, close_all_others=True)
    assert told.splitlines()[1] == "* Closed docs/a.txt, docs/b.txt (as asked)"

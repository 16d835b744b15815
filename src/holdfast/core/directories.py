"""The section of the system prompt that shows an agent its folders: which files are in them, and what is open of each.

Files that were opened are shown from their first wanted line on, up to a number of characters. The same state gives the
same bytes (see `system_prompt`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core.records import Agent, FileStatus, Folder
from holdfast.core.system_prompt import attribute, escape

# (context window up to, files open, characters of each): what an agent gets that sets neither.
_LIMITS: Final = ((8_000, 3, 5_000), (32_000, 5, 15_000), (128_000, 10, 25_000), (200_000, 10, 40_000))
_LIMITS_BEYOND: Final = (15, 40_000)
MOST_LISTED: Final = 1_000  # files of an agent; a list of more would fill the window


class FileLimits(msgspec.Struct, frozen=True):
    most_open: int
    characters: int  # that are shown of each


class ShownFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # within its folder
    status: FileStatus
    error: str | None
    lines: int
    is_open: bool
    first_line: int = 1
    last_line: int | None = None  # that is wanted; None: the last of the file
    text: str = ""  # from the first line on, at least as many characters as are shown, or all there are


class Directory(msgspec.Struct, frozen=True):
    folder: Folder
    files: Sequence[ShownFile]  # in the order of their names
    more: int = 0  # files that are not among them


def file_limits(agent: Agent) -> FileLimits:
    window = agent.model.context_window
    files, characters = next(
        ((files, characters) for size, files, characters in _LIMITS if window <= size), _LIMITS_BEYOND
    )
    return FileLimits(
        files if agent.max_files_open is None else agent.max_files_open,
        characters if agent.per_file_view_window_char_limit is None else agent.per_file_view_window_char_limit,
    )


def visible_text(file: ShownFile, limit: int) -> str:
    """Numbered lines, with what is left out said before or after them."""
    if file.status == "error" and not file.text:
        return f"[This file could not be read: {file.error}]"
    if file.status in ("pending", "parsing"):
        return "[This file is still being read; look again later]"
    last = file.lines if file.last_line is None else min(file.last_line, file.lines)
    wanted = file.text.split("\n")[: last - file.first_line + 1]
    whole = "\n".join(f"{number}: {line}" for number, line in enumerate(wanted, start=file.first_line))
    is_part = file.first_line > 1 or last < file.lines
    place = f"lines {file.first_line} to {last}" if is_part else "file start"
    head = f"[Viewing {place} (out of {file.lines} lines)]"
    if len(whole) <= limit:
        return f"{head}\n{whole}"
    cut = whole[:limit]
    shown_to = file.first_line + cut.count("\n")
    note = f"[Cut after {limit} characters, in line {shown_to}: open the file with an offset to see what follows]"
    return "\n".join([head, cut, note])


def directories_section(directories: Sequence[Directory], limits: FileLimits) -> str:
    """Empty when no folder is attached."""
    if not directories:
        return ""
    open_now = sum(file.is_open for directory in directories for file in directory.files)
    lines = [
        "<directories>",
        "<file_limits>",
        f"- current_files_open={open_now}",
        f"- max_files_open={limits.most_open}",
        "</file_limits>",
    ]
    for directory in directories:
        lines += _directory(directory, limits.characters)
    return "\n".join([*lines, "</directories>"])


def _directory(directory: Directory, characters: int) -> list[str]:
    folder = directory.folder
    lines = [f'<directory name="{attribute(folder.name)}">']
    if folder.description:
        lines.append(f"<description>{escape(folder.description)}</description>")
    if folder.instructions:
        lines.append(f"<instructions>{_within_tag('instructions', folder.instructions)}</instructions>")
    for file in directory.files:
        lines += _file(folder, file, characters)
    if directory.more:
        lines.append(f"[{directory.more} more files, which grep_files and semantic_search_files find]")
    return [*lines, "</directory>"]


def _file(folder: Folder, file: ShownFile, characters: int) -> list[str]:
    """The shape is that of the server that Holdfast replaces: programs look for it."""
    status = "open" if file.is_open else "closed"
    opening = f'<file status="{status}" name="{attribute(f"{folder.name}/{file.name}")}">'
    if not file.is_open:
        return [f"{opening}{file.lines} lines</file>"]
    text = visible_text(file, characters)
    metadata = ["<metadata>", "- read_only=true", f"- chars_current={len(text)}", f"- chars_limit={characters}"]
    return [opening, *metadata, "</metadata>", "<value>", escape(text), "</value>", "</file>"]


def _within_tag(tag: str, text: str) -> str:
    """For a tag that is none of the prompt's own elsewhere: text that cannot close it."""
    return escape(text).replace(f"</{tag}", f"&lt;/{tag}")

"""Patches as models write them: hunks of ` `, `-` and `+` lines for one text, or sections that speak of several blocks.

A hunk's place is found by its context and removed lines, which must occur exactly once; line numbers are not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.errors import ToolFailed

_SECTION: Final = re.compile(r"\*\*\* (Add|Delete|Update) Block:[ \t]*(.*?)[ \t]*")
_MOVE: Final = re.compile(r"\*\*\* Move to:[ \t]*(.*?)[ \t]*")
_DESCRIPTION: Final = re.compile(r"Description:[ \t]*(.*?)[ \t]*")
_DECORATION: Final = re.compile(r"\*\*\* (?:Begin|End) Patch[ \t]*|\\ No newline at end of file")


class Hunk(msgspec.Struct, frozen=True):
    before: tuple[str, ...]
    after: tuple[str, ...]


class Section(msgspec.Struct, frozen=True):
    """What a patch does to one block."""

    action: Literal["Add", "Delete", "Update"]
    label: str
    body: tuple[str, ...] = ()
    description: str | None = None
    move_to: str | None = None


def sections_of(patch: str) -> list[Section]:
    """Empty when the patch names no blocks, and so is meant for the one that the call names."""
    lines = _lines_of(patch)
    openings = [(at, found) for at, line in enumerate(lines) if (found := _SECTION.fullmatch(line))]
    if not openings:
        return []
    starts = [at for at, _ in openings]
    if any(line.strip() for line in lines[: starts[0]]):
        raise ToolFailed("The patch has lines before its first '*** Add Block:', '*** Update Block:' or similar line.")
    ends = [*starts[1:], len(lines)]
    return [_section(found, lines[at + 1 : end]) for (at, found), end in zip(openings, ends, strict=True)]


def added_text(section: Section) -> str:
    """The value of a new block: its lines, with or without the `+` before them."""
    return "\n".join(line.removeprefix("+") for line in section.body)


def hunks_of(patch: str) -> list[Hunk]:
    lines = _lines_of(patch)
    if len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ "):
        del lines[:2]  # the file names of a unified diff
    hunks: list[Hunk] = []
    gathered: list[str] = []
    for line in lines:
        if line.startswith("@@"):
            hunks += _hunk(gathered)
            gathered = []
        else:
            gathered.append(line)
    hunks += _hunk(gathered)
    if not hunks:
        raise ToolFailed("The patch is empty: write lines that begin with ' ', '-' or '+'.")
    return hunks


def apply_hunks(value: str, hunks: Sequence[Hunk]) -> str:
    lines = value.split("\n") if value else []
    for number, hunk in enumerate(hunks, start=1):
        at = _place(lines, hunk, number)
        lines[at : at + len(hunk.before)] = hunk.after
    return "\n".join(lines)


def _lines_of(patch: str) -> list[str]:
    return [line for line in patch.strip("\r\n").splitlines() if not _DECORATION.fullmatch(line)]


def _section(opening: re.Match[str], body: list[str]) -> Section:
    action, label = opening[1], opening[2]
    description = move_to = None
    if action == "Add" and body and (described := _DESCRIPTION.fullmatch(body[0])):
        description = described[1]
        del body[0]
    if action == "Update" and body and (moved := _MOVE.fullmatch(body[0])):
        move_to = moved[1]
        del body[0]
    while body and not body[-1]:
        body.pop()
    if action == "Delete" and body:
        raise ToolFailed(f"'*** Delete Block: {label}' must not be followed by other lines of that block.")
    if action == "Update" and not body and move_to is None:
        raise ToolFailed(f"'*** Update Block: {label}' changes nothing: add hunks or '*** Move to:'.")
    return Section(action, label, tuple(body), description, move_to)  # pyright: ignore[reportArgumentType]


def _hunk(lines: list[str]) -> list[Hunk]:
    """None when there are no lines. An empty line is an empty line of context; at the end it only parts two hunks."""
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        return []
    before: list[str] = []
    after: list[str] = []
    for line in lines:
        mark, text = line[:1] or " ", line[1:]
        if mark not in " -+":
            raise ToolFailed(f"Every line of a patch must begin with ' ', '-' or '+', unlike {line[:80]!r}.")
        if mark != "+":
            before.append(text)
        if mark != "-":
            after.append(text)
    return [Hunk(tuple(before), tuple(after))]


def _place(lines: Sequence[str], hunk: Hunk, number: int) -> int:
    size = len(hunk.before)
    if not size:
        return len(lines)
    found = [at for at in range(len(lines) - size + 1) if tuple(lines[at : at + size]) == hunk.before]
    match found:
        case [at]:
            return at
        case []:
            raise ToolFailed(
                f"Hunk {number} of the patch does not match: its context and removed lines, beginning with "
                f"{hunk.before[0][:80]!r}, do not appear verbatim in the memory block."
            )
        case _:
            shown = [at + 1 for at in found]
            raise ToolFailed(f"Hunk {number} of the patch matches in lines {shown}. Add context to make it unique.")

"""What commands print: tables, JSON, and colour where a person reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

import msgspec

_CODES: Final = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def text_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest entry, nothing cut off."""
    lines = [tuple(headings), *(tuple("-" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """In colour, if it goes to a terminal whose user has not said no (https://no-color.org)."""
    if not is_terminal(stream or sys.stdout) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def printable(text: str) -> str:
    """What a model or a tool wrote, without characters that would steer the terminal."""
    return "".join(one if one.isprintable() or one in "\n\t" else f"\\x{ord(one):02x}" for one in text)

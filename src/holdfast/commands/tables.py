"""Lists as text: columns as wide as their widest entry, nothing cut off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [tuple(headings), *(tuple("-" if cell is None else str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )

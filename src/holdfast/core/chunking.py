"""Cuts the text of a file into chunks: pieces that are found, and shown, on their own.

The same text always gives the same chunks, so that an ingestion that was cut off goes on where it stopped. A chunk ends
where the text offers an end: at a heading, a blank line, a line, a sentence, a word, in this order. Prose overlaps a
little, because what a sentence means may be said by the one before it.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.core.file_types import Kind

_CHARS_PER_TOKEN: Final = 4
_OVERLAP_TOKENS: Final = 50
FEWEST_TOKENS, DEFAULT_TOKENS, MOST_TOKENS = 16, 300, 4_096

# The best end comes first. Each is looked for in the second half of what may be taken. None of them looks at the same
# place more than a few times, whatever the text is.
_PROSE: Final = (
    re.compile(r"\n[^\S\n]*\n"),
    re.compile(r"[.!?…。！？][\"')\]]*\s"),
    re.compile(r"\n"),
    re.compile(r"\s"),
)
_MARKDOWN: Final = (re.compile(r"\n(?=#{1,6}\s)"), *_PROSE)
_CODE: Final = (re.compile(r"\n[^\S\n]*\n(?=\S)"), re.compile(r"\n(?=\S)"), re.compile(r"\n"), re.compile(r"\s"))
_JSON: Final = (re.compile(r"\n"), re.compile(r"[,}\]]\s*"), re.compile(r"\s"))
_ENDS: Final = {"markdown": _MARKDOWN, "code": _CODE, "json": _JSON}
_OVERLAPPING: Final = frozenset({"text", "markdown", "html", "pdf", "docx"})


class Chunker:
    """Is given a text in parts and gives its chunks, of which none is blank. How the text is parted does not matter."""

    def __init__(self, kind: Kind, size_tokens: int) -> None:
        self._size = max(FEWEST_TOKENS, min(size_tokens, MOST_TOKENS)) * _CHARS_PER_TOKEN
        self._overlap = min(_OVERLAP_TOKENS * _CHARS_PER_TOKEN, self._size // 4) if kind in _OVERLAPPING else 0
        self._ends = _ENDS.get(kind, _PROSE)
        self._text = ""  # from the beginning of the next chunk on

    def feed(self, text: str) -> list[str]:
        """The chunks that are complete by now."""
        self._text += text
        found: list[str] = []
        start = 0
        while len(self._text) - start > self._size:
            end = _end(self._text, start, self._size, self._ends)
            found.append(self._text[start:end].strip())
            start = _overlapped(self._text, start, end, self._overlap)
        self._text = self._text[start:]
        return [piece for piece in found if piece]

    def finish(self) -> list[str]:
        """The last chunk, if there is one."""
        last = self._text.strip()
        self._text = ""
        return [last] if last else []


def _end(text: str, start: int, size: int, ends: tuple[re.Pattern[str], ...]) -> int:
    for pattern in ends:
        last = None
        for found in pattern.finditer(text, start + size // 2, start + size):
            last = found
        if last is not None:
            return last.end()
    return start + size


def _overlapped(text: str, start: int, end: int, overlap: int) -> int:
    """Where the next one begins: at a word."""
    if not overlap:
        return end
    space = text.find(" ", end - overlap, end)
    begin = space + 1 if space >= 0 else end - overlap
    return begin if begin > start else end

"""What a page says: its bytes as text, and the text of its HTML. Pages are often broken, and some on purpose."""

from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter
from html.parser import HTMLParser
from typing import Final

_UTF8: Final = "utf-8"
_BOMS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED_WITHIN: Final = 1_024  # bytes; where HTML says that the declaration has to be
_DECLARED: Final = re.compile(rb"""<meta[^<>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}

_SKIPPED: Final = frozenset({"title", "noscript", "template", "svg", "head"})
_BLOCKS: Final = frozenset(
    """
    address article aside blockquote body br dd div dl dt figure footer form h1 h2 h3 h4 h5 h6 header hr li main nav ol
    p pre section table td th tr ul
    """.split()  # noqa: SIM905 - a list of one name per line would fill a screen
)
_BLANK_LINES: Final = re.compile(r"\n\s*\n+")
_UNREAD: Final = re.compile(r"<!--|<!|<\?|<(script|style)(?=[\s/>])", re.IGNORECASE)
_ENDS: Final = {name: re.compile(rf"</{name}[^>]*>", re.IGNORECASE) for name in ("script", "style")}
_NO_TAG: Final = re.compile(r"<(?![a-zA-Z/])")


def unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """Of a server that packs its answers unasked. At most one byte more than may be read."""
    if encoding in ("", "identity"):
        return body
    bits = _WINDOW_BITS.get(encoding)
    if bits is None:
        raise ValueError(f"the answer is packed as {encoding!r}, which cannot be read")
    try:
        return zlib.decompressobj(bits).decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"the answer is not {encoding}, though its server says so: {error}") from error


def charset_of(body: bytes, named: str | None) -> str:
    """How the text is written: as its first bytes show, as the server says, or as the page says."""
    for mark, charset in _BOMS:
        if body.startswith(mark):
            return charset
    declared = _DECLARED.search(body[:_DECLARED_WITHIN])
    for name in (named, declared[1].decode("ascii", "replace") if declared else None):
        if name and _is_text(name):
            return name
    return _UTF8


def _is_text(charset: str) -> bool:
    try:
        " ".encode(charset, "replace")
    except (LookupError, ValueError):  # nobody knows it, or it is no way of writing text
        return False
    return True


def html_text(source: str) -> str:
    """What a page says, a line for each block."""
    reader = _Reader()
    reader.feed(_readable(source))
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _readable(source: str) -> str:
    """Without comments, declarations and programs, which swallow the rest if they have no end, as in a browser; and
    with signs that begin no tag written as such. The parser would look for the end of each again and again."""
    pieces: list[str] = []
    at = 0
    while (found := _UNREAD.search(source, at)) is not None:
        pieces.append(source[at : found.start()])
        at = _end_of(source, found)
    pieces.append(source[at:])
    kept = _NO_TAG.sub("&lt;", "".join(pieces))
    last = kept.rfind(">") + 1
    return kept[:last] + kept[last:].replace("<", "&lt;")


def _end_of(source: str, found: re.Match[str]) -> int:
    if found[1] is not None:
        end = _ENDS[found[1].lower()].search(source, found.end())
        return len(source) if end is None else end.end()
    closing = "-->" if found[0] == "<!--" else ">"
    place = source.find(closing, found.start() + 2)
    return len(source) if place < 0 else place + len(closing)


class _Reader(HTMLParser):
    """What is in an element that is skipped is dropped at its end: one that never ends is read after all."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._skipped: list[tuple[str, int]] = []  # open ones, with the piece that each began at
        self._open: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED:
            self._skipped.append((tag, len(self.pieces)))
            self._open[tag] += 1
        elif tag in _BLOCKS:
            if self._skipped and self._skipped[0][0] == "head":
                self.handle_endtag("head")  # which may be left out
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n")
        if not self._open[tag]:  # or a page of wrong end tags would have all open ones looked through for each
            return
        name = ""
        while name != tag:
            name, began_at = self._skipped.pop()
            self._open[name] -= 1
            del self.pieces[began_at:]

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

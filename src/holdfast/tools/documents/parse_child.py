"""Reads the text of a document. A process of its own, within limits: a document can be made to take all there is.

The document comes on its standard input, the text goes to its standard output; if there is none, the reason goes to its
standard error, and it ends with REFUSED. It gives up all files but those of the interpreter and its libraries
(landlock, where the kernel has it).
"""

from __future__ import annotations

import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import import_module
from typing import Any, Final
from xml.etree import ElementTree

from holdfast.tools.documents import child_limits
from holdfast.tools.sandbox import landlock, linux

_LARGEST_XML: Final = 256 << 20  # bytes of a Word document's text, unpacked
_WORD: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_HIDDEN: Final = frozenset({"script", "style", "template", "noscript", "svg"})
_BREAKING: Final = frozenset(
    """
    address article aside blockquote br dd details div dl dt fieldset figure footer form h1 h2 h3 h4 h5 h6 header hr li
    main nav ol p pre section table title tr ul
    """.split()  # noqa: SIM905 - a list of one word per line would fill a screen
)


class UnreadableDocument(Exception):
    """With what is wrong, and what to do."""


def main(memory_bytes: str, cpu_s: str, kind: str) -> None:
    child_limits.apply(int(memory_bytes), int(cpu_s))
    linux.die_with_parent()
    _give_up_files()
    try:
        for piece in PARSERS[kind](sys.stdin.buffer.read()):
            sys.stdout.buffer.write(_storable(piece).encode(errors="replace"))
        sys.stdout.buffer.flush()
    except UnreadableDocument as error:
        _refuse(str(error))
    except MemoryError:
        _refuse("reading it needs more memory than a file may use (HOLDFAST_FILE_MEMORY_BYTES); split it")
    except RecursionError:
        _refuse("it is nested too deeply")


def _refuse(reason: str) -> None:
    sys.stderr.write(reason)
    sys.exit(child_limits.REFUSED)


def _give_up_files() -> None:
    abi = landlock.version()
    if abi:
        libraries = {os.path.abspath(path) for path in (*sys.path, sys.prefix, sys.base_prefix, "/lib", "/usr/lib")}
        linux.forbid_new_privileges()
        landlock.restrict(abi, landlock.open_paths(libraries), ())


def _storable(text: str) -> str:
    """Lines end as everywhere else here, and there is no NUL, which PostgreSQL does not store."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def _plain(content: bytes) -> Iterator[str]:
    yield decoded(content)


def decoded(content: bytes) -> str:
    """UTF-8, UTF-16 with a mark, or else what Windows wrote. Binary files are none of these."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _strictly(content, "utf-16")
    if b"\x00" in content:
        raise UnreadableDocument("it is not text: it holds NUL bytes; upload it in a format that holds text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _strictly(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableDocument(f"it is not text in {encoding.upper()}: {error.reason}; save it as UTF-8") from error


class _TextOfHtml(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0
        self._kept_as_is = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        self._kept_as_is += tag == "pre"
        if tag in _BREAKING:
            self.pieces.append("\n")
        elif tag in ("td", "th"):
            self.pieces.append("\t")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self._kept_as_is = max(0, self._kept_as_is - (tag == "pre"))
        if tag in _BREAKING:
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data if self._kept_as_is else re.sub(r"\s+", " ", data))


def _html(content: bytes) -> Iterator[str]:
    reader = _TextOfHtml()
    reader.feed(decoded(content))
    reader.close()
    lines = "".join(reader.pieces).split("\n")
    yield re.sub(r"\n{3,}", "\n\n", "\n".join(line.strip(" ") for line in lines)).strip() + "\n"


def _docx(content: bytes) -> Iterator[str]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open("word/document.xml") as inner:
            document = inner.read(_LARGEST_XML + 1)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise UnreadableDocument("it is not a Word document (.docx); save it as one, or as text") from error
    if len(document) > _LARGEST_XML:
        raise UnreadableDocument(f"its text unpacks to more than {_LARGEST_XML >> 20} MB; split it")
    if b"<!DOCTYPE" in document[:4096] or b"<!ENTITY" in document:
        raise UnreadableDocument("it declares entities, which no Word document does")
    try:
        body = ElementTree.fromstring(document).find(f"{_WORD}body")
    except ElementTree.ParseError as error:
        raise UnreadableDocument(f"its text is damaged: {error}; save it again") from error
    if body is not None:
        for element in body:
            yield from _word_lines(element)


def _word_lines(element: ElementTree.Element) -> Iterator[str]:
    if element.tag == f"{_WORD}p":
        yield _word_text(element) + "\n"
    elif element.tag == f"{_WORD}tbl":
        for row in element.iter(f"{_WORD}tr"):
            cells = (" ".join(map(_word_text, cell.iter(f"{_WORD}p"))) for cell in row.iter(f"{_WORD}tc"))
            yield "\t".join(cells) + "\n"
    else:  # structured tags, sections
        for inner in element:
            yield from _word_lines(inner)


def _word_text(paragraph: ElementTree.Element) -> str:
    written = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}
    parts = (
        node.text or "" if node.tag == f"{_WORD}t" else written.get(str(node.tag), "") for node in paragraph.iter()
    )
    return "".join(parts)


def _pdf(content: bytes) -> Iterator[str]:
    pypdf, broken = _pypdf()
    try:
        reader = pypdf.PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocument("it is protected with a password; remove it and upload the file again")
        found = False
        for page in reader.pages:
            text = page.extract_text().strip()
            found = found or bool(text)
            yield text + "\n\n"
    except broken as error:
        raise UnreadableDocument(f"it is a damaged PDF, or none: {error}; save it again") from error
    if not found:
        raise UnreadableDocument("it has no text, only images of it; run OCR over it and upload the result")


def _pypdf() -> tuple[Any, tuple[type[Exception], ...]]:
    # A damaged file makes it stumble in many ways; all of them mean the same to whoever uploaded it.
    pypdf = import_module("pypdf")
    own: type[Exception] = import_module("pypdf.errors").PyPdfError
    return pypdf, (own, ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError, OSError)


PARSERS: Final[dict[str, Callable[[bytes], Iterator[str]]]] = {
    "text": _plain,
    "markdown": _plain,
    "json": _plain,
    "code": _plain,
    "html": _html,
    "docx": _docx,
    "pdf": _pdf,
}

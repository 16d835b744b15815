"""What is hostile is read and searched in a process of its own, and costs no more than it may."""

from __future__ import annotations

import asyncio
import io
import os
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable

import psutil
import pytest

from holdfast.core.file_types import Kind
from holdfast.errors import ToolFailed
from holdfast.tools.documents.child import ChildLimits
from holdfast.tools.documents.grep import grep
from holdfast.tools.documents.parse import CannotParse, parse
from tests.scenario import eventually

pytestmark = pytest.mark.slow
PLENTY = ChildLimits(timeout_s=60)


async def text_of(kind: Kind, content: bytes, limits: ChildLimits = PLENTY, most_bytes: int = 1 << 24) -> str:
    pieces: list[str] = []

    async def take(piece: str) -> None:
        pieces.append(piece)

    await parse(kind, _parts(content), limits, most_bytes, take)
    return "".join(pieces)


async def _parts(content: bytes) -> AsyncIterator[bytes]:
    for first in range(0, len(content), 100_000):
        yield content[first : first + 100_000]


def a_pdf(page: bytes, *, packed: bool = False, extra: bytes = b"") -> bytes:
    """One page, with this content."""
    stream = zlib.compress(page) if packed else page
    kind = b"/Filter /FlateDecode " if packed else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< %s/Length %d >>\nstream\n%s\nendstream" % (kind, len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        *([extra] if extra else []),
    ]
    out = bytearray(b"%PDF-1.4\n")
    places: list[int] = []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        out += b"%010d 00000 n \n" % place
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}


async def test_the_text_of_a_pdf() -> None:
    page = b"BT /F1 24 Tf 72 700 Td (Tigers live here) Tj ET"
    assert (await text_of("pdf", a_pdf(page))).strip() == "Tigers live here"
    assert (await text_of("pdf", a_pdf(page, packed=True))).strip() == "Tigers live here"


async def test_a_pdf_without_text_says_so() -> None:
    with pytest.raises(CannotParse, match="OCR"):
        await text_of("pdf", a_pdf(b""))


async def test_a_pdf_that_takes_for_ever_is_given_up_in_time() -> None:
    """So many operators that no patience is enough."""
    hostile = a_pdf(b"BT /F1 1 Tf " + b"(x) Tj " * 3_000_000 + b"ET", packed=True)
    before, began = children(), time.monotonic()
    with pytest.raises(CannotParse, match="HOLDFAST_FILE_TIMEOUT_S"):
        await text_of("pdf", hostile, ChildLimits(timeout_s=1.5))
    assert time.monotonic() - began < 15
    assert children() <= before


async def test_a_pdf_that_unpacks_to_everything_is_refused() -> None:
    hostile = a_pdf(b" " * 400_000_000, packed=True)
    assert len(hostile) < 1_000_000
    with pytest.raises(CannotParse):
        await text_of("pdf", hostile, ChildLimits(memory_bytes=256 << 20, timeout_s=60))


async def test_a_word_document_that_unpacks_to_everything_is_refused() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("word/document.xml", "w") as inner:
        for _ in range(300):
            inner.write(b" " * (1 << 20))
    with pytest.raises(CannotParse, match=r"memory|unpacks"):
        await text_of("docx", packed.getvalue(), ChildLimits(memory_bytes=256 << 20, timeout_s=60))


async def test_entities_of_a_word_document_are_not_expanded() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("word/document.xml", '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>')
    with pytest.raises(CannotParse, match="entities"):
        await text_of("docx", packed.getvalue())


async def test_more_text_than_may_be_is_refused() -> None:
    with pytest.raises(CannotParse, match="more than 1000 bytes"):
        await text_of("text", b"x" * 5_000, most_bytes=1_000)


async def test_a_parser_that_is_cancelled_is_dead_before_the_cancel_comes_back() -> None:
    before = children()
    hostile = a_pdf(b"BT /F1 1 Tf " + b"(x) Tj " * 3_000_000 + b"ET", packed=True)
    reading = asyncio.create_task(text_of("pdf", hostile))
    await eventually(lambda: bool(children() - before))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert children() <= before


def reading(*texts: str) -> Callable[[int], AsyncIterator[str]]:
    async def read(place: int) -> AsyncIterator[str]:
        text = texts[place]
        for first in range(0, len(text), 1_000):
            yield text[first : first + 1_000]

    return read


async def test_a_pattern_that_takes_for_ever_is_given_up_in_time() -> None:
    before, began = children(), time.monotonic()
    with pytest.raises(ToolFailed, match="longer than 1 seconds"):
        await grep(["a"], reading("a" * 40 + "!"), r"(a+)+$", None, 1, timeout_s=1)
    assert time.monotonic() - began < 10
    assert children() <= before


async def test_a_hostile_pattern_of_names_is_given_up_too() -> None:
    with pytest.raises(ToolFailed, match="longer than 1 seconds"):
        await grep(["a" * 40 + "!"], reading("x"), "x", r"(a+)+$", 1, timeout_s=1)


async def test_the_server_goes_on_while_a_pattern_is_tried() -> None:
    """The longest pause of the event loop, while a child is stuck."""
    longest, last = 0.0, time.monotonic()
    searching = asyncio.create_task(grep(["a"], reading("a" * 40 + "!"), r"(a+)+$", None, 1, timeout_s=1))
    while not searching.done():
        await asyncio.sleep(0.005)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert isinstance(searching.exception(), ToolFailed)
    assert longest < 1.0


async def test_a_search_that_is_cancelled_is_dead_before_the_cancel_comes_back() -> None:
    before = children()
    searching = asyncio.create_task(grep(["a"], reading("a" * 40 + "!"), r"(a+)+$", None, 1))
    await eventually(lambda: bool(children() - before))
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert children() <= before


async def test_matches_come_in_order_with_their_surroundings() -> None:
    found = await grep(["a", "b"], reading("one\ntwo\nthree", "Two\n"), "TWO", None, 1)
    told = [(match.name, match.line, match.text, match.before, match.after) for match in found]
    assert told == [("a", 2, "two", ("one",), ("three",)), ("b", 1, "Two", (), ())]


async def test_of_a_long_line_the_part_with_the_match_is_shown() -> None:
    [match] = await grep(["a"], reading("x" * 100_000 + "needle" + "y" * 100_000), "needle", None, 0)
    assert len(match.text) < 600
    assert "needle" in match.text


async def test_at_most_a_thousand_matches_are_gathered() -> None:
    found = await grep(["a", "b"], reading("x\n" * 900, "x\n" * 900), "x", None, 0)
    assert len(found) == 1_000


async def test_a_text_that_cannot_be_read_is_not_one_without_a_match() -> None:
    async def read(place: int) -> AsyncIterator[str]:
        raise OSError("gone")
        yield ""

    with pytest.raises(OSError, match="gone"):
        await grep(["a"], read, "x", None, 0)
